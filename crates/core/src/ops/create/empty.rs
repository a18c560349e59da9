//! Memory whose content does not matter.

use super::{like, new, sized};
use crate::dtype::DType;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `size` of zeros; f32 unless a dtype is given. PyTorch leaves the content undefined; here it is
/// always zero, so that a run can be repeated.
pub static EMPTY: OpDef = OpDef {
    name: "empty",
    schemas: &[
        "empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        "empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "empty_permuted(SymInt[] size, int[] physical_layout, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| sized(cx, DType::F32),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, _| Ok(vec![b.full(&sized(cx, DType::F32)?[0], 0.0)?])),
    cases: || {
        vec![
            Case::new("default").attr("size", [2, 3]),
            Case::new("bools").attr("size", [2]).attr("dtype", DType::Bool),
        ]
    },
};

/// Zeros in the shape and, unless given, the dtype of `self`.
pub static EMPTY_LIKE: OpDef = OpDef {
    name: "empty_like",
    schemas: &[
        "empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
    ],
    infer: like,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, _| Ok(vec![b.full(&like(cx)?[0], 0.0)?])),
    cases: || {
        vec![Case::new("floats").f(&[2, 3]), Case::new("other dtype").f(&[2]).attr("dtype", DType::I32)]
    },
};

/// `size` of zeros, unless given in the dtype of `self`.
pub static NEW_EMPTY: OpDef = OpDef {
    name: "new_empty",
    schemas: &[
        "new_empty(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: new,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, _| Ok(vec![b.full(&new(cx)?[0], 0.0)?])),
    cases: || vec![Case::new("own dtype").f(&[2]).attr("size", [3, 0])],
};
