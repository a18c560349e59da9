//! Conversion to another tensor's dtype.

use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, required};
use crate::tensor::TensorType;

/// `self` in the dtype of `other`.
pub static TYPE_AS: OpDef = OpDef {
    name: "type_as",
    schemas: &[
        "type_as(Tensor self, Tensor other) -> Tensor",
        "to.other(Tensor(a) self, Tensor other, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)",
    ],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(1)?, cx.shape(0)?.clone())]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b, cx, inputs| Ok(vec![b.cast(required(inputs, 0)?, cx.dtype(1)?)?])),
    cases: || {
        vec![Case::new("to integers").f(&[3]).index(&[2], 3), Case::new("to floats").index(&[3], 9).f(&[1])]
    },
};
