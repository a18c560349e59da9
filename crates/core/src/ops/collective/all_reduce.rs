//! The sum over ranks, on every rank.

use super::{NO_GRADIENT, size, total, wide, worlds};
use crate::ops::{Body, Cost, OpDef, Precision};

/// The sum of `self` over the ranks of an axis, the same on all of them: f32 or f64 of any shape. Added up by
/// recursive halving, one stored addition at a time ([`crate::ranks::halving`]).
pub static ALL_REDUCE: OpDef = OpDef {
    name: "all_reduce",
    schemas: &["headwater::all_reduce(Tensor self, *, str axis, int ranks) -> Tensor"],
    infer: |cx| {
        size(cx)?;
        wide(cx)?;
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: NO_GRADIENT,
    precision: Precision::Full,
    cost: Cost::PerOutput(1),
    body: Body::Collective(|_, given, _| {
        let sum = total(given)?;
        Ok(given.iter().map(|_| vec![sum.clone()]).collect())
    }),
    cases: || [worlds(|c, _| c.f(&[2, 3])), worlds(|c, _| c.f(&[]))].concat(),
};
