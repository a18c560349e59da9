//! AdamW: Loshchilov and Hutter 2019 (arXiv:1711.05101), in the order of operations of `torch.optim.AdamW`.

use super::adam::moments;
use super::{applied, case, seen, span_types_by_step, taken};
use crate::expr::input;
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, scale, apply, decay, step_size,
/// bias_correction2_sqrt)`, with attributes `beta1`, `beta2` and `eps`: [`ADAM`](super::adam::ADAM) from
/// `decay · param` in place of `param`, where `decay = 1 − lr · weight_decay`. `mean_weight`,
/// `square_decay` and `square_weight` stand for `beta1` and `beta2` where these change from step to step.
pub static ADAMW: OpDef = OpDef {
    name: "adamw",
    schemas: &[
        "headwater::adamw(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor? max_exp_avg_sq, Tensor scale, Tensor apply, Tensor decay, Tensor step_size, Tensor bias_correction2_sqrt, Tensor? mean_weight=None, Tensor? square_decay=None, Tensor? square_weight=None, *, float? beta1=None, float? beta2=None, float eps, float? clip_value=None, bool maximize=False) -> (Tensor, Tensor, Tensor, Tensor)",
    ],
    infer: |cx| span_types_by_step(cx, 5..13, 10),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(15),
    body: Body::Pointwise(|cx| {
        let [scale, apply, decay, step_size, correction] = taken(cx, 5)?;
        let step = moments(cx, seen(cx, scale)?, correction, 10)?;
        let p = input(0);
        let new_p = p.clone() * decay - step_size * step.direction;
        let [m, v, max] = step.moments;
        Ok(applied(&apply, [Some((new_p, p)), m, v, max]))
    }),
    cases: || {
        let case = |name, max, apply| {
            let scalars = [(0.9, 1.0), (0.01, 0.1), (0.1, 1.0)];
            case(name, &[Some((-2.0, 2.0)), Some((0.0, 2.0)), max], apply, &scalars)
                .attr("beta1", 0.9)
                .attr("beta2", 0.999)
                .attr("eps", 1e-8)
        };
        let by_step = |name, weight: (f64, f64)| {
            let numbers = [(0.9, 1.0), (0.01, 0.1), (0.1, 1.0), weight, (0.9, 1.0), (0.0, 0.1)];
            super::case(name, &[Some((-2.0, 2.0)), Some((0.0, 2.0)), None], true, &numbers).attr("eps", 1e-8)
        };
        vec![
            by_step("by step", (0.1, 0.4)),
            by_step("by step, small beta1", (-0.4, -0.1)),
            case("step", None, true),
            case("skipped", None, false),
            case("clipped", None, true).attr("clip_value", 0.5),
            case("small beta1", None, true).attr("beta1", 0.3),
            case("largest", Some((0.0, 2.0)), true),
        ]
    },
};
