//! Swish in straight lines and a parabola: Howard et al. 2019.

use super::{NO_SECOND, float_only, float_promoted, through_input};
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `x · min(max(x + 3, 0), 6) / 6`.
pub static HARDSWISH: OpDef = OpDef {
    name: "hardswish",
    schemas: &["hardswish(Tensor self) -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx| through_input(cx, &HARDSWISH_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(5),
    body: Body::Pointwise(|_| Ok(vec![input(0) * (input(0) + 3.0).max(float(0.0)).min(float(6.0)) / 6.0])),
    cases: || vec![Case::new("plain").range(&[9], -4.5, 4.5)],
};

/// Gradient of [`HARDSWISH`]: `(grad_output, self)`; 0 up to -3, `g` from 3, `g · (x / 3 + 1 / 2)` between.
pub static HARDSWISH_BACKWARD: OpDef = OpDef {
    name: "hardswish_backward",
    schemas: &["hardswish_backward(Tensor grad_output, Tensor self) -> Tensor"],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(5),
    body: Body::Pointwise(|_| {
        let (g, x) = (input(0), input(1));
        let right = x.clone().lt(float(3.0)).select(g.clone() * (x.clone() / 3.0 + 0.5), g);
        Ok(vec![x.le(float(-3.0)).select(float(0.0), right)])
    }),
    cases: || vec![Case::new("plain").f(&[9]).range(&[9], -4.5, 4.5)],
};
