//! Hyperbolic tangent.

use super::{NO_SECOND, float_input, float_like, float_promoted, through_output};
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `tanh self`.
pub static TANH: OpDef = OpDef {
    name: "tanh",
    schemas: &["tanh(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| through_output(cx, &TANH_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.tanh()])),
    cases: || vec![Case::new("plain").range(&[3, 4], -3.0, 3.0)],
};

/// Gradient of [`TANH`]: `(grad_output, output)`; `g · (1 - y²)`.
pub static TANH_BACKWARD: OpDef = OpDef {
    name: "tanh_backward",
    schemas: &["tanh_backward(Tensor grad_output, Tensor output) -> Tensor"],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|_| Ok(vec![input(0) * (float(1.0) - input(1) * input(1))])),
    cases: || vec![Case::new("plain").f(&[4]).range(&[4], -1.0, 1.0)],
};
