//! Rows of a table held to a norm before they are read.

use super::index_put::INDEX_PUT_IMPL;
use super::integers;
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::compare::GT;
use crate::ops::pointwise::logical::LOGICAL_AND;
use crate::ops::pointwise::reciprocal::RECIPROCAL;
use crate::ops::reduce::vector_norm::VECTOR_NORM;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::tensor::TensorType;

/// `self [rows, width]` with each row that `indices` names, and whose norm is larger than `max_norm`, scaled
/// by `max_norm / (norm + 1e-7)`.
pub static EMBEDDING_RENORM: OpDef = OpDef {
    name: "embedding_renorm",
    schemas: &[
        "embedding_renorm_(Tensor(a!) self, Tensor indices, float max_norm, float norm_type) -> Tensor(a!)",
    ],
    infer: |cx| {
        let x = cx.ty(0)?;
        integers(cx, 1)?;
        let (p, most) = (cx.float("norm_type")?, cx.float("max_norm")?);
        ensure!(x.dtype.is_float() && x.shape.rank() == 2, Shape, "a table of floats is needed, got {x}");
        ensure!(p > 0.0 && most >= 0.0, Attribute, "`norm_type` {p} with `max_norm` {most}");
        Ok(vec![x.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(4),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (x, ty, most) = (required(inputs, 0)?, cx.ty(0)?, cx.float("max_norm")?);
        let index = b.reshape(required(inputs, 1)?, &[cx.shape(1)?.numel()])?;
        let none = b.full(&TensorType::new(DType::Bool, [ty.shape[0]]), 0.0)?;
        let some = b.full(&TensorType::new(DType::Bool, []), 1.0)?;
        let attrs = Attrs::new().with("accumulate", false).with("wrap", false);
        let read = b.one(&INDEX_PUT_IMPL, &[none, index, some], attrs)?;
        let read = b.unsqueeze(read, 1)?;
        let attrs = Attrs::new().with("ord", cx.float("norm_type")?).with("dim", [1]).with("keepdim", true);
        let norm = b.one(&VECTOR_NORM, &[x], attrs)?;
        let large = b.one(&GT, &[norm], Attrs::new().with("other", most))?;
        let large = b.call(&LOGICAL_AND, &[large, read])?;
        let more = b.shift(norm, 1e-7)?;
        let scale = b.call(&RECIPROCAL, &[more])?;
        let scale = b.scale(scale, most)?;
        let one = b.full(&TensorType::new(ty.dtype, b.ty(norm).shape.clone()), 1.0)?;
        let scale = b.choose(large, scale, one)?;
        Ok(vec![b.mul(x, scale)?])
    }),
    cases: || {
        vec![
            Case::new("rows").f(&[4, 3]).index(&[2, 2], 4).attr("max_norm", 1.0).attr("norm_type", 2.0),
            Case::new("sums").distinct(&[3, 2]).index(&[2], 3).attr("max_norm", 0.5).attr("norm_type", 1.0),
        ]
    },
};
