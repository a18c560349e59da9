//! Matrices along the diagonal of one, and all pairs or choices of elements.

use super::cat::CAT;
use super::meshgrid::MESHGRID;
use super::pad::CONSTANT_PAD_ND;
use super::stack::STACK;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// Zeros with the matrices along the diagonal; a vector is a row, a scalar one element.
pub static BLOCK_DIAG: OpDef = OpDef {
    name: "block_diag",
    schemas: &["block_diag(Tensor[] tensors) -> Tensor"],
    infer: |cx| {
        let sizes = blocks(cx)?;
        let sum = |i: usize| sizes.iter().try_fold(0usize, |sum, s| sum.checked_add(s[i]));
        let shape = Shape::from([sum(0).unwrap_or(usize::MAX), sum(1).unwrap_or(usize::MAX)]);
        ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
        Ok(vec![TensorType::new(cx.result_type(&[]), shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Widest,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (sizes, dtype) = (blocks(cx)?, cx.result_type(&[]));
        let total: usize = sizes.iter().map(|s| s[1]).sum();
        let mut rows = Vec::with_capacity(sizes.len());
        let mut before = 0;
        for (i, size) in sizes.iter().enumerate() {
            let x = b.cast(required(inputs, i)?, dtype)?;
            let x = b.reshape(x, size)?;
            let pad = [before as i64, (total - before - size[1]) as i64];
            rows.push(b.one(&CONSTANT_PAD_ND, &[x], Attrs::new().with("pad", pad).with("value", 0))?);
            before += size[1];
        }
        Ok(vec![b.one(&CAT, &rows, Attrs::new().with("dim", 0))?])
    }),
    cases: || vec![Case::new("all ranks").f(&[2, 3]).f(&[2]).f(&[]).f(&[1, 2]), Case::new("one").f(&[2, 2])],
};

/// Every choice of one element of each vector, a row each: the last vector's elements change first. Of one
/// vector, the vector.
pub static CARTESIAN_PROD: OpDef = OpDef {
    name: "cartesian_prod",
    schemas: &["cartesian_prod(Tensor[] tensors) -> Tensor"],
    infer: |cx| {
        ensure!(cx.present().count() > 0, Shape, "a product of nothing");
        let fits =
            cx.present().all(|t| t.shape.rank() == 1 && t.dtype == cx.inputs[0].map_or(t.dtype, |f| f.dtype));
        ensure!(fits, Shape, "vectors of one dtype are needed, got {}", cx.list_types());
        if cx.inputs.len() == 1 {
            return Ok(vec![cx.ty(0)?.clone()]);
        }
        let count = cx.present().try_fold(1usize, |n, t| n.checked_mul(t.shape[0]));
        let shape = Shape::from([count.unwrap_or(usize::MAX), cx.inputs.len()]);
        ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
        Ok(vec![TensorType::new(cx.dtype(0)?, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        if inputs.len() == 1 {
            return Ok(vec![required(inputs, 0)?]);
        }
        let count: usize = cx.present().map(|t| t.shape[0]).product();
        let grids = b.apply(&MESHGRID, inputs, Attrs::new().with("indexing", "ij"))?;
        let mut columns = Vec::with_capacity(grids.len());
        for grid in grids {
            columns.push(b.reshape(grid, &[count])?);
        }
        Ok(vec![b.one(&STACK, &columns, Attrs::new().with("dim", 1))?])
    }),
    cases: || vec![Case::new("two").f(&[2]).f(&[3]), Case::new("one").f(&[3])],
};

/// The blocks as rows and columns.
fn blocks(cx: &OpCx) -> Result<Vec<[usize; 2]>> {
    ensure!(cx.present().count() > 0, Shape, "a matrix of no blocks");
    let size = |t: &TensorType| match t.shape[..] {
        [] => Some([1, 1]),
        [n] => Some([1, n]),
        [m, n] => Some([m, n]),
        _ => None,
    };
    let sizes: Option<Vec<_>> = cx.present().map(size).collect();
    sizes.ok_or_else(|| crate::fail!(Shape, "blocks are matrices, got {}", cx.list_types()))
}
