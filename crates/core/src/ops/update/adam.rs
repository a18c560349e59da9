//! Adam: Kingma and Ba 2015 (arXiv:1412.6980), in the order of operations of `torch.optim.Adam`.

use super::{applied, case, decaying_mean, decaying_square, given, seen_by_step, span_types_by_step, taken};
use crate::diagnostic::Result;
use crate::expr::{Expr, input};
use crate::ops::{Body, Cost, Derivative, OpCx, OpDef, Precision};

/// `(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, scale, apply, step_size, bias_correction2_sqrt)`, with
/// attributes `beta1`, `beta2`, `eps` and `weight_decay` (added to the gradient), to new `param`, `exp_avg`,
/// `exp_avg_sq` and `max_exp_avg_sq`:
///
/// ```text
/// g = scale · grad + weight_decay · param
/// m = lerp(exp_avg, g, 1 − beta1)
/// v = beta2 · exp_avg_sq + (1 − beta2) · g²
/// p = param − step_size · m / (√v / bias_correction2_sqrt + eps)
/// ```
///
/// At step t (from 1): `step_size = lr / (1 − beta1^t)`, `bias_correction2_sqrt = √(1 − beta2^t)`. If
/// `max_exp_avg_sq` is given, the largest `v` so far stands for `v` in the last line (AMSGrad: Reddi, Kale
/// and Kumar 2018). `l2`, `mean_weight`, `square_decay` and `square_weight` stand for `weight_decay`,
/// `beta1` and `beta2` where these change from step to step.
pub static ADAM: OpDef = OpDef {
    name: "adam",
    schemas: &[
        "headwater::adam(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor? max_exp_avg_sq, Tensor scale, Tensor apply, Tensor step_size, Tensor bias_correction2_sqrt, Tensor? l2=None, Tensor? mean_weight=None, Tensor? square_decay=None, Tensor? square_weight=None, *, float? beta1=None, float? beta2=None, float eps, float weight_decay=0., float? clip_value=None, bool maximize=False) -> (Tensor, Tensor, Tensor, Tensor)",
    ],
    infer: |cx| span_types_by_step(cx, 5..13, 9),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(15),
    body: Body::Pointwise(|cx| {
        let [scale, apply, step_size, correction] = taken(cx, 5)?;
        let step = moments(cx, seen_by_step(cx, scale, 9)?, correction, 10)?;
        let p = input(0);
        let new_p = p.clone() - step_size * step.direction;
        let [m, v, max] = step.moments;
        Ok(applied(&apply, [Some((new_p, p)), m, v, max]))
    }),
    cases: || {
        let case = |name, max, apply| {
            case(name, &[Some((-2.0, 2.0)), Some((0.0, 2.0)), max], apply, &[(0.01, 0.1), (0.1, 1.0)])
                .attr("beta1", 0.9)
                .attr("beta2", 0.999)
                .attr("eps", 1e-8)
        };
        let by_step = |name, weight: (f64, f64)| {
            let numbers = [(0.01, 0.1), (0.1, 1.0), (0.0, 0.2), weight, (0.9, 1.0), (0.0, 0.1)];
            super::case(name, &[Some((-2.0, 2.0)), Some((0.0, 2.0)), None], true, &numbers).attr("eps", 1e-8)
        };
        vec![
            by_step("by step", (0.1, 0.4)),
            by_step("by step, small beta1", (-0.4, -0.1)),
            case("step", None, true).attr("weight_decay", 0.1),
            case("skipped", None, false),
            case("largest", Some((0.0, 2.0)), true).attr("maximize", true),
        ]
    },
};

/// The common part of Adam and AdamW.
pub(super) struct Step {
    /// `m / (√v / bias_correction2_sqrt + eps)`.
    pub direction: Expr,
    /// New and old `m`, `v` and, if it is kept, the largest `v`.
    pub moments: [Option<(Expr, Expr)>; 3],
}

/// Inputs 2 to 4 are the moments, `g` the gradient as it is seen, `mean_weight` and the two next inputs
/// stand for the decay rates.
pub(super) fn moments(cx: &OpCx, g: Expr, correction: Expr, mean_weight: usize) -> Result<Step> {
    let [m, v] = taken(cx, 2)?;
    let eps = cx.float("eps")?;
    let new_m = decaying_mean(cx, &m, &g, "beta1", mean_weight)?;
    let new_v = decaying_square(cx, &v, &g, "beta2", mean_weight + 1)?;
    let max = given(cx, 4).map(|old| (old.clone().max(new_v.clone()), old));
    let under_root = max.as_ref().map_or(&new_v, |(new, _)| new).clone();
    let direction = new_m.clone() / (under_root.sqrt() / correction + eps);
    Ok(Step { direction, moments: [Some((new_m, m)), Some((new_v, v)), max] })
}
