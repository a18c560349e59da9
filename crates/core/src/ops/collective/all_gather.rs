//! The parts of all ranks, concatenated.

use super::{NO_GRADIENT, first, joined, size, worlds};
use crate::ops::{Body, Cost, OpDef, Precision};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `self` `[n, …]` of all ranks of an axis in their order, `[n · ranks, …]`: the same on all of them.
pub static ALL_GATHER: OpDef = OpDef {
    name: "all_gather",
    schemas: &["headwater::all_gather(Tensor self, *, str axis, int ranks) -> Tensor"],
    infer: |cx| {
        let (ranks, ty) = (size(cx)?, cx.ty(0)?);
        ensure!(ty.shape.rank() > 0, Shape, "a scalar has no first dimension: reshape it to [1]");
        let mut shape = ty.shape.to_vec();
        shape[0] = shape[0].checked_mul(ranks).ok_or_else(|| fail!(Size, "{ty} of {ranks} ranks"))?;
        Ok(vec![TensorType::new(ty.dtype, shape)])
    },
    derivative: NO_GRADIENT,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Collective(|_, given, outs| {
        let whole = joined(&first(given)?, &outs[0]);
        Ok(given.iter().map(|_| vec![whole.clone()]).collect())
    }),
    cases: || [worlds(|c, _| c.f(&[2, 3])), worlds(|c, _| c.index(&[1], 9))].concat(),
};
