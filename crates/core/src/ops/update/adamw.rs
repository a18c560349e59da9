//! AdamW: Loshchilov and Hutter 2019 (arXiv:1711.05101), in the order of operations of `torch.optim.AdamW`.

use super::{seen, span_types};
use crate::dtype::DType;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};

/// `(param, grad, exp_avg, exp_avg_sq, scale, apply, decay, step_size, bias_correction2_sqrt)`, with attributes `beta1`,
/// `beta2`, `eps` and optionally `clip_value`, to new `param`, `exp_avg`, `exp_avg_sq`:
///
/// ```text
/// g = clip(scale · grad)
/// m = lerp(exp_avg, g, 1 − beta1)
/// v = beta2 · exp_avg_sq + (1 − beta2) · g²
/// p = decay · param − step_size · m / (√v / bias_correction2_sqrt + eps)
/// ```
///
/// At step t (from 1): `decay = 1 − lr · weight_decay`, `step_size = lr / (1 − beta1^t)`,
/// `bias_correction2_sqrt = √(1 − beta2^t)`.
pub static ADAMW: OpDef = OpDef {
    name: "adamw",
    schemas: &["headwater::adamw(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor scale, Tensor apply, Tensor decay, Tensor step_size, Tensor bias_correction2_sqrt, *, float beta1, float beta2, float eps, float? clip_value=None) -> (Tensor, Tensor, Tensor)"],
    infer: |cx| span_types(cx, &[0, 2, 3], 4..9),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(15),
    body: Body::Pointwise(|cx: &OpCx| {
        let [p, m, v] = [0, 2, 3].map(input);
        let [scale, apply, decay, step_size, correction] = [4, 5, 6, 7, 8].map(input);
        let (beta1, beta2, eps) = (cx.float("beta1")?, cx.float("beta2")?, cx.float("eps")?);
        let g = seen(cx, input(1), scale)?;
        let weight = 1.0 - beta1;
        // torch.lerp keeps the end that the result is nearer to.
        let new_m = if weight.abs() < 0.5 {
            m.clone() + float(weight) * (g.clone() - m.clone())
        } else {
            g.clone() - (g.clone() - m.clone()) * (1.0 - weight)
        };
        let new_v = v.clone() * beta2 + float(1.0 - beta2) * g.clone() * g;
        let denominator = new_v.clone().sqrt() / correction + eps;
        let new_p = p.clone() * decay - step_size * new_m.clone() / denominator;
        Ok([(new_p, p), (new_m, m), (new_v, v)].map(|(new, old)| apply.clone().select(new, old)).into())
    }),
    cases: || {
        let case = |name, apply: f64| {
            Case::new(name)
                .f(&[5])
                .f(&[5])
                .f(&[5])
                .range(&[5], 0.0, 2.0)
                .range(&[], 0.5, 1.0)
                .arg(DType::Bool, &[], crate::ops::Sample::Values(vec![apply]))
                .range(&[], 0.9, 1.0)
                .range(&[], 0.01, 0.1)
                .range(&[], 0.1, 1.0)
                .attr("beta1", 0.9)
                .attr("beta2", 0.999)
                .attr("eps", 1e-8)
        };
        vec![
            case("step", 1.0),
            case("skipped", 0.0),
            case("clipped", 1.0).attr("clip_value", 0.5),
            case("small beta1", 1.0).attr("beta1", 0.3),
        ]
    },
};
