//! The sum over ranks, divided among them.

use super::{NO_GRADIENT, elements, part, total, wide, worlds};
use crate::ops::{Body, Cost, OpDef, Precision};

/// The rank's part of the sum of `self` `[n, …]` over the ranks of an axis: `[n / ranks, …]`, f32 or f64. The
/// sum is that of [`super::all_reduce::ALL_REDUCE`], to the bit.
pub static REDUCE_SCATTER: OpDef = OpDef {
    name: "reduce_scatter",
    schemas: &["headwater::reduce_scatter(Tensor self, *, str axis, int ranks) -> Tensor"],
    infer: |cx| {
        wide(cx)?;
        Ok(vec![part(cx)?])
    },
    derivative: NO_GRADIENT,
    precision: Precision::Full,
    cost: Cost::PerInput(1),
    body: Body::Collective(|_, given, outs| {
        let (sum, ty) = (total(given)?, &outs[0]);
        let own = |rank| vec![elements(&sum, rank * ty.shape.numel(), ty)];
        Ok((0..given.len()).map(own).collect())
    }),
    cases: || worlds(|c, ranks| c.f(&[2 * ranks, 3])),
};
