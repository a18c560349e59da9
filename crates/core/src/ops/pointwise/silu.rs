//! Sigmoid linear unit: Elfwing, Uchibe and Doya 2017; also called swish.

use super::{NO_SECOND, float_only, float_promoted, through_input};
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `x · sigmoid(x)`.
pub static SILU: OpDef = OpDef {
    name: "silu",
    schemas: &["silu(Tensor self) -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx| through_input(cx, &SILU_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(11),
    body: Body::Pointwise(|_| Ok(vec![input(0) * input(0).sigmoid()])),
    cases: || vec![Case::new("plain").range(&[3, 4], -5.0, 5.0)],
};

/// Gradient of [`SILU`]: `(grad_output, self)`; `g · s · (1 + x · (1 - s))` with `s = sigmoid(x)`.
pub static SILU_BACKWARD: OpDef = OpDef {
    name: "silu_backward",
    schemas: &["silu_backward(Tensor grad_output, Tensor self) -> Tensor"],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(15),
    body: Body::Pointwise(|_| {
        let (g, x, s) = (input(0), input(1), input(1).sigmoid());
        Ok(vec![g * s.clone() * (x * (float(1.0) - s) + 1.0)])
    }),
    cases: || vec![Case::new("plain").f(&[4]).range(&[4], -5.0, 5.0)],
};
