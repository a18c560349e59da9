//! Normalisations and softmax. Statistics are kept in f32 (f64 of f64) whatever the input is stored in.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::ops::{GradCx, OpCx};
use crate::row::{Reg, RowBuilder};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{Attrs, OpDef, ensure};

operators! {
    batch_norm: BATCH_NORM, BATCH_NORM_TRAIN, BATCH_NORM_EVAL, BATCH_NORM_BACKWARD;
    group_norm: GROUP_NORM, GROUP_NORM_BACKWARD, GROUP_NORM_BACKWARD_WEIGHT;
    instance_norm: INSTANCE_NORM;
    layer_norm: LAYER_NORM, LAYER_NORM_BACKWARD;
    log_softmax: LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD;
    rms_norm: RMS_NORM, RMS_NORM_BACKWARD;
    softmax: SOFTMAX, SOFTMAX_BACKWARD;
    weight_norm: WEIGHT_NORM;
}

/// Dtype of a norm's statistics for inputs of `dtype`.
///
/// # Errors
/// `DType` if it is not a float.
pub fn stat_dtype(dtype: DType) -> Result<DType> {
    ensure!(dtype.is_float(), DType, "norms need floats, got {dtype}");
    Ok(if dtype == DType::F64 { DType::F64 } else { DType::F32 })
}

/// First of the dimensions of input `x` that `normalized_shape` names.
///
/// # Errors
/// `Shape` if they are not its trailing ones, or an affine parameter in `params` does not have that shape.
fn normalized(cx: &OpCx, x: usize, params: &[usize]) -> Result<usize> {
    let (x, n) = (cx.shape(x)?, cx.sizes("normalized_shape")?);
    let fits = n.rank() > 0 && x.rank() >= n.rank() && x[x.rank() - n.rank()..] == n[..];
    ensure!(fits, Shape, "`normalized_shape` {n} is not the end of {x}");
    params.iter().try_for_each(|&i| cx.expect_floats(i, &n))?;
    Ok(x.rank() - n.rank())
}

/// Shape of row statistics: dimensions `first..` of `x` are 1.
fn row_stats(x: &Shape, first: usize) -> Shape {
    (0..x.rank()).map(|d| if d < first { x[d] } else { 1 }).collect()
}

/// Which of its `n` gradients a backward operator computes: attribute `output_mask`. Its outputs are just
/// those.
fn output_mask(cx: &OpCx, n: usize) -> Result<Vec<bool>> {
    let mask = cx.ints("output_mask")?;
    ensure!(mask.len() == n, Attribute, "`output_mask` must have {n} entries, got {}", mask.len());
    Ok(mask.iter().map(|&m| m != 0).collect())
}

/// Stores those of a backward operator's results that are requested.
fn only<T>(mask: &[bool], all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    all.into_iter().zip(mask.to_vec()).filter_map(|(x, m)| m.then_some(x))
}

/// Applies the backward operator `op` for the gradients of the inputs `0..arity` that are needed, and sets
/// them. `also` is added to that of input 0.
fn backward(
    cx: &mut GradCx,
    op: &'static OpDef,
    inputs: &[Option<ValueId>],
    attrs: Attrs,
    arity: usize,
    also: Option<ValueId>,
) -> Result<()> {
    let mask: Vec<i64> = (0..arity).map(|i| cx.needs(i) as i64).collect();
    let outs = cx.apply(op, inputs, attrs.with("output_mask", mask))?;
    let wanted: Vec<usize> = (0..arity).filter(|&i| cx.needs(i)).collect();
    for (i, mut g) in wanted.into_iter().zip(outs) {
        if let (0, Some(also)) = (i, also) {
            g = cx.add(g, also)?;
        }
        cx.set(i, g)?;
    }
    Ok(())
}

/// The gradient that flows into the input `x` through the statistics of its rows, outputs of the node, if any
/// does. With n elements a row, `∂mean/∂x = 1/n` and `∂rstd/∂x = −rstd³ · (x − mean) / n`. Without a mean
/// (`None`) it counts as 0.
fn through_statistics(cx: &mut GradCx, mean: Option<usize>, rstd: usize) -> Result<Option<ValueId>> {
    let (g_mean, g_rstd) = (mean.and_then(|i| cx.opt_grad(i)), cx.opt_grad(rstd));
    let (x, stat) = (cx.x(0)?, cx.y(rstd));
    let (shape, stats) = (cx.ty(x).shape.clone(), cx.ty(stat).shape.numel());
    let n = shape.numel() / stats.max(1);
    let column = |cx: &mut GradCx, v: ValueId| cx.reshape(v, &[stats, 1]);
    let mut total = None;
    if let Some(g) = g_rstd {
        let mut centred = cx.reshape(x, &[stats, n])?;
        if let Some(i) = mean {
            let mean = column(cx, cx.y(i))?;
            centred = cx.sub(centred, mean)?;
        }
        let (g, stat) = (column(cx, g)?, column(cx, stat)?);
        let cube = cx.power(stat, 3)?;
        let slope = cx.mul(g, cube)?;
        let slope = cx.scale(slope, -1.0 / n as f64)?;
        total = Some(cx.mul(centred, slope)?);
    }
    if let Some(g) = g_mean {
        let g = column(cx, g)?;
        let g = cx.scale(g, 1.0 / n as f64)?;
        total = Some(match total {
            Some(t) => cx.add(t, g)?,
            None => cx.expand(g, &[stats, n])?,
        });
    }
    total.map(|t| cx.reshape(t, &shape)).transpose()
}

/// Mean and biased variance of a row of `n` elements, and the elements less their mean.
fn moments(b: &mut RowBuilder, v: Reg, n: usize) -> [Reg; 3] {
    use crate::expr::input;
    let sum = b.sum(v);
    let mean = b.expr(&(input(0) / n as f64), &[sum]);
    let centred = b.expr(&(input(0) - input(1)), &[v, mean]);
    let square = b.expr(&(input(0) * input(0)), &[centred]);
    let square = b.sum(square);
    let var = b.expr(&(input(0) / n as f64), &[square]);
    [mean, var, centred]
}

/// `v · weight + bias`, each if present.
fn affine(b: &mut RowBuilder, mut v: Reg, weight: Option<Reg>, bias: Option<Reg>) -> Reg {
    use crate::expr::input;
    if let Some(w) = weight {
        v = b.expr(&(input(0) * input(1)), &[v, w]);
    }
    if let Some(c) = bias {
        v = b.expr(&(input(0) + input(1)), &[v, c]);
    }
    v
}

/// Types of a backward operator's gradients: of the input like `x`, of affine parameters like `param`.
fn gradient_types(cx: &OpCx, n: usize, x: &TensorType, param: TensorType) -> Result<Vec<TensorType>> {
    Ok(only(&output_mask(cx, n)?, [x.clone(), param.clone(), param]).collect())
}
