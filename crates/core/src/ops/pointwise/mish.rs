//! `x · tanh(softplus(x))`: Misra 2019.

use super::{NO_SECOND, float_only, float_promoted, through_input};
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `x · tanh(ln(1 + e^x))`.
pub static MISH: OpDef = OpDef {
    name: "mish",
    schemas: &["mish(Tensor self) -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx| through_input(cx, &MISH_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(30),
    body: Body::Pointwise(|_| Ok(vec![input(0) * gate(input(0))])),
    cases: || vec![Case::new("plain").range(&[9], -6.0, 6.0), Case::new("far").range(&[3], -100.0, 100.0)],
};

/// Gradient of [`MISH`]: `(grad_output, self)`; `g · (t + x · sigmoid(x) · (1 - t²))` with `t = tanh(ln(1 +
/// e^x))`.
pub static MISH_BACKWARD: OpDef = OpDef {
    name: "mish_backward",
    schemas: &["mish_backward(Tensor grad_output, Tensor self) -> Tensor"],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(45),
    body: Body::Pointwise(|_| {
        let (g, x) = (input(0), input(1));
        let t = gate(x.clone());
        Ok(vec![g * (t.clone() + x.clone() * x.sigmoid() * (float(1.0) - t.clone() * t))])
    }),
    cases: || vec![Case::new("plain").f(&[9]).range(&[9], -6.0, 6.0)],
};

/// `tanh(softplus(x))`, the softplus so written that its exponential cannot overflow.
fn gate(x: Expr) -> Expr {
    (x.clone().max(float(0.0)) + (-x.abs()).exp().log1p()).tanh()
}
