//! Integrals by the trapezoidal rule.

use super::diff::DIFF;
use super::{cumsum::CUMSUM, sum::SUM};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::tensor::TensorType;

/// `Σ (y[i] + y[i+1]) · (x[i+1] − x[i]) / 2` along `dim`. The points `x` (input 1) are as many as `y` has
/// along it, as a vector or for each line, or have the spacing `dx`. One point or none gives 0.
pub static TRAPEZOID: OpDef = OpDef {
    name: "trapezoid",
    schemas: &[
        "trapezoid.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor",
        "trapezoid.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor",
        "trapz.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor",
        "trapz.dx(Tensor y, *, float dx=1, int dim=-1) -> Tensor",
    ],
    infer: |cx| {
        let (dim, mut shape) = pieces(cx)?;
        shape.remove(dim);
        Ok(vec![TensorType::new(cx.dtype(0)?, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(3),
    body: Body::Decompose(|b, cx, inputs| {
        let (dim, pieces) = areas(b, cx, inputs)?;
        Ok(vec![b.one(&SUM, &[pieces], Attrs::new().with("dim", [dim as i64]).with("keepdim", false))?])
    }),
    cases,
};

/// The integrals up to each point but the first; otherwise as [`TRAPEZOID`].
pub static CUMULATIVE_TRAPEZOID: OpDef = OpDef {
    name: "cumulative_trapezoid",
    schemas: &[
        "cumulative_trapezoid.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor",
        "cumulative_trapezoid.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, pieces(cx)?.1)]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(3),
    body: Body::Decompose(|b, cx, inputs| {
        let (dim, pieces) = areas(b, cx, inputs)?;
        Ok(vec![b.one(&CUMSUM, &[pieces], Attrs::new().with("dim", dim as i64))?])
    }),
    cases,
};

/// The dimension, and the shape of the pieces between points.
fn pieces(cx: &OpCx) -> Result<(usize, Vec<usize>)> {
    let y = cx.ty(0)?;
    ensure!(y.dtype.is_float() && y.shape.rank() > 0, DType, "an integral needs lines of floats, got {y}");
    let dim = if cx.opt_int("dim")?.is_some() { cx.dim("dim", y.shape.rank())? } else { y.shape.rank() - 1 };
    let mut shape = y.shape.to_vec();
    if let Some(x) = cx.opt(1) {
        let vector = x.shape[..] == shape[dim..=dim];
        ensure!(vector || x.shape == y.shape, Shape, "points {x} for {y} along dimension {dim}");
        ensure!(x.dtype == y.dtype, DType, "points {x} for {y}");
    }
    cx.opt_float("dx")?;
    shape[dim] = shape[dim].saturating_sub(1);
    Ok((dim, shape))
}

/// The areas of the pieces.
fn areas(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<(usize, ValueId)> {
    let (dim, shape) = pieces(cx)?;
    let y = required(inputs, 0)?;
    let n = cx.shape(0)?[dim];
    if n == 0 {
        return Ok((dim, y));
    }
    let (low, high) = (b.slice(y, dim, 0, n - 1)?, b.slice(y, dim, 1, n)?);
    let sums = b.add(low, high)?;
    let areas = match inputs.get(1).copied().flatten() {
        None => b.scale(sums, 0.5 * cx.opt_float("dx")?.unwrap_or(1.0))?,
        Some(x) => {
            let vector = b.ty(x).shape.rank() != shape.len() || b.ty(x).shape[..] != cx.shape(0)?[..];
            let along = if vector { 0 } else { dim as i64 };
            let steps = Attrs::new().with("n", 1).with("dim", along);
            let mut steps = b.apply(&DIFF, &[Some(x), None, None], steps)?[0];
            if vector {
                let ones: Vec<usize> = (0..shape.len()).map(|d| if d == dim { n - 1 } else { 1 }).collect();
                steps = b.reshape(steps, &ones)?;
            }
            let areas = b.mul(sums, steps)?;
            b.scale(areas, 0.5)?
        }
    };
    ensure!(b.ty(areas).shape[..] == shape[..], Graph, "the areas are {}", b.ty(areas));
    Ok((dim, areas))
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("steps").f(&[2, 4]).attr("dx", 0.5).attr("dim", -1),
        Case::new("points").f(&[3, 2]).f(&[3]).attr("dim", 0),
        Case::new("points of lines").f(&[2, 3]).f(&[2, 3]).attr("dim", 1),
        Case::new("one point").f(&[2, 1]).attr("dx", 1).attr("dim", 1),
        Case::new("none").f(&[2, 0]).attr("dx", 1).attr("dim", 1),
    ]
}
