//! Logistic function.

use super::{NO_SECOND, float_input, float_like, float_promoted, through_output};
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `1 / (1 + e^-self)`.
pub static SIGMOID: OpDef = OpDef {
    name: "sigmoid",
    schemas: &["sigmoid(Tensor self) -> Tensor", "special_expit(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| through_output(cx, &SIGMOID_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.sigmoid()])),
    cases: || vec![Case::new("plain").range(&[3, 4], -5.0, 5.0), Case::new("far").range(&[2], -800.0, 800.0)],
};

/// Gradient of [`SIGMOID`]: `(grad_output, output)`; `g · y · (1 - y)`.
pub static SIGMOID_BACKWARD: OpDef = OpDef {
    name: "sigmoid_backward",
    schemas: &["sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor"],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|_| Ok(vec![input(0) * (float(1.0) - input(1)) * input(1)])),
    cases: || vec![Case::new("plain").f(&[4]).range(&[4], 0.0, 1.0)],
};
