//! The moments of Adam alone, for optimizers that need both before they know the step.

use super::{applied, case, mean_square, seen, span_types, taken};
use crate::expr::{float, input};
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(exp_avg, grad, exp_avg_sq, scale, apply)`, with attributes `beta1`, `beta2` and `gain`, to new `exp_avg`
/// and `exp_avg_sq`:
///
/// ```text
/// m = beta1 · exp_avg + gain · scale · grad
/// v = beta2 · exp_avg_sq + (1 − beta2) · (scale · grad)²
/// ```
pub static ADAM_MOMENTS: OpDef = OpDef {
    name: "adam_moments",
    schemas: &[
        "headwater::adam_moments(Tensor exp_avg, Tensor grad, Tensor exp_avg_sq, Tensor scale, Tensor apply, *, float beta1, float beta2, float gain, float? clip_value=None, bool maximize=False) -> (Tensor, Tensor)",
    ],
    infer: |cx| span_types(cx, 3..5),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx| {
        let [scale, apply] = taken(cx, 3)?;
        let (m, v, g) = (input(0), input(2), seen(cx, scale)?);
        let new_m = m.clone() * cx.float("beta1")? + float(cx.float("gain")?) * g.clone();
        let new_v = mean_square(&v, &g, cx.float("beta2")?);
        Ok(applied(&apply, [Some((new_m, m)), Some((new_v, v))]))
    }),
    cases: || {
        let case = |name, apply| {
            case(name, &[Some((0.0, 2.0))], apply, &[])
                .attr("beta1", 0.9)
                .attr("beta2", 0.99)
                .attr("gain", 0.1)
        };
        vec![case("step", true), case("skipped", false)]
    },
};
