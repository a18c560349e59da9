//! Broadcast to another tensor's shape.

use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::tensor::TensorType;

/// `self` expanded to the shape of `other`.
pub static EXPAND_AS: OpDef = OpDef {
    name: "expand_as",
    schemas: &["expand_as(Tensor(a) self, Tensor other) -> Tensor(a)"],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, cx.shape(1)?.clone())]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let x = inputs[0].ok_or_else(|| crate::fail!(Attribute, "input 0 is missing"))?;
        Ok(vec![b.expand(x, cx.shape(1)?)?])
    }),
    cases: || vec![Case::new("plain").f(&[3, 1]).f(&[2, 3, 4])],
};
