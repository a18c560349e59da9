//! Sum over dimensions.

use super::{expand_reduced, program, reduced_shape};
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::Instr;
use crate::tensor::TensorType;

/// Sum over `dim` (absent or empty: all). Integers and bools sum in i64.
pub static SUM: OpDef = OpDef {
    name: "sum",
    schemas: &[
        "sum(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        "sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(sum_dtype(cx)?, reduced_shape(cx)?)]),
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let g = cx.grad(0)?;
        let dx = expand_reduced(cx, g)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| {
        program(cx, out, |b, _, v| {
            let same = cx.dtype(0)?.class() == out[0].dtype.class();
            let v = if same { v } else { b.push(Instr::Cast(out[0].dtype, v)) };
            Ok([b.sum(v)])
        })
    }),
    cases: || {
        vec![
            Case::new("all").f(&[2, 3]),
            Case::new("middle").f(&[2, 3, 4]).attr("dim", [1]),
            Case::new("outer kept").f(&[2, 3, 4]).attr("dim", [0, -1]).attr("keepdim", true),
            Case::new("of nothing").f(&[2, 0]).attr("dim", [1]),
            Case::new("of ints").index(&[2, 3], 9).attr("dim", [0]),
        ]
    },
};

/// Dtype that sums, products and scans of input 0 have: attribute `dtype`, else its own if a float, else i64.
pub fn sum_dtype(cx: &OpCx) -> Result<DType> {
    let from = cx.dtype(0)?;
    Ok(cx.opt_dtype("dtype")?.unwrap_or(if from.class() == Class::Float { from } else { DType::I64 }))
}
