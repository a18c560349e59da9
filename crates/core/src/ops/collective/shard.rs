//! The rank's part of a value that all ranks have.

use super::{NO_GRADIENT, elements, first, part, worlds};
use crate::ops::{Body, Cost, OpDef, Precision};

/// Part `r` of `self` `[n, …]` on rank `r` of an axis: `[n / ranks, …]`. Nothing is sent.
pub static SHARD: OpDef = OpDef {
    name: "shard",
    schemas: &["headwater::shard(Tensor self, *, str axis, int ranks) -> Tensor"],
    infer: |cx| Ok(vec![part(cx)?]),
    derivative: NO_GRADIENT,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Collective(|_, given, outs| {
        let ty = &outs[0];
        let own = |(rank, x)| vec![elements(x, rank * ty.shape.numel(), ty)];
        Ok(first(given)?.into_iter().enumerate().map(own).collect())
    }),
    cases: || worlds(|c, ranks| c.f(&[2 * ranks, 3])),
};
