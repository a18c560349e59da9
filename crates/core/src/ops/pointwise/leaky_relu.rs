//! Rectified linear unit that lets a part of what is negative through.

use super::{NO_SECOND, float_only, float_promoted, through_input};
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `x` above 0, `negative_slope · x` below and at 0.
pub static LEAKY_RELU: OpDef = OpDef {
    name: "leaky_relu",
    schemas: &["leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx| through_input(cx, &LEAKY_RELU_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| {
        let slope = cx.opt_float("negative_slope")?.unwrap_or(0.01);
        Ok(vec![input(0).gt(float(0.0)).select(input(0), input(0) * slope)])
    }),
    cases: || vec![Case::new("plain").distinct(&[7]).attr("negative_slope", 0.1)],
};

/// Gradient of [`LEAKY_RELU`]: `(grad_output, self)`.
pub static LEAKY_RELU_BACKWARD: OpDef = OpDef {
    name: "leaky_relu_backward",
    schemas: &[
        "leaky_relu_backward(Tensor grad_output, Tensor self, Scalar negative_slope, bool self_is_result) -> Tensor",
    ],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| {
        let slope = cx.opt_float("negative_slope")?.unwrap_or(0.01);
        Ok(vec![input(1).gt(float(0.0)).select(input(0), input(0) * slope)])
    }),
    cases: || vec![Case::new("plain").f(&[7]).distinct(&[7]).attr("negative_slope", 0.1)],
};
