//! One rank's value, on every rank.

use super::{NO_GRADIENT, first, size, worlds};
use crate::ensure;
use crate::ops::{Body, Cost, OpDef, Precision};

/// `self` of rank `root` of an axis, on all of them.
pub static BROADCAST: OpDef = OpDef {
    name: "broadcast",
    schemas: &["headwater::broadcast(Tensor self, *, str axis, int ranks, int root) -> Tensor"],
    infer: |cx| {
        let (ranks, root) = (size(cx)?, cx.size("root")?);
        ensure!(root < ranks, Attribute, "rank {root} sends, of {ranks} ranks");
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: NO_GRADIENT,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Collective(|cx, given, _| {
        let sent = first(given)?[cx.size("root")?].clone();
        Ok(given.iter().map(|_| vec![sent.clone()]).collect())
    }),
    cases: || worlds(|c, ranks| c.f(&[2, 3]).attr("root", ranks as i64 - 1)),
};
