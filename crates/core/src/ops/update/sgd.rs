//! Stochastic gradient descent with momentum, in the order of operations of `torch.optim.SGD`.

use super::{applied, case, given, seen, span_types, taken};
use crate::expr::{float, input};
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
/// `gain` is 1 in the first step, `1 − dampening` later (the buffer starts at 0). Without momentum the buffer
/// is absent, there is one output, and `p = param − lr · d`.
pub static SGD: OpDef = OpDef {
    name: "sgd",
    schemas: &[
        "headwater::sgd(Tensor param, Tensor grad, Tensor? momentum_buffer, Tensor scale, Tensor apply, Tensor lr, Tensor gain, *, float weight_decay=0., float momentum=0., bool nesterov=False, float? clip_value=None, bool maximize=False) -> (Tensor, Tensor)",
    ],
    infer: |cx| span_types(cx, 3..7),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx| {
        let [scale, apply, lr, gain] = taken(cx, 3)?;
        let p = input(0);
        let d = seen(cx, scale)?;
        let (direction, buffer) = match given(cx, 2) {
            None => (d, None),
            Some(old) => {
                let momentum = cx.float("momentum")?;
                let buffer = old.clone() * momentum + gain * d.clone();
                let nesterov = cx.flag("nesterov")?;
                let direction = if nesterov { d + float(momentum) * buffer.clone() } else { buffer.clone() };
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
        vec![
            case("momentum", buffer, true),
            case("nesterov", buffer, true).attr("nesterov", true),
            case("skipped", buffer, false),
            case("plain", None, true).attr("clip_value", 0.5),
        ]
    },
};
