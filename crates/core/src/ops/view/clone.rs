//! A copy. Values never change here, so that a copy is the value itself.

use crate::ops::pointwise::same;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `self`, not sharing its memory: writing to one does not change the other.
pub static CLONE: OpDef = OpDef {
    name: "clone",
    schemas: &[
        "clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor",
        "lift_fresh_copy(Tensor self) -> Tensor",
        "lift(Tensor self) -> Tensor",
        "alias_copy(Tensor self) -> Tensor",
        "_lazy_clone(Tensor self) -> Tensor",
    ],
    infer: same,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|_, _, inputs| Ok(inputs.iter().copied().flatten().collect())),
    cases: || vec![Case::new("plain").f(&[2, 3])],
};
