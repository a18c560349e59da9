//! Operators that reduce dimensions, and scans along one.

use crate::diagnostic::Result;
use crate::graph::ValueId;
use crate::ops::{GradCx, OpCx};
use crate::row::{ReduceSpace, Reg, RowBuilder, RowProgram};
use crate::tensor::TensorType;

operators! {
    amax: AMAX, AMIN, AMINMAX, EVENLY_DISTRIBUTE;
    any: ANY, ALL_TRUE;
    argmax: ARGMAX, ARGMIN;
    cdist: CDIST;
    cosine_similarity: COSINE_SIMILARITY;
    count_nonzero: COUNT_NONZERO;
    cov: COV, CORRCOEF;
    cummax: CUMMAX, CUMMIN;
    cumprod: CUMPROD, CUMPROD_BACKWARD;
    cumsum: CUMSUM;
    diff: DIFF;
    histc: HISTC;
    logcumsumexp: LOGCUMSUMEXP, LOGCUMSUMEXP_BACKWARD;
    logsumexp: LOGSUMEXP;
    matrix_norm: LINALG_MATRIX_NORM, LINALG_NORM;
    max: MAX, MIN, VALUE_SELECTING_REDUCTION_BACKWARD;
    mean: MEAN;
    nansum: NANSUM, NANMEAN;
    pairwise_distance: PAIRWISE_DISTANCE, DIST;
    pdist: PDIST;
    prod: PROD, PROD_BACKWARD;
    renorm: RENORM;
    sum: SUM;
    sum_to_size: SUM_TO_SIZE;
    trace: TRACE;
    trapezoid: TRAPEZOID, CUMULATIVE_TRAPEZOID;
    var: VAR, STD, VAR_MEAN, STD_MEAN, VAR_BACKWARD;
    vector_norm: VECTOR_NORM, VECTOR_NORM_BACKWARD;
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

/// Shape of input `i` with the dimensions `dim` as 1.
fn kept_shape(cx: &OpCx, i: usize) -> Result<Vec<usize>> {
    let x = cx.shape(i)?;
    let dims = cx.dims("dim", x.rank())?;
    Ok((0..x.rank()).map(|d| if dims.contains(&d) { 1 } else { x[d] }).collect())
}

/// A reduced value with the reduced dimensions back as 1, ready to broadcast against what it was reduced
/// from.
pub fn restore_reduced(cx: &mut GradCx, g: ValueId) -> Result<ValueId> {
    let kept = cx.of(|of| kept_shape(of, 0))?;
    cx.reshape(g, &kept)
}

/// A reduced value spread again over the shape it was reduced from.
pub fn expand_reduced(cx: &mut GradCx, g: ValueId) -> Result<ValueId> {
    let (g, x) = (restore_reduced(cx, g)?, cx.x(0)?);
    let shape = cx.ty(x).shape.clone();
    cx.expand(g, &shape)
}
