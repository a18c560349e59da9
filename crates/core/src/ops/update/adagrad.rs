//! Adagrad: Duchi, Hazan and Singer 2011 (JMLR 12), in the order of operations of `torch.optim.Adagrad`.

use super::{applied, case, seen, span_types, taken};
use crate::expr::input;
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(param, grad, sum, scale, apply, step_size)`, with attributes `eps` and `weight_decay`, to new `param`
/// and `sum`:
///
/// ```text
/// g = scale · grad + weight_decay · param
/// s = sum + g²
/// p = param − step_size · g / (√s + eps)
/// ```
///
/// At step t (from 1) `step_size = lr / (1 + (t − 1) · lr_decay)`.
pub static ADAGRAD: OpDef = OpDef {
    name: "adagrad",
    schemas: &[
        "headwater::adagrad(Tensor param, Tensor grad, Tensor sum, Tensor scale, Tensor apply, Tensor step_size, *, float eps, float weight_decay=0., float? clip_value=None, bool maximize=False) -> (Tensor, Tensor)",
    ],
    infer: |cx| span_types(cx, 3..6),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx| {
        let [scale, apply, step_size] = taken(cx, 3)?;
        let (p, sum, eps) = (input(0), input(2), cx.float("eps")?);
        let g = seen(cx, scale)?;
        let new_sum = sum.clone() + g.clone() * g.clone();
        let new_p = p.clone() - step_size * (g / (new_sum.clone().sqrt() + eps));
        Ok(applied(&apply, [Some((new_p, p)), Some((new_sum, sum))]))
    }),
    cases: || {
        let case = |name, apply| {
            case(name, &[Some((0.0, 2.0))], apply, &[(0.01, 0.1)])
                .attr("eps", 1e-10)
                .attr("weight_decay", 0.1)
        };
        vec![case("step", true), case("skipped", false)]
    },
};
