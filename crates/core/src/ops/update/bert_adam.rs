//! The Adam of BERT's original training (Devlin et al. 2019, `AdamWeightDecayOptimizer`): no bias correction,
//! decay decoupled.

use super::{applied, case, mean_square, seen, span_types, taken};
use crate::expr::{float, input};
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(param, grad, exp_avg, exp_avg_sq, scale, apply, lr)`, with attributes `beta1`, `beta2`, `eps` and
/// `decay`, to new `param`, `exp_avg` and `exp_avg_sq`:
///
/// ```text
/// g = scale · grad
/// m = beta1 · exp_avg + (1 − beta1) · g
/// v = beta2 · exp_avg_sq + (1 − beta2) · g²
/// p = param − lr · (m / (√v + eps) + decay · param)
/// ```
pub static BERT_ADAM: OpDef = OpDef {
    name: "bert_adam",
    schemas: &[
        "headwater::bert_adam(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor scale, Tensor apply, Tensor lr, *, float beta1, float beta2, float eps, float decay=0., float? clip_value=None, bool maximize=False) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| span_types(cx, 4..7),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(15),
    body: Body::Pointwise(|cx| {
        let [scale, apply, lr] = taken(cx, 4)?;
        let (p, m, v) = (input(0), input(2), input(3));
        let (beta1, beta2, eps) = (cx.float("beta1")?, cx.float("beta2")?, cx.float("eps")?);
        let g = seen(cx, scale)?;
        let new_m = m.clone() * beta1 + float(1.0 - beta1) * g.clone();
        let new_v = mean_square(&v, &g, beta2);
        let mut step = new_m.clone() / (new_v.clone().sqrt() + eps);
        if let Some(decay) = cx.opt_float("decay")?.filter(|&d| d != 0.0) {
            step = step + float(decay) * p.clone();
        }
        Ok(applied(&apply, [Some((p.clone() - lr * step, p)), Some((new_m, m)), Some((new_v, v))]))
    }),
    cases: || {
        let case = |name, apply| {
            case(name, &[Some((-2.0, 2.0)), Some((0.0, 2.0))], apply, &[(0.01, 0.1)])
                .attr("beta1", 0.9)
                .attr("beta2", 0.999)
                .attr("eps", 1e-6)
                .attr("decay", 0.01)
        };
        vec![case("step", true), case("skipped", false)]
    },
};
