//! RAdam: Liu et al. 2020, "On the variance of the adaptive learning rate" (arXiv:1908.03265), as
//! `torch.optim.RAdam`.

use super::{applied, case, lerp, mean_square, seen, span_types, taken};
use crate::expr::{float, input};
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(param, grad, exp_avg, exp_avg_sq, scale, apply, decay, step_size, rectified)`, with attributes `beta1`,
/// `beta2`, `eps` and `weight_decay` (added to the gradient), to new `param`, `exp_avg` and `exp_avg_sq`:
///
/// ```text
/// g = scale · grad + weight_decay · param
/// m = lerp(exp_avg, g, 1 − beta1)
/// v = beta2 · exp_avg_sq + (1 − beta2) · g²
/// p = decay · param − step_size · (rectified > 0 ? rectified · m / (√v + eps) : m)
/// ```
///
/// At step t (from 1), with `ρ∞ = 2 / (1 − beta2) − 1` and `ρ = ρ∞ − 2 t beta2^t / (1 − beta2^t)`:
/// `step_size = lr / (1 − beta1^t)`, and where `ρ > 5`,
/// `rectified = √((1 − beta2^t) (ρ − 4) (ρ − 2) ρ∞ / ((ρ∞ − 4) (ρ∞ − 2) ρ))`, else 0. `decay` is
/// `1 − lr · weight_decay` where decay is decoupled, else 1.
pub static RADAM: OpDef = OpDef {
    name: "radam",
    schemas: &[
        "headwater::radam(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor scale, Tensor apply, Tensor decay, Tensor step_size, Tensor rectified, *, float beta1, float beta2, float eps, float weight_decay=0., float? clip_value=None, bool maximize=False) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| span_types(cx, 4..9),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(17),
    body: Body::Pointwise(|cx| {
        let [scale, apply, decay, step_size, rectified] = taken(cx, 4)?;
        let (p, m, v) = (input(0), input(2), input(3));
        let (beta1, beta2, eps) = (cx.float("beta1")?, cx.float("beta2")?, cx.float("eps")?);
        let g = seen(cx, scale)?;
        let new_m = lerp(&m, &g, 1.0 - beta1);
        let new_v = mean_square(&v, &g, beta2);
        let adaptive = rectified.clone() * new_m.clone() / (new_v.clone().sqrt() + eps);
        let direction = rectified.gt(float(0.0)).select(adaptive, new_m.clone());
        let new_p = p.clone() * decay - step_size * direction;
        Ok(applied(&apply, [Some((new_p, p)), Some((new_m, m)), Some((new_v, v))]))
    }),
    cases: || {
        let case = |name, apply, rectified| {
            case(name, &[Some((-2.0, 2.0)), Some((0.0, 2.0))], apply, &[(0.9, 1.0), (0.01, 0.1), rectified])
                .attr("beta1", 0.9)
                .attr("beta2", 0.999)
                .attr("eps", 1e-8)
                .attr("weight_decay", 0.1)
        };
        let some = (0.1, 1.0);
        vec![case("step", true, some), case("not rectified", true, (0.0, 0.0)), case("skipped", false, some)]
    },
};
