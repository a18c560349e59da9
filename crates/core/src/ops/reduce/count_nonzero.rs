//! Number of elements that are not zero.

use super::{program, reduced_shape};
use crate::dtype::DType;
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::tensor::TensorType;

/// Number (i64) of elements over `dim` (absent: all) that are not zero.
pub static COUNT_NONZERO: OpDef = OpDef {
    name: "count_nonzero",
    schemas: &[
        "count_nonzero(Tensor self, int? dim=None) -> Tensor",
        "count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(DType::I64, reduced_shape(cx)?)]),
    derivative: Derivative::NotDifferentiable("a count has no derivative"),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| {
        program(cx, out, |b, _, v| {
            let one = b.expr(&input(0).cast(DType::Bool).cast(DType::I64), &[v]);
            Ok([b.sum(one)])
        })
    }),
    cases: || {
        vec![
            Case::new("all").index(&[3, 4], 2),
            Case::new("floats").f(&[3, 4]).attr("dim", 1),
            Case::new("bools").mask(&[3, 4]).attr("dim", [0, 1]),
        ]
    },
};
