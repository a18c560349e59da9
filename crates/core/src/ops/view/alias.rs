//! The same tensor under another name.

use super::{reshape_back, reshape_gradient};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, View};

/// `self`: what only says something about memory is nothing here, where values have no memory.
pub static ALIAS: OpDef = OpDef {
    name: "alias",
    schemas: &[
        "alias(Tensor(a) self) -> Tensor(a)",
        "contiguous(Tensor(a) self, *, MemoryFormat memory_format=contiguous_format) -> Tensor(a)",
        "lift_fresh(Tensor(a) self) -> Tensor(a)",
        "positive(Tensor(a) self) -> Tensor(a)",
        "resolve_conj(Tensor(a) self) -> Tensor(a)",
        "resolve_neg(Tensor(a) self) -> Tensor(a)",
    ],
    infer: |cx| Ok(vec![cx.ty(0)?.clone()]),
    derivative: Derivative::Rule(reshape_gradient),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View { layout: |_, l, _| Ok(Some(l.clone())), scatter: Some(reshape_back) }),
    cases: || vec![Case::new("plain").f(&[2, 3])],
};
