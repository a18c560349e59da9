//! RMSprop: Tieleman and Hinton 2012 (lecture 6.5 of Neural Networks for Machine Learning). Its centered form
//! is by Graves 2013 (arXiv:1308.0850). Both are in the order of operations of `torch.optim.RMSprop`.

use super::{
    applied, case, decaying_mean, decaying_square, given, momentum, seen_by_step, span_types_by_step, taken,
};
use crate::expr::{float, input};
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(param, grad, square_avg, grad_avg, momentum_buffer, scale, apply, lr)`, with attributes `alpha`, `eps`,
/// `weight_decay` and `momentum`, to new `param` and those of the three moments that are given:
///
/// ```text
/// g = scale · grad + weight_decay · param
/// s = alpha · square_avg + (1 − alpha) · g²
/// a = lerp(grad_avg, g, 1 − alpha)
/// d = g / (√(s − a²) + eps)            without grad_avg: g / (√s + eps)
/// b = momentum · momentum_buffer + d   without momentum_buffer: d
/// p = param − lr · b
/// ```
///
/// A negative `s − a²`, which rounding may make, counts as 0; PyTorch has NaN there. `l2`, `mean_weight`,
/// `square_decay`, `square_weight` and `buffer_decay` stand for `weight_decay`, `alpha` and `momentum`
/// where these change from step to step.
pub static RMSPROP: OpDef = OpDef {
    name: "rmsprop",
    schemas: &[
        "headwater::rmsprop(Tensor param, Tensor grad, Tensor square_avg, Tensor? grad_avg, Tensor? momentum_buffer, Tensor scale, Tensor apply, Tensor lr, Tensor? l2=None, Tensor? mean_weight=None, Tensor? square_decay=None, Tensor? square_weight=None, Tensor? buffer_decay=None, *, float? alpha=None, float eps, float weight_decay=0., float momentum=0., float? clip_value=None, bool maximize=False) -> (Tensor, Tensor, Tensor, Tensor)",
    ],
    infer: |cx| span_types_by_step(cx, 5..13, 8),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(14),
    body: Body::Pointwise(|cx| {
        let [scale, apply, lr] = taken(cx, 5)?;
        let (p, s) = (input(0), input(2));
        let eps = cx.float("eps")?;
        let g = seen_by_step(cx, scale, 8)?;
        let new_s = decaying_square(cx, &s, &g, "alpha", 10)?;
        let average = match given(cx, 3) {
            Some(old) => Some((decaying_mean(cx, &old, &g, "alpha", 9)?, old)),
            None => None,
        };
        let under_root = match &average {
            Some((a, _)) => (new_s.clone() - a.clone() * a.clone()).max(float(0.0)),
            None => new_s.clone(),
        };
        let d = g / (under_root.sqrt() + eps);
        let momentum = momentum(cx, 12)?;
        let buffer = given(cx, 4).map(|old| (old.clone() * momentum + d.clone(), old));
        let step = buffer.as_ref().map_or(&d, |(b, _)| b).clone();
        Ok(applied(&apply, [Some((p.clone() - lr * step, p)), Some((new_s, s)), average, buffer]))
    }),
    cases: || {
        let case = |name, average, buffer, apply| {
            case(name, &[Some((4.0, 5.0)), average, buffer], apply, &[(0.01, 0.1)])
                .attr("alpha", 0.9)
                .attr("eps", 1e-8)
                .attr("weight_decay", 0.1)
                .attr("momentum", 0.8)
        };
        let moment = Some((-1.0, 1.0));
        let by_step = |name, moment| {
            let numbers = [(0.01, 0.1), (0.0, 0.2), (0.0, 0.2), (0.8, 1.0), (0.0, 0.2), (0.7, 0.9)];
            super::case(name, &[Some((4.0, 5.0)), moment, moment], true, &numbers).attr("eps", 1e-8)
        };
        vec![
            by_step("by step", moment),
            by_step("by step, plain", None),
            case("plain", None, None, true),
            case("all moments", moment, moment, true),
            case("momentum", None, moment, true),
            case("skipped", moment, moment, false),
        ]
    },
};
