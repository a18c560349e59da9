//! Stochastic gradient descent with momentum, in the order of operations of `torch.optim.SGD`.

use super::{seen, span_types};
use crate::dtype::DType;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample};

/// `(param, grad, momentum_buffer, scale, apply, lr, gain)`, with attributes `momentum`, `weight_decay`, `nesterov` and
/// optionally `clip_value`, to new `param` and `momentum_buffer`:
///
/// ```text
/// d = clip(scale · grad) + weight_decay · param
/// b = momentum · momentum_buffer + gain · d
/// p = param − lr · (nesterov ? d + momentum · b : b)
/// ```
///
/// `gain` is 1 in the first step, `1 − dampening` later (the buffer starts at 0). Without momentum the buffer is absent,
/// there is one output, and `p = param − lr · d`.
pub static SGD: OpDef = OpDef {
    name: "sgd",
    schemas: &["headwater::sgd(Tensor param, Tensor grad, Tensor? momentum_buffer, Tensor scale, Tensor apply, Tensor lr, Tensor gain, *, float weight_decay=0., float momentum=0., bool nesterov=False, float? clip_value=None) -> (Tensor, Tensor)"],
    infer: |cx| span_types(cx, if cx.opt(2).is_some() { &[0, 2] } else { &[0] }, 3..7),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx: &OpCx| {
        let p = input(0);
        // Absent inputs are skipped in numbering.
        let first = if cx.opt(2).is_some() { 3 } else { 2 };
        let [scale, apply, lr, gain] = [0, 1, 2, 3].map(|i| input(first + i));
        let decay = cx.float("weight_decay")?;
        let mut d = seen(cx, input(1), scale)?;
        if decay != 0.0 {
            d = d + float(decay) * p.clone();
        }
        if cx.opt(2).is_none() {
            return Ok(vec![apply.select(p.clone() - lr * d, p)]);
        }
        let (momentum, old) = (cx.float("momentum")?, input(2));
        let buffer = old.clone() * momentum + gain * d.clone();
        let direction = if cx.flag("nesterov")? { d + float(momentum) * buffer.clone() } else { buffer.clone() };
        Ok(vec![apply.clone().select(p.clone() - lr * direction, p), apply.select(buffer, old)])
    }),
    cases: || {
        let scalars = |case: Case, apply: f64| {
            case.range(&[], 0.5, 1.0)
                .arg(DType::Bool, &[], Sample::Values(vec![apply]))
                .range(&[], 0.01, 0.1)
                .range(&[], 0.5, 1.0)
                .attr("momentum", 0.9)
                .attr("weight_decay", 0.1)
                .attr("nesterov", false)
        };
        let momentum = |name, apply| scalars(Case::new(name).f(&[5]).f(&[5]).f(&[5]), apply);
        vec![
            momentum("momentum", 1.0),
            momentum("nesterov", 1.0).attr("nesterov", true),
            momentum("skipped", 0.0),
            scalars(Case::new("plain").f(&[5]).f(&[5]).none(), 1.0).attr("clip_value", 0.5),
        ]
    },
};
