//! A value put where a mask holds.

use super::{element, filling, tensor};
use crate::dtype::DType;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::tensor::TensorType;

/// `mask ? value : self` in `self`'s dtype, broadcast; `value` is a number or a tensor of one.
pub static MASKED_FILL: OpDef = OpDef {
    name: "masked_fill",
    schemas: &[
        "masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor",
        "masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor",
    ],
    infer: |cx| {
        ensure!(cx.dtype(1)? == DType::Bool, DType, "the mask must be bool, got {}", cx.ty(1)?);
        let rank = cx.opt(2).map_or(0, |t| t.shape.rank());
        ensure!(rank == 0, Shape, "the value must have no dimensions, it has {rank}");
        Ok(vec![TensorType::new(cx.dtype(0)?, cx.broadcast()?)])
    },
    derivative: Derivative::Rule(|cx| {
        let (g, mask) = (cx.grad(0)?, cx.x(1)?);
        if cx.needs(0) {
            let dx = cx.drop_where(mask, g)?;
            cx.set(0, dx)?;
        }
        if cx.needs(2) {
            let dv = cx.keep_where(mask, g)?;
            cx.set(2, dv)?;
        }
        Ok(())
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let dtype = cx.dtype(0)?;
        let value = if cx.opt(2).is_some() { filling(cx, 2, dtype)? } else { element(cx, "value", dtype)? };
        Ok(vec![tensor(cx, 1, DType::Bool)?.select(value, tensor(cx, 0, dtype)?)])
    }),
    cases: || {
        vec![
            Case::new("number").f(&[2, 3]).mask(&[3]).attr("value", f64::NEG_INFINITY),
            Case::new("tensor").f(&[2, 3]).mask(&[2, 1]).f(&[]),
            Case::new("integers").index(&[3], 9).mask(&[3]).attr("value", i64::MAX),
        ]
    },
};
