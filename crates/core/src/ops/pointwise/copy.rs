//! Content replaced as a whole: what the in-place `copy_`, `fill_` and `zero_` compute.

use super::same;
use crate::attr::Attrs;
use crate::ensure;
use crate::ops::create::full::full_of;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, required};

/// `src` broadcast to `self`'s shape and converted to its dtype.
pub static COPY: OpDef = OpDef {
    name: "copy",
    schemas: &["copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor"],
    infer: same,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let ty = cx.ty(0)?;
        let src = b.cast(required(inputs, 1)?, ty.dtype)?;
        Ok(vec![b.expand(src, &ty.shape)?])
    }),
    cases: || vec![Case::new("broadcast").f(&[2, 3]).f(&[3]), Case::new("converted").index(&[2], 3).f(&[2])],
};

/// `value`, a number or a tensor of one, everywhere.
pub static FILL: OpDef = OpDef {
    name: "fill",
    schemas: &[
        "fill.Scalar(Tensor self, Scalar value) -> Tensor",
        "fill.Tensor(Tensor self, Tensor value) -> Tensor",
    ],
    infer: same,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let ty = cx.ty(0)?;
        if let Some(value) = inputs.get(1).copied().flatten() {
            ensure!(
                b.ty(value).shape.rank() == 0,
                Shape,
                "the value must have no dimensions: {}",
                cx.list_types()
            );
            return b.apply(&COPY, &[inputs[0], Some(value)], Attrs::new());
        }
        Ok(vec![full_of(b, cx, "value", ty)?])
    }),
    cases: || {
        vec![
            Case::new("number").f(&[2, 3]).attr("value", 1.5),
            Case::new("tensor").f(&[2, 3]).f(&[]),
            Case::new("large integer").index(&[2], 3).attr("value", i64::MAX),
        ]
    },
};

/// Zeros.
pub static ZERO: OpDef = OpDef {
    name: "zero",
    schemas: &["zero(Tensor self) -> Tensor"],
    infer: same,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, _| Ok(vec![b.full(cx.ty(0)?, 0.0)?])),
    cases: || vec![Case::new("plain").f(&[2, 3])],
};
