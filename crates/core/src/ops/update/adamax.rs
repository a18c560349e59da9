//! Adamax: Kingma and Ba 2015 (arXiv:1412.6980), section 7.1, in the order of operations of
//! `torch.optim.Adamax`.

use super::{applied, case, lerp, seen, span_types, taken};
use crate::expr::input;
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(param, grad, exp_avg, exp_inf, scale, apply, step_size)`, with attributes `beta1`, `beta2`, `eps` and
/// `weight_decay` (added to the gradient), to new `param`, `exp_avg` and `exp_inf`:
///
/// ```text
/// g = scale · grad + weight_decay · param
/// m = lerp(exp_avg, g, 1 − beta1)
/// u = max(beta2 · exp_inf, |g| + eps)
/// p = param − step_size · m / u
/// ```
///
/// At step t (from 1): `step_size = lr / (1 − beta1^t)`.
pub static ADAMAX: OpDef = OpDef {
    name: "adamax",
    schemas: &[
        "headwater::adamax(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_inf, Tensor scale, Tensor apply, Tensor step_size, *, float beta1, float beta2, float eps, float weight_decay=0., float? clip_value=None, bool maximize=False) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| span_types(cx, 4..7),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| {
        let [scale, apply, step_size] = taken(cx, 4)?;
        let (p, m, u) = (input(0), input(2), input(3));
        let (beta1, beta2, eps) = (cx.float("beta1")?, cx.float("beta2")?, cx.float("eps")?);
        let g = seen(cx, scale)?;
        let new_m = lerp(&m, &g, 1.0 - beta1);
        let new_u = (u.clone() * beta2).max(g.abs() + eps);
        let new_p = p.clone() - step_size * new_m.clone() / new_u.clone();
        Ok(applied(&apply, [Some((new_p, p)), Some((new_m, m)), Some((new_u, u))]))
    }),
    cases: || {
        let case = |name, apply| {
            case(name, &[Some((-2.0, 2.0)), Some((0.0, 2.0))], apply, &[(0.01, 0.1)])
                .attr("beta1", 0.9)
                .attr("beta2", 0.999)
                .attr("eps", 1e-8)
                .attr("weight_decay", 0.1)
        };
        vec![case("step", true), case("skipped", false), case("decaying", true).attr("beta2", 0.5)]
    },
};
