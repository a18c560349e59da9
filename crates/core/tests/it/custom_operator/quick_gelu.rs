//! `mylib::quick_gelu`, as CLIP's first release has it: a custom pointwise operator.

use headwater_core::expr::{float, input};
use headwater_core::ops::pointwise::{NO_SECOND, float_only, float_promoted, through_input};
use headwater_core::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `x · sigmoid(1.702 · x)`.
pub static QUICK_GELU: OpDef = OpDef {
    name: "quick_gelu",
    schemas: &["mylib::quick_gelu(Tensor self) -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx| through_input(cx, &QUICK_GELU_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|_| Ok(vec![input(0) * (input(0) * 1.702).sigmoid()])),
    cases: || vec![Case::new("plain").range(&[3, 4], -4.0, 4.0)],
};

/// Gradient of [`QUICK_GELU`]: `(grad_output, self)`; `g · s · (1 + 1.702 · x · (1 - s))` with `s =
/// sigmoid(1.702 · x)`.
pub static QUICK_GELU_BACKWARD: OpDef = OpDef {
    name: "quick_gelu_backward",
    schemas: &[],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(16),
    body: Body::Pointwise(|_| {
        let (g, x, s) = (input(0), input(1), (input(1) * 1.702).sigmoid());
        Ok(vec![g * s.clone() * (x * 1.702 * (float(1.0) - s) + 1.0)])
    }),
    cases: || vec![Case::new("plain").f(&[4]).range(&[4], -4.0, 4.0)],
};
