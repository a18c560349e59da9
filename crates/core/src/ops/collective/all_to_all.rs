//! Every rank's part for every other.

use super::{NO_GRADIENT, elements, first, joined, part, worlds};
use crate::ops::{Body, Cost, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};

/// `self` `[n, …]` in as many parts as there are ranks on the axis: part `q` goes to rank `q`, which has them
/// in the order of the ranks that they come from, `[n, …]`.
pub static ALL_TO_ALL: OpDef = OpDef {
    name: "all_to_all",
    schemas: &["headwater::all_to_all(Tensor self, *, str axis, int ranks) -> Tensor"],
    infer: |cx| {
        part(cx)?;
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: NO_GRADIENT,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Collective(|cx, given, outs| {
        let (from, ty): (_, TensorType) = (first(given)?, part(cx)?);
        let own = |rank: usize| {
            let parts: Vec<Tensor> = from.iter().map(|x| elements(x, rank * ty.shape.numel(), &ty)).collect();
            vec![joined(&parts.iter().collect::<Vec<_>>(), &outs[0])]
        };
        Ok((0..given.len()).map(own).collect())
    }),
    cases: || worlds(|c, ranks| c.f(&[2 * ranks, 3])),
};
