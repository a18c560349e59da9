//! Operators that reduce dimensions, and scans along one.

use crate::diagnostic::Result;
use crate::graph::ValueId;
use crate::ops::{GradCx, OpCx};
use crate::row::{ReduceSpace, Reg, RowBuilder, RowProgram};
use crate::tensor::TensorType;

operators! {
    amax: AMAX, AMIN, EVENLY_DISTRIBUTE;
    any: ANY, ALL_TRUE;
    argmax: ARGMAX, ARGMIN;
    cumsum: CUMSUM;
    diff: DIFF;
    histc: HISTC;
    max: MAX, MIN, VALUE_SELECTING_REDUCTION_BACKWARD;
    mean: MEAN;
    sum: SUM;
}

/// The dimensions that input 0 is reduced over, ascending: attribute `dim`, all if absent or empty.
pub fn dims(cx: &OpCx) -> Result<Vec<usize>> {
    cx.dims("dim", cx.shape(0)?.rank())
}

/// Shape of input 0 after reducing `dim` with `keepdim`.
pub fn reduced_shape(cx: &OpCx) -> Result<Vec<usize>> {
    let (x, dims, keep) = (cx.shape(0)?, dims(cx)?, cx.flag("keepdim")?);
    let kept = (0..x.rank()).filter(|d| keep || !dims.contains(d));
    Ok(kept.map(|d| if dims.contains(&d) { 1 } else { x[d] }).collect())
}

/// Number of elements reduced to one.
pub fn reduced_count(cx: &OpCx) -> Result<usize> {
    let x = cx.shape(0)?;
    Ok(dims(cx)?.iter().map(|&d| x[d]).product())
}

/// The program that reduces input 0: `f` turns the loaded elements into one row scalar for each output.
pub fn program<const N: usize>(
    cx: &OpCx,
    out: &[TensorType],
    f: impl FnOnce(&mut RowBuilder, &ReduceSpace, Reg) -> Result<[Reg; N]>,
) -> Result<RowProgram> {
    let x = cx.ty(0)?;
    let space = ReduceSpace::new(&x.shape, &dims(cx)?);
    let mut b = space.builder();
    let v = b.read(x.dtype, space.full.clone());
    let access = if cx.flag("keepdim")? { &space.kept } else { &space.dropped };
    for (reg, ty) in f(&mut b, &space, v)?.into_iter().zip(out) {
        b.store(ty.dtype, access.clone(), reg);
    }
    Ok(b.finish())
}

/// A reduced value with the reduced dimensions back as 1, ready to broadcast against what it was reduced from.
pub fn restore_reduced(cx: &mut GradCx, g: ValueId) -> Result<ValueId> {
    let types = cx.types();
    let of = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: cx.attrs() };
    let (x, dims) = (of.shape(0)?, dims(&of)?);
    let kept: Vec<usize> = (0..x.rank()).map(|d| if dims.contains(&d) { 1 } else { x[d] }).collect();
    cx.reshape(g, &kept)
}

/// A reduced value spread again over the shape it was reduced from.
pub fn expand_reduced(cx: &mut GradCx, g: ValueId) -> Result<ValueId> {
    let (g, x) = (restore_reduced(cx, g)?, cx.x(0)?);
    let shape = cx.ty(x).shape.clone();
    cx.expand(g, &shape)
}
