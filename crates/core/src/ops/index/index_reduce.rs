//! Slices along a dimension combined with those there are.

use super::integers;
use super::scatter::SCATTER;
use crate::attr::Attrs;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};

/// `self` with its slices `index` along `dim` combined with those of `source` as [`SCATTER`]'s `reduce` says.
pub static INDEX_REDUCE: OpDef = OpDef {
    name: "index_reduce",
    schemas: &[
        "index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor",
    ],
    infer: |cx| {
        let (x, index, source) = (cx.ty(0)?, cx.ty(1)?, cx.ty(2)?);
        integers(cx, 1)?;
        let rank = x.shape.rank();
        let dim = cx.dim("dim", rank)?;
        let mut want = x.shape.to_vec();
        ensure!(rank > 0 && index.shape.rank() == 1, Shape, "slices {index} of {x}");
        want[dim] = index.shape[0];
        ensure!(
            source.shape[..] == want[..] && source.dtype == x.dtype,
            Shape,
            "source {source} for slices of {x}"
        );
        super::scatter::combine(cx)?;
        super::scatter::include_self(cx)?;
        Ok(vec![x.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (source, rank) = (cx.shape(2)?, cx.shape(0)?.rank());
        let dim = cx.dim("dim", rank)?;
        let mut shape = vec![1; rank];
        shape[dim] = source[dim];
        let index = b.reshape(required(inputs, 1)?, &shape)?;
        let index = b.expand(index, source)?;
        let attrs = Attrs::new().with("dim", dim as i64);
        let attrs = attrs.with("reduce", cx.opt_str("reduce")?.unwrap_or("prod"));
        let attrs = attrs.with("include_self", super::scatter::include_self(cx)?);
        Ok(vec![b.one(&SCATTER, &[required(inputs, 0)?, index, required(inputs, 2)?], attrs)?])
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[3, 2]).index(&[4], 3).f(&[4, 2]).attr("dim", 0);
        vec![
            case("products").attr("reduce", "prod"),
            case("largest without").attr("reduce", "amax").attr("include_self", false),
        ]
    },
};
