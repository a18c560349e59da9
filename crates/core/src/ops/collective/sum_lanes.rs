//! The sum over lanes, of which every rank has added up some, on every rank.

use super::{NO_GRADIENT, size, worlds};
use crate::ensure;
use crate::ops::{Body, Cost, OpDef, Precision};
use crate::ranks::{MOST, joining, parts_by_rank};
use crate::tensor::{Data, Tensor};

/// The sum of `lanes` lanes, the same on all ranks of an axis. Each rank has a contiguous range of lanes
/// ([`crate::ranks::lanes_of`]) and has added them up as far as recursive halving goes without the others:
/// `sums` are what is left, the latest first, then the others from the first on. All are f32 or f64 of one
/// shape. A rank of fewer sums than others gives anything in place of those that it has not.
pub static SUM_LANES: OpDef = OpDef {
    name: "sum_lanes",
    schemas: &["headwater::sum_lanes(Tensor[] sums, *, str axis, int ranks, int lanes) -> Tensor"],
    infer: |cx| {
        let (ranks, lanes, given) = (size(cx)?, cx.size("lanes")?, cx.present().count());
        ensure!(ranks <= lanes, Attribute, "{ranks} ranks share {lanes} lanes: one of them would have none");
        ensure!(lanes <= MOST, Attribute, "{lanes} lanes: at most {MOST} are possible");
        let most = parts_by_rank(lanes, ranks).into_iter().max().unwrap_or(1);
        ensure!(given >= most, Attribute, "{given} sums, a rank may have {most}");
        let first = cx.ty(0)?;
        let wide = first.dtype.is_float() && first.dtype.size() >= 4;
        ensure!(wide, DType, "lanes are added up in f32 or wider, not in {}", first.dtype);
        ensure!(cx.present().all(|ty| ty == first), Shape, "sums of several types");
        Ok(vec![first.clone()])
    },
    derivative: NO_GRADIENT,
    precision: Precision::Full,
    cost: Cost::PerInput(1),
    body: Body::Collective(|cx, given, _| {
        let lanes = cx.size("lanes")?;
        let counts = parts_by_rank(lanes, given.len());
        let mut all: Vec<Tensor> = Vec::new();
        for (own, count) in given.iter().zip(counts) {
            let sums: Vec<&Tensor> = own.iter().copied().flatten().collect();
            ensure!(sums.len() >= count, Attribute, "{} sums of {count}", sums.len());
            all.extend(in_order(count).map(|i| sums[i].clone()));
        }
        for (into, from) in joining(lanes, given.len()) {
            let dtype = all[into].dtype();
            let sums = all[into].floats().iter().zip(all[from].floats());
            // Exact: twice the digits of f32 and two more are in f64, so it is rounded once.
            let sums = sums.map(|(a, b)| dtype.round(a + b)).collect();
            all[into].data = Data::Float(sums);
        }
        let sum = all.swap_remove(0);
        Ok(given.iter().map(|_| vec![sum.clone()]).collect())
    }),
    cases: || {
        let few = worlds(|c, ranks| c.f(&[2, 3]).attr("lanes", ranks as i64));
        let many = worlds(|c, ranks| {
            c.f(&[2, 3]).f(&[2, 3]).f(&[2, 3]).f(&[2, 3]).attr("lanes", 2 * ranks as i64 + 1)
        });
        [few, many].concat()
    },
};

/// Places of a rank's sums among the operands, in the order of their lanes.
pub fn in_order(count: usize) -> impl Iterator<Item = usize> {
    (1..count).chain(std::iter::once(0))
}
