//! A dimension of size 1 inserted.

use super::{reshape_back, reshape_gradient};
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// A new dimension of size 1 at place `dim` of the result.
pub static UNSQUEEZE: OpDef = OpDef {
    name: "unsqueeze",
    schemas: &["unsqueeze(Tensor(a) self, int dim) -> Tensor(a)"],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, target(cx)?)]),
    derivative: Derivative::Rule(reshape_gradient),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View { layout: |cx, l, _| Ok(l.reshape(&target(cx)?)), scatter: Some(reshape_back) }),
    cases: || {
        vec![Case::new("last").f(&[2, 3]).attr("dim", -1), Case::new("of a scalar").f(&[]).attr("dim", 0)]
    },
};

fn target(cx: &OpCx) -> Result<Shape> {
    let mut shape = cx.shape(0)?.to_vec();
    let dim = cx.dim("dim", shape.len() + 1)?;
    shape.insert(dim, 1);
    Ok(shape.into())
}
