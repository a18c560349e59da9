//! Adadelta: Zeiler 2012 (arXiv:1212.5701), in the order of operations of `torch.optim.Adadelta`.

use super::{applied, case, mean_square, seen, span_types, taken};
use crate::expr::input;
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(param, grad, square_avg, acc_delta, scale, apply, lr)`, with attributes `rho`, `eps` and `weight_decay`,
/// to new `param`, `square_avg` and `acc_delta`:
///
/// ```text
/// g = scale · grad + weight_decay · param
/// s = rho · square_avg + (1 − rho) · g²
/// d = √(acc_delta + eps) / √(s + eps) · g
/// a = rho · acc_delta + (1 − rho) · d²
/// p = param − lr · d
/// ```
pub static ADADELTA: OpDef = OpDef {
    name: "adadelta",
    schemas: &[
        "headwater::adadelta(Tensor param, Tensor grad, Tensor square_avg, Tensor acc_delta, Tensor scale, Tensor apply, Tensor lr, *, float rho, float eps, float weight_decay=0., float? clip_value=None, bool maximize=False) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| span_types(cx, 4..7),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(16),
    body: Body::Pointwise(|cx| {
        let [scale, apply, lr] = taken(cx, 4)?;
        let (p, s, a) = (input(0), input(2), input(3));
        let (rho, eps) = (cx.float("rho")?, cx.float("eps")?);
        let g = seen(cx, scale)?;
        let new_s = mean_square(&s, &g, rho);
        let d = (a.clone() + eps).sqrt() / (new_s.clone() + eps).sqrt() * g;
        let new_a = mean_square(&a, &d, rho);
        Ok(applied(&apply, [Some((p.clone() - lr * d, p)), Some((new_s, s)), Some((new_a, a))]))
    }),
    cases: || {
        let case = |name, apply| {
            case(name, &[Some((0.0, 2.0)), Some((0.0, 2.0))], apply, &[(0.1, 1.0)])
                .attr("rho", 0.9)
                .attr("eps", 1e-6)
                .attr("weight_decay", 0.1)
        };
        vec![case("step", true), case("skipped", false)]
    },
};
