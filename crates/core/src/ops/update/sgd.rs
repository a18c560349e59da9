//! Stochastic gradient descent with momentum, in the order of operations of `torch.optim.SGD`.

use super::{applied, case, given, momentum, seen_by_step, span_types_by_step, taken};
use crate::expr::input;
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(param, grad, momentum_buffer, scale, apply, lr, gain)`, with attributes `momentum`, `weight_decay` and
/// `nesterov`, to new `param` and `momentum_buffer`:
///
/// ```text
/// d = scale · grad + weight_decay · param
/// b = momentum · momentum_buffer + gain · d
/// p = param − lr · (nesterov ? d + momentum · b : b)
/// ```
///
/// `gain` is 1 in the first step, `1 − dampening` later (the buffer starts at 0). Without momentum the
/// buffer is absent, there is one output, and `p = param − lr · d`. `l2` and `buffer_decay` stand for
/// `weight_decay` and `momentum` where these change from step to step.
pub static SGD: OpDef = OpDef {
    name: "sgd",
    schemas: &[
        "headwater::sgd(Tensor param, Tensor grad, Tensor? momentum_buffer, Tensor scale, Tensor apply, Tensor lr, Tensor gain, Tensor? l2=None, Tensor? buffer_decay=None, *, float weight_decay=0., float momentum=0., bool nesterov=False, float? clip_value=None, bool maximize=False) -> (Tensor, Tensor)",
    ],
    infer: |cx| span_types_by_step(cx, 3..9, 7),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx| {
        let [scale, apply, lr, gain] = taken(cx, 3)?;
        let p = input(0);
        let d = seen_by_step(cx, scale, 7)?;
        let (direction, buffer) = match given(cx, 2) {
            None => (d, None),
            Some(old) => {
                let momentum = momentum(cx, 8)?;
                let buffer = old.clone() * momentum.clone() + gain * d.clone();
                let nesterov = cx.flag("nesterov")?;
                let direction = if nesterov { d + momentum * buffer.clone() } else { buffer.clone() };
                (direction, Some((buffer, old)))
            }
        };
        Ok(applied(&apply, [Some((p.clone() - lr * direction, p)), buffer]))
    }),
    cases: || {
        let case = |name, buffer, apply| {
            case(name, &[buffer], apply, &[(0.01, 0.1), (0.5, 1.0)])
                .attr("momentum", 0.9)
                .attr("weight_decay", 0.1)
                .attr("nesterov", false)
        };
        let buffer = Some((-2.0, 2.0));
        let by_step = |name, buffer: Option<(f64, f64)>| {
            super::case(name, &[buffer], true, &[(0.01, 0.1), (0.5, 1.0), (0.0, 0.2), (0.8, 1.0)])
        };
        vec![
            by_step("by step", buffer).attr("nesterov", true),
            by_step("by step, plain", None),
            case("momentum", buffer, true),
            case("nesterov", buffer, true).attr("nesterov", true),
            case("skipped", buffer, false),
            case("plain", None, true).attr("clip_value", 0.5),
        ]
    },
};
