//! The sum of a matrix's diagonal.

use super::sum::{SUM, sum_dtype};
use crate::attr::Attrs;
use crate::ensure;
use crate::ops::view::diagonal::DIAGONAL;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, required};
use crate::tensor::TensorType;

/// The sum of the main diagonal of a matrix. Integers sum in i64.
pub static TRACE: OpDef = OpDef {
    name: "trace",
    schemas: &["trace(Tensor self) -> Tensor"],
    infer: |cx| {
        ensure!(cx.shape(0)?.rank() == 2, Shape, "a matrix is needed, got {}", cx.ty(0)?);
        Ok(vec![TensorType::new(sum_dtype(cx)?, [])])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b, _, inputs| {
        let diagonal = b.call(&DIAGONAL, &[required(inputs, 0)?])?;
        Ok(vec![b.one(&SUM, &[diagonal], Attrs::new())?])
    }),
    cases: || vec![Case::new("tall").f(&[3, 2]), Case::new("integers").index(&[2, 2], 9)],
};
