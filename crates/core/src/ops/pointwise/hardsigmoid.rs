//! Logistic function in straight lines.

use super::{NO_SECOND, float_only, float_promoted, through_input};
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `min(max(x + 3, 0), 6) / 6`.
pub static HARDSIGMOID: OpDef = OpDef {
    name: "hardsigmoid",
    schemas: &["hardsigmoid(Tensor self) -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx| through_input(cx, &HARDSIGMOID_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|_| Ok(vec![(input(0) + 3.0).max(float(0.0)).min(float(6.0)) / 6.0])),
    cases: || vec![Case::new("plain").range(&[9], -4.5, 4.5)],
};

/// Gradient of [`HARDSIGMOID`]: `(grad_output, self)`; `g / 6` strictly between -3 and 3, else 0.
pub static HARDSIGMOID_BACKWARD: OpDef = OpDef {
    name: "hardsigmoid_backward",
    schemas: &["hardsigmoid_backward(Tensor grad_output, Tensor self) -> Tensor"],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|_| {
        let inside = input(1).gt(float(-3.0)).and(input(1).lt(float(3.0)));
        Ok(vec![inside.select(input(0) * (1.0 / 6.0), float(0.0))])
    }),
    cases: || vec![Case::new("plain").f(&[9]).range(&[9], -4.5, 4.5)],
};
