//! Rectified linear unit.

use super::{NO_SECOND, number, number_like, promoted, scalar, tensor};
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `max(self, 0)`; NaN stays. Its derivative at 0 is 0.
pub static RELU: OpDef = OpDef {
    name: "relu",
    schemas: &["relu(Tensor self) -> Tensor"],
    infer: number_like,
    derivative: Derivative::Rule(|cx| {
        let (g, y) = (cx.grad(0)?, cx.y(0));
        // Taken of the output, as PyTorch does: the input need not be kept.
        let dx = cx.one(&THRESHOLD_BACKWARD, &[g, y], crate::Attrs::new().with("threshold", 0))?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| Ok(vec![input(0).max(number(0.0, cx.dtype(0)?))])),
    cases: || vec![Case::new("off zero").distinct(&[3, 4])],
};

/// Gradient of `relu` and `threshold`: `(grad_output, self)`; `g` where `self > threshold`, else 0.
pub static THRESHOLD_BACKWARD: OpDef = OpDef {
    name: "threshold_backward",
    schemas: &["threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor"],
    infer: promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&[]);
        let (g, x) = (tensor(cx, 0, dtype)?, tensor(cx, 1, dtype)?);
        // Written with `le`, so that the gradient passes where x is NaN, as in PyTorch.
        Ok(vec![x.le(scalar(cx, "threshold", dtype)?).select(number(0.0, dtype), g)])
    }),
    cases: || vec![Case::new("half").f(&[5]).distinct(&[5]).attr("threshold", 0.5)],
};
