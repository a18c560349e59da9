//! Lion: Chen et al. 2023, "Symbolic discovery of optimization algorithms" (arXiv:2302.06675), program 1.

use super::{applied, case, lerp, seen, span_types, taken};
use crate::expr::input;
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(param, grad, exp_avg, scale, apply, decay, lr)`, with attributes `beta1` and `beta2`, to new `param` and
/// `exp_avg`:
///
/// ```text
/// p = decay · param − lr · sign(lerp(exp_avg, g, 1 − beta1))
/// m = lerp(exp_avg, g, 1 − beta2)
/// ```
///
/// `g = scale · grad`, `decay = 1 − lr · weight_decay`; the sign of 0 is 0.
pub static LION: OpDef = OpDef {
    name: "lion",
    schemas: &[
        "headwater::lion(Tensor param, Tensor grad, Tensor exp_avg, Tensor scale, Tensor apply, Tensor decay, Tensor lr, *, float beta1, float beta2, float? clip_value=None, bool maximize=False) -> (Tensor, Tensor)",
    ],
    infer: |cx| span_types(cx, 3..7),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(11),
    body: Body::Pointwise(|cx| {
        let [scale, apply, decay, lr] = taken(cx, 3)?;
        let (p, m) = (input(0), input(2));
        let g = seen(cx, scale)?;
        let direction = lerp(&m, &g, 1.0 - cx.float("beta1")?).sign();
        let new_m = lerp(&m, &g, 1.0 - cx.float("beta2")?);
        Ok(applied(&apply, [Some((p.clone() * decay - lr * direction, p)), Some((new_m, m))]))
    }),
    cases: || {
        let case = |name, apply| {
            case(name, &[Some((-2.0, 2.0))], apply, &[(0.9, 1.0), (0.01, 0.1)])
                .attr("beta1", 0.9)
                .attr("beta2", 0.99)
        };
        vec![case("step", true), case("skipped", false), case("clipped", true).attr("clip_value", 0.5)]
    },
};
