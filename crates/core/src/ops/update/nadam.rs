//! NAdam: Dozat 2016, "Incorporating Nesterov momentum into Adam", in the order of operations of
//! `torch.optim.NAdam`.

use super::{applied, case, lerp, mean_square, seen, span_types, taken};
use crate::expr::input;
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(param, grad, exp_avg, exp_avg_sq, scale, apply, decay, gradient_step, moment_step, bias_correction2)`,
/// with attributes `beta1`, `beta2`, `eps` and `weight_decay` (added to the gradient), to new `param`,
/// `exp_avg` and `exp_avg_sq`:
///
/// ```text
/// g = scale · grad + weight_decay · param
/// m = lerp(exp_avg, g, 1 − beta1)
/// v = beta2 · exp_avg_sq + (1 − beta2) · g²
/// d = √(v / bias_correction2) + eps
/// p = decay · param − gradient_step · g / d − moment_step · m / d
/// ```
///
/// At step t (from 1), with `μ(t) = beta1 · (1 − 0.96^(t · momentum_decay) / 2)` and `Π` their product up to
/// t: `gradient_step = lr · (1 − μ(t)) / (1 − Π)`, `moment_step = lr · μ(t+1) / (1 − Π · μ(t+1))`. `decay` is
/// `1 − lr · weight_decay` where decay is decoupled, else 1.
pub static NADAM: OpDef = OpDef {
    name: "nadam",
    schemas: &[
        "headwater::nadam(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor scale, Tensor apply, Tensor decay, Tensor gradient_step, Tensor moment_step, Tensor bias_correction2, *, float beta1, float beta2, float eps, float weight_decay=0., float? clip_value=None, bool maximize=False) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| span_types(cx, 4..10),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(18),
    body: Body::Pointwise(|cx| {
        let [scale, apply, decay, gradient_step, moment_step, correction] = taken(cx, 4)?;
        let (p, m, v) = (input(0), input(2), input(3));
        let (beta1, beta2, eps) = (cx.float("beta1")?, cx.float("beta2")?, cx.float("eps")?);
        let g = seen(cx, scale)?;
        let new_m = lerp(&m, &g, 1.0 - beta1);
        let new_v = mean_square(&v, &g, beta2);
        let d = (new_v.clone() / correction).sqrt() + eps;
        let new_p = p.clone() * decay - gradient_step * g / d.clone() - moment_step * new_m.clone() / d;
        Ok(applied(&apply, [Some((new_p, p)), Some((new_m, m)), Some((new_v, v))]))
    }),
    cases: || {
        let case = |name, apply| {
            let scalars = [(0.9, 1.0), (0.01, 0.1), (0.01, 0.1), (0.1, 1.0)];
            case(name, &[Some((-2.0, 2.0)), Some((0.0, 2.0))], apply, &scalars)
                .attr("beta1", 0.9)
                .attr("beta2", 0.999)
                .attr("eps", 1e-8)
                .attr("weight_decay", 0.1)
        };
        vec![case("step", true), case("skipped", false), case("clipped", true).attr("clip_value", 0.5)]
    },
};
