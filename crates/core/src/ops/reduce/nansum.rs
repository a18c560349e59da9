//! Sums and means that leave NaN out.

use super::sum::{SUM, sum_dtype};
use super::{dims, reduced_shape};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::isnan::ISNAN;
use crate::ops::pointwise::logical::LOGICAL_NOT;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample, required};
use crate::tensor::TensorType;
use crate::{DType, ensure};

/// Sum over `dim` (absent or empty: all) of what is not NaN.
pub static NANSUM: OpDef = OpDef {
    name: "nansum",
    schemas: &[
        "nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(sum_dtype(cx)?, reduced_shape(cx)?)]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(3),
    body: Body::Decompose(|b, cx, inputs| {
        let x = required(inputs, 0)?;
        Ok(vec![sum(b, cx, x)?])
    }),
    cases,
};

/// Mean over `dim` (absent or empty: all) of what is not NaN; NaN where there is nothing else.
pub static NANMEAN: OpDef = OpDef {
    name: "nanmean",
    schemas: &[
        "nanmean(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    ],
    infer: |cx| {
        let dtype = cx.opt_dtype("dtype")?.unwrap_or(cx.dtype(0)?);
        ensure!(dtype.is_float() && cx.dtype(0)?.is_float(), DType, "the mean of {}", cx.ty(0)?);
        Ok(vec![TensorType::new(dtype, reduced_shape(cx)?)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(4),
    body: Body::Decompose(|b, cx, inputs| {
        let x = required(inputs, 0)?;
        let total = sum(b, cx, x)?;
        let nan = b.call(&ISNAN, &[x])?;
        let counted = b.call(&LOGICAL_NOT, &[nan])?;
        let count = b.one(&SUM, &[counted], over(cx)?)?;
        let dtype = b.ty(total).dtype;
        let count = b.cast(count, dtype)?;
        Ok(vec![b.div(total, count)?])
    }),
    cases,
};

fn over(cx: &OpCx) -> Result<Attrs> {
    let dims: Vec<i64> = dims(cx)?.into_iter().map(|d| d as i64).collect();
    Ok(Attrs::new().with("dim", dims).with("keepdim", cx.flag("keepdim")?))
}

/// The sum of what is not NaN.
fn sum(b: &mut Builder, cx: &OpCx, x: ValueId) -> Result<ValueId> {
    let numbers = if b.ty(x).dtype.is_float() {
        let nan = b.call(&ISNAN, &[x])?;
        b.drop_where(nan, x)?
    } else {
        x
    };
    b.one(&SUM, &[numbers], over(cx)?.with("dtype", sum_dtype(cx)?))
}

fn cases() -> Vec<Case> {
    let holes = Sample::Values(vec![1.0, f64::NAN, -2.0, 0.5, 3.0, f64::NAN]);
    vec![
        Case::new("all").f(&[2, 3]),
        Case::new("with NaN").arg(DType::F64, &[2, 3], holes).constant().attr("dim", [1]),
        Case::new("kept").f(&[2, 3]).attr("dim", [0]).attr("keepdim", true),
    ]
}
