//! Reshaped to another tensor's shape.

use super::{reshape_back, reshape_gradient};
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, View};
use crate::tensor::TensorType;

/// `self` under the shape of `other`.
pub static RESHAPE_AS: OpDef = OpDef {
    name: "reshape_as",
    schemas: &[
        "reshape_as(Tensor(a) self, Tensor other) -> Tensor(a)",
        "view_as(Tensor(a) self, Tensor other) -> Tensor(a)",
    ],
    infer: |cx| {
        let (x, other) = (cx.ty(0)?, cx.shape(1)?);
        ensure!(x.shape.numel() == other.numel(), Shape, "{x} has not as many elements as {other}");
        Ok(vec![TensorType::new(x.dtype, other.clone())])
    },
    derivative: Derivative::Rule(reshape_gradient),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View { layout: |cx, l, _| Ok(l.reshape(cx.shape(1)?)), scatter: Some(reshape_back) }),
    cases: || vec![Case::new("plain").f(&[2, 3]).f(&[6])],
};
