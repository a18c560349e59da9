//! RMSprop as TensorFlow's `tf.compat.v1.train.RMSPropOptimizer` has it: epsilon under the root, the mean
//! square starts at 1, and the momentum holds learning rates. Tieleman and Hinton 2012; with PyTorch's extras
//! as `timm.optim.RMSpropTF`.

use super::{applied, case, given, mean_square, seen, span_types, taken};
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(param, grad, square_avg, grad_avg, momentum_buffer, scale, apply, decay, lr)`, with attributes `alpha`,
/// `eps`, `weight_decay` (added to the gradient), `momentum` and `lr_in_momentum`, to new `param` and those
/// of the three moments that are given:
///
/// ```text
/// g = scale · grad + weight_decay · param
/// s = alpha · square_avg + (1 − alpha) · g²
/// a = alpha · grad_avg + (1 − alpha) · g
/// d = g / √(s − a² + eps)              without grad_avg: g / √(s + eps)
/// b = momentum · momentum_buffer + lr · d    (d, and lr in the last line, without lr_in_momentum)
/// p = decay · param − b                without momentum_buffer: decay · param − lr · d
/// ```
///
/// `decay = 1 − lr · weight_decay` for decoupled decay, otherwise 1. Where rounding makes `s − a²` negative
/// it counts as 0.
pub static RMSPROP_TF: OpDef = OpDef {
    name: "rmsprop_tf",
    schemas: &[
        "headwater::rmsprop_tf(Tensor param, Tensor grad, Tensor square_avg, Tensor? grad_avg, Tensor? momentum_buffer, Tensor scale, Tensor apply, Tensor decay, Tensor lr, *, float alpha, float eps, float weight_decay=0., float momentum=0., bool lr_in_momentum=False, float? clip_value=None, bool maximize=False) -> (Tensor, Tensor, Tensor, Tensor)",
    ],
    infer: |cx| span_types(cx, 5..9),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(15),
    body: Body::Pointwise(|cx| {
        let [scale, apply, decay, lr] = taken(cx, 5)?;
        let (p, s) = (input(0), input(2));
        let (alpha, eps) = (cx.float("alpha")?, cx.float("eps")?);
        let g = seen(cx, scale)?;
        let new_s = mean_square(&s, &g, alpha);
        let mean = |old: &Expr| old.clone() * alpha + float(1.0 - alpha) * g.clone();
        let average = given(cx, 3).map(|old| (mean(&old), old));
        let spread = match &average {
            Some((a, _)) => (new_s.clone() - a.clone() * a.clone()).max(float(0.0)),
            None => new_s.clone(),
        };
        let d = g / (spread + eps).sqrt();
        let (step, buffer) = match given(cx, 4) {
            None => (lr * d, None),
            Some(old) => {
                let kept = old.clone() * cx.float("momentum")?;
                let inside = cx.flag("lr_in_momentum")?;
                let new = if inside { kept + lr.clone() * d } else { kept + d };
                (if inside { new.clone() } else { lr * new.clone() }, Some((new, old)))
            }
        };
        Ok(applied(&apply, [Some((p.clone() * decay - step, p)), Some((new_s, s)), average, buffer]))
    }),
    cases: || {
        let case = |name, average, buffer, apply| {
            case(name, &[Some((4.0, 5.0)), average, buffer], apply, &[(0.9, 1.0), (0.01, 0.1)])
                .attr("alpha", 0.9)
                .attr("eps", 1e-8)
                .attr("weight_decay", 0.1)
                .attr("momentum", 0.8)
                .attr("lr_in_momentum", true)
        };
        let moment = Some((-1.0, 1.0));
        vec![
            case("plain", None, None, true),
            case("all moments", moment, moment, true),
            case("rate outside", None, moment, true).attr("lr_in_momentum", false),
            case("skipped", moment, moment, false),
        ]
    },
};
