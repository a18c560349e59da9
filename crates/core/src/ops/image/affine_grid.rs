//! Grids of places for sampling: spatial transformers (Jaderberg et al. 2015, arXiv:1506.02025).

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::create::linspace::LINSPACE;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `theta [N, 2, 3]` and the size of an image `[N, C, H, W]` to the places `[N, H, W, 2]` that its pixels
/// come from: `theta · (x, y, 1)` of each. Coordinates −1 and 1 are the image's borders, or with
/// `align_corners` the centres of its first and last pixels. Volumes `[N, C, D, H, W]` by `theta [N, 3, 4]`
/// likewise.
pub static AFFINE_GRID_GENERATOR: OpDef = OpDef {
    name: "affine_grid_generator",
    schemas: &["affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor"],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, grid(cx)?)]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerOutput(6),
    body: Body::Decompose(|b, cx, inputs| {
        let (shape, dtype) = (grid(cx)?, cx.dtype(0)?);
        let (batch, sizes) = (shape[0], &shape[1..shape.rank() - 1]);
        let (rank, count) = (sizes.len(), sizes.iter().product());
        // x runs along the last dimension, y along the one before it.
        let mut axes = Vec::new();
        for d in (0..rank).rev() {
            let along = coordinates(b, sizes[d], cx.flag("align_corners")?, dtype)?;
            let shape: Vec<usize> = (0..rank).map(|e| if e == d { sizes[d] } else { 1 }).collect();
            let along = b.reshape(along, &shape)?;
            let all = b.expand(along, sizes)?;
            axes.push(b.reshape(all, &[count, 1])?);
        }
        axes.push(b.full(&TensorType::new(dtype, [count, 1]), 1.0)?);
        let places = b.cat(&axes, 1)?;
        let theta = b.transpose_last(required(inputs, 0)?)?;
        let places = b.expand(places, &[batch, count, rank + 1])?;
        let moved = b.matmul(places, theta)?;
        Ok(vec![b.reshape(moved, &shape)?])
    }),
    cases: || {
        let case = |name, theta: &[usize], size: &[i64], align: bool| {
            Case::new(name).f(theta).attr("size", size).attr("align_corners", align)
        };
        vec![
            case("image", &[2, 2, 3], &[2, 1, 3, 4], false),
            case("corners, one row", &[1, 2, 3], &[1, 3, 1, 2], true),
            case("volume", &[1, 3, 4], &[1, 1, 2, 3, 2], false),
        ]
    },
};

/// Shape of the grid.
fn grid(cx: &OpCx) -> Result<Shape> {
    let (theta, size) = (cx.ty(0)?, cx.sizes("size")?);
    cx.flag("align_corners")?;
    ensure!(matches!(size.rank(), 4 | 5), Attribute, "a grid is for [N, C, H, W] or [N, C, D, H, W]: {size}");
    let rank = size.rank() - 2;
    ensure!(theta.dtype.is_float(), DType, "transformations are of floats, got {theta}");
    let want = [size[0], rank, rank + 1];
    ensure!(theta.shape[..] == want, Shape, "a transformation {theta} for size {size}: expected {want:?}");
    let empty = size[2..].contains(&0);
    ensure!(!empty, Attribute, "a grid of no pixels: {size}");
    let shape: Shape = size.iter().take(1).chain(&size[2..]).copied().chain([rank]).collect();
    let wide = [&shape[..shape.rank() - 1], &[rank + 1]].concat();
    Shape::from(wide).checked_numel().ok_or_else(|| fail!(Size, "{shape} is larger than memory can be"))?;
    Ok(shape)
}

/// Coordinates of the centres of `n` pixels.
fn coordinates(b: &mut Builder, n: usize, align: bool, dtype: DType) -> Result<ValueId> {
    if n == 1 {
        return b.full(&TensorType::new(dtype, [1]), 0.0);
    }
    let edge = if align { 1.0 } else { (n as f64 - 1.0) / n as f64 };
    let attrs = Attrs::new().with("start", -edge).with("end", edge).with("steps", n as i64);
    b.one(&LINSPACE, &[], attrs.with("dtype", dtype))
}
