//! Tests for elements that are not zero: any, or all.

use super::{program, reduced_shape};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::{Expr, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::row::{Reduce, RowProgram};
use crate::tensor::TensorType;

/// True if any element over `dim` is non-zero; false of nothing. Bool (of u8: u8, as PyTorch).
pub static ANY: OpDef = OpDef {
    name: "any",
    schemas: &[
        "any(Tensor self) -> Tensor",
        "any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor",
        "any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        "_is_any_true(Tensor self) -> Tensor",
    ],
    infer,
    derivative: Derivative::NotDifferentiable("truth values have no derivative"),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| body(cx, out, Reduce::Max)),
    cases,
};

/// True if all elements over `dim` are non-zero; true of nothing.
pub static ALL_TRUE: OpDef = OpDef {
    name: "all",
    schemas: &[
        "all(Tensor self) -> Tensor",
        "all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor",
        "all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        "_is_all_true(Tensor self) -> Tensor",
    ],
    infer,
    derivative: Derivative::NotDifferentiable("truth values have no derivative"),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| body(cx, out, Reduce::Min)),
    cases,
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let dtype = if cx.dtype(0)? == DType::U8 { DType::U8 } else { DType::Bool };
    Ok(vec![TensorType::new(dtype, reduced_shape(cx)?)])
}

fn body(cx: &OpCx, out: &[TensorType], op: Reduce) -> Result<RowProgram> {
    program(cx, out, |b, _, v| {
        let v = b.expr(&input(0).cast(DType::Bool).cast(DType::I64), &[v]);
        let v = b.reduce(op, v);
        // The empty set: the largest is very negative and the smallest very large: neither is 0 or 1.
        Ok([b.expr(&input(0).gt(Expr::Int(0)).cast(out[0].dtype), &[v])])
    })
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("all").mask(&[2, 3]),
        Case::new("one kept").index(&[3, 4], 2).attr("dim", 1).attr("keepdim", true),
        Case::new("of floats").f(&[2, 3]).attr("dim", [0]),
        Case::new("of nothing").mask(&[2, 0]).attr("dim", 1),
    ]
}
