//! Collectives: what the ranks along an axis of the mesh compute jointly. Each is a node on that axis, with
//! the attributes `axis` (its name) and `ranks` (its size). The body is a function from the inputs of all
//! ranks to the outputs of all ranks.

operators! {
    all_gather: ALL_GATHER;
    all_reduce: ALL_REDUCE;
    all_to_all: ALL_TO_ALL;
    broadcast: BROADCAST;
    reduce_scatter: REDUCE_SCATTER;
    shard: SHARD;
    sum_lanes: SUM_LANES;
}

use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Derivative, OpCx, OpDef};
use crate::ranks::{DATA, MOST, halving};
use crate::tensor::{Data, Tensor, TensorType};
use crate::{ensure, fail};

/// Inputs of a collective, by rank.
pub type Given<'a> = [Vec<Option<&'a Tensor>>];

const NO_GRADIENT: Derivative =
    Derivative::NotDifferentiable("collectives follow the gradients in a step, they do not precede them");

/// Ranks that take part in a collective of these attributes; 1 if they do not say.
pub fn ranks(attrs: &Attrs) -> usize {
    match attrs.get("ranks") {
        Some(Attr::Int(n)) => usize::try_from(*n).unwrap_or(0),
        _ => 1,
    }
}

/// The axis of a collective of these attributes.
pub fn axis(attrs: &Attrs) -> &str {
    match attrs.get("axis") {
        Some(Attr::Str(name)) => name,
        _ => DATA,
    }
}

/// True if ranks meet in the operator.
pub fn is_collective(op: &OpDef) -> bool {
    matches!(op.body, Body::Collective(_))
}

/// Attributes of a collective on an axis.
pub fn on(axis: &'static str, ranks: usize) -> Attrs {
    Attrs::new().with("axis", axis).with("ranks", ranks as i64)
}

/// Ranks by the attributes, at least one.
fn size(cx: &OpCx) -> Result<usize> {
    let ranks = cx.size("ranks")?;
    ensure!(
        (1..=MOST).contains(&ranks),
        Attribute,
        "a collective of {ranks} ranks: 1 to {MOST} are possible"
    );
    ensure!(cx.opt_str("axis")?.is_some_and(|a| !a.is_empty()), Attribute, "attribute `axis` is missing");
    Ok(ranks)
}

/// The type of a part of input 0 for one rank: its first dimension divided.
fn part(cx: &OpCx) -> Result<TensorType> {
    let (ranks, ty) = (size(cx)?, cx.ty(0)?);
    let first = ty.shape.first().copied().ok_or_else(|| fail!(Shape, "a scalar has no parts"))?;
    ensure!(first.is_multiple_of(ranks), Shape, "{ty} does not divide into {ranks} parts");
    let mut shape = ty.shape.to_vec();
    shape[0] = first / ranks;
    Ok(TensorType::new(ty.dtype, shape))
}

/// Refuses sums in less than f32.
fn wide(cx: &OpCx) -> Result<()> {
    let dtype = cx.dtype(0)?;
    let exact = dtype.is_float() && dtype.size() >= 4;
    ensure!(exact, DType, "ranks add up in f32 or wider, not in {dtype}: convert the operand first");
    Ok(())
}

/// Input 0 of every rank.
fn first<'a>(given: &Given<'a>) -> Result<Vec<&'a Tensor>> {
    let own = |inputs: &Vec<Option<&'a Tensor>>| inputs.first().copied().flatten();
    given.iter().map(|g| own(g).ok_or_else(|| fail!(Attribute, "input 0 is missing"))).collect()
}

/// Elements `from..from + ty.numel()` of a tensor in row-major order.
fn elements(x: &Tensor, from: usize, ty: &TensorType) -> Tensor {
    let range = from..from + ty.shape.numel();
    let data = match &x.data {
        Data::Float(v) => Data::Float(v[range].to_vec()),
        Data::Int(v) => Data::Int(v[range].to_vec()),
    };
    Tensor { ty: ty.clone(), data }
}

/// Tensors concatenated along the first dimension, as one of type `ty`.
fn joined(parts: &[&Tensor], ty: &TensorType) -> Tensor {
    let data = match parts.first().map(|p| &p.data) {
        Some(Data::Int(_)) => Data::Int(parts.iter().flat_map(|p| p.ints().to_vec()).collect()),
        _ => Data::Float(parts.iter().flat_map(|p| p.floats().to_vec()).collect()),
    };
    Tensor { ty: ty.clone(), data }
}

/// The sum over ranks by recursive halving ([`halving`]); every sum is stored in the operands' dtype.
fn total(given: &Given) -> Result<Tensor> {
    let mut all: Vec<Tensor> = first(given)?.into_iter().cloned().collect();
    for (into, from) in halving(all.len()) {
        let dtype = all[into].dtype();
        let sums = all[into].floats().iter().zip(all[from].floats());
        // Exact: twice the digits of f32 and two more are in f64, so it is rounded once.
        let sums = sums.map(|(a, b)| dtype.round(a + b)).collect();
        all[into].data = Data::Float(sums);
    }
    Ok(all.swap_remove(0))
}

/// Cases for worlds of 1, 2, 3, 4 and 8 ranks, of a tensor whose first dimension they divide.
fn worlds(make: fn(Case, usize) -> Case) -> Vec<Case> {
    let named = [("alone", 1), ("two", 2), ("three", 3), ("four", 4), ("eight", 8)];
    let case = |(name, ranks): (&'static str, usize)| {
        make(Case::new(name).attr("axis", DATA).attr("ranks", ranks as i64), ranks)
    };
    named.into_iter().map(case).collect()
}
