//! Layer-wise adaptive rates around any optimizer: LARS, You, Gitman and Ginsburg 2017 (arXiv:1708.03888),
//! clipped as apex's LARC does. The norms of each parameter give its factor; the gradient that the optimizer
//! sees is multiplied by it.

use super::seen_gradient;
use crate::dtype::DType;
use crate::ensure;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample};
use crate::tensor::TensorType;

/// `(param_squares, grad_squares, scale, lr)`: f64 `[segments]` twice and f64 scalars. Attributes are
/// `trust_coefficient`, `eps`, `weight_decay` and `clip`. Results are the factors `[segments]` of the
/// gradient and of the parameter in what the optimizer sees:
///
/// ```text
/// rate = trust_coefficient · ‖param‖ / (scale · ‖grad‖ + weight_decay · ‖param‖ + eps)     and with clip min(rate / lr, 1)
/// ```
///
/// and `rate · weight_decay`; 1 and 0 where a norm is 0.
pub static LARC_RATE: OpDef = OpDef {
    name: "larc_rate",
    schemas: &[
        "headwater::larc_rate(Tensor param_squares, Tensor grad_squares, Tensor scale, Tensor lr, *, float trust_coefficient, float eps, float weight_decay, bool clip) -> (Tensor, Tensor)",
    ],
    infer: |cx| {
        let norms = cx.ty(0)? == cx.ty(1)? && cx.dtype(0)? == DType::F64;
        let scalars = [2, 3].iter().all(|&i| cx.shape(i).is_ok_and(|s| s.rank() == 0));
        ensure!(norms && scalars, Shape, "norms must be f64 of one shape, got {}", cx.list_types());
        Ok(vec![cx.ty(0)?.clone(); 2])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| {
        let (p, g) = (input(0).sqrt(), input(1).sqrt() * input(2));
        let decay = cx.float("weight_decay")?;
        let both = p.clone().gt(float(0.0)).and(g.clone().gt(float(0.0)));
        let below = g + p.clone() * decay + cx.float("eps")?;
        let mut rate = p * cx.float("trust_coefficient")? / below;
        if cx.flag("clip")? {
            rate = (rate / input(3)).min(float(1.0));
        }
        Ok(vec![both.clone().select(rate.clone(), float(1.0)), both.select(rate * decay, float(0.0))])
    }),
    cases: || {
        let squares = |x: [f64; 3]| Sample::Values(x.to_vec());
        let case = |name, clip| {
            Case::new(name)
                .arg(DType::F64, &[3], squares([4.0, 0.0, 1.0]))
                .arg(DType::F64, &[3], squares([9.0, 1.0, 0.0]))
                .range(&[], 0.5, 1.0)
                .range(&[], 1e-3, 1e-2)
                .attr("trust_coefficient", 0.02)
                .attr("eps", 1e-8)
                .attr("weight_decay", 0.1)
                .attr("clip", clip)
        };
        vec![case("clipped", true), case("scaled", false)]
    },
};

/// `(grad, param, scale, rate, decay)`, spans `[blocks, width]`, a scalar, and `[blocks, 1]` twice, to the
/// gradient that the optimizer sees: `rate · scale · grad + decay · param`, in the dtype of `rate`.
pub static LARC: OpDef = OpDef {
    name: "larc",
    schemas: &[
        "headwater::larc(Tensor grad, Tensor param, Tensor scale, Tensor rate, Tensor decay, *, float? clip_value=None) -> Tensor",
    ],
    infer: |cx| {
        let (span, rate) = (cx.shape(0)?, cx.ty(3)?);
        let fits = span.rank() == 2
            && cx.shape(1)? == span
            && cx.shape(2)?.rank() == 0
            && rate.shape[..] == [span[0], 1]
            && cx.ty(4)? == rate;
        let floats = (0..5).all(|i| cx.dtype(i).is_ok_and(|d| d.is_float()));
        ensure!(
            fits && floats,
            Shape,
            "expected spans, a scalar and a number for each block, got {}",
            cx.list_types()
        );
        Ok(vec![TensorType::new(rate.dtype, span.clone())])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        Ok(vec![input(3) * seen_gradient(cx, input(0), input(2))? + input(4) * input(1)])
    }),
    cases: || {
        let case = Case::new("blocks").f(&[3, 4]).f(&[3, 4]).range(&[], 0.5, 1.0);
        vec![case.range(&[3, 1], 0.0, 1.0).range(&[3, 1], 0.0, 0.1)]
    },
};
