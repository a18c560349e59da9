//! Smooth rectifier.

use super::{NO_SECOND, float_only, float_promoted, through_input};
use crate::diagnostic::Result;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};

/// `ln(1 + e^(beta · x)) / beta`, and `x` itself where `beta · x > threshold`.
pub static SOFTPLUS: OpDef = OpDef {
    name: "softplus",
    schemas: &["softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor"],
    infer: |cx| {
        coefficients(cx)?;
        float_only(cx)
    },
    derivative: Derivative::Rule(|cx| through_input(cx, &SOFTPLUS_BACKWARD)),
    precision: Precision::Full,
    cost: Cost::PerOutput(20),
    body: Body::Pointwise(|cx| {
        let (beta, threshold) = coefficients(cx)?;
        let z = input(0) * beta;
        Ok(vec![z.clone().gt(float(threshold)).select(input(0), z.exp().log1p() / beta)])
    }),
    cases: || {
        vec![
            Case::new("plain").f(&[7]),
            Case::new("sharp").f(&[7]).attr("beta", 3).attr("threshold", 4),
            Case::new("linear").range(&[2], 21.0, 30.0),
        ]
    },
};

/// Gradient of [`SOFTPLUS`]: `(grad_output, self)`; `g · sigmoid(beta · x)`, and `g` where `beta · x >
/// threshold`.
pub static SOFTPLUS_BACKWARD: OpDef = OpDef {
    name: "softplus_backward",
    schemas: &["softplus_backward(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> Tensor"],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Full,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| {
        let (beta, threshold) = coefficients(cx)?;
        let z = input(1) * beta;
        Ok(vec![z.clone().gt(float(threshold)).select(input(0), input(0) * z.sigmoid())])
    }),
    cases: || vec![Case::new("plain").f(&[7]).f(&[7]).attr("beta", 2).attr("threshold", 3)],
};

fn coefficients(cx: &OpCx) -> Result<(f64, f64)> {
    let beta = cx.opt_float("beta")?.unwrap_or(1.0);
    crate::ensure!(beta != 0.0, Attribute, "`beta` must not be 0");
    Ok((beta, cx.opt_float("threshold")?.unwrap_or(20.0)))
}
