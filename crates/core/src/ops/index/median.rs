//! Medians: of an even number of elements, the lower one of the middle two. NaN if one of the elements is.

use super::gather::GATHER;
use super::sort::SORT;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::isnan::ISNAN;
use crate::ops::reduce::argmax::ARGMAX;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// The median along `dim` and its i64 index; the gradient goes to that element alone.
pub static MEDIAN_DIM: OpDef = OpDef {
    name: "median_dim",
    schemas: &["median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"],
    infer: |cx| {
        let x = numbers(cx)?;
        let (dim, mut shape) = (cx.dim("dim", x.shape.rank())?, x.shape.to_vec());
        ensure!(shape.get(dim).is_none_or(|&n| n > 0), Shape, "no median of nothing in {x}");
        if dim < shape.len() {
            if cx.flag("keepdim")? { shape[dim] = 1 } else { _ = shape.remove(dim) }
        }
        let shape = Shape::from(shape);
        Ok(vec![TensorType::new(x.dtype, shape.clone()), TensorType::new(DType::I64, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerInput(10),
    body: Body::Decompose(|b, cx, inputs| {
        let x = numbers(cx)?;
        let (value, rank) = (required(inputs, 0)?, x.shape.rank());
        let one = b.reshape(value, if rank == 0 { &[1] } else { &x.shape })?;
        let dim = if rank == 0 { 0 } else { cx.dim("dim", rank)? };
        let [value, index] = along(b, one, dim)?;
        let mut shape = x.shape.to_vec();
        if rank > 0 {
            if cx.flag("keepdim")? { shape[dim] = 1 } else { _ = shape.remove(dim) }
        }
        Ok(vec![b.reshape(value, &shape)?, b.reshape(index, &shape)?])
    }),
    cases: || {
        vec![
            Case::new("even").distinct(&[2, 4]).attr("dim", 1),
            Case::new("odd, kept").distinct(&[3, 2, 2]).attr("dim", 0).attr("keepdim", true),
            Case::new("integers").index(&[2, 5], 9).attr("dim", -1),
            Case::new("scalar").f(&[]).attr("dim", 0),
        ]
    },
};

/// The median of all elements.
pub static MEDIAN: OpDef = OpDef {
    name: "median",
    schemas: &["median(Tensor self) -> Tensor"],
    infer: |cx| {
        let x = numbers(cx)?;
        ensure!(x.shape.numel() > 0, Shape, "no median of nothing in {x}");
        Ok(vec![TensorType::new(x.dtype, Shape::default())])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerInput(10),
    body: Body::Decompose(|b, cx, inputs| {
        let x = b.reshape(required(inputs, 0)?, &[numbers(cx)?.shape.numel()])?;
        let [value, _] = along(b, x, 0)?;
        Ok(vec![b.reshape(value, &[])?])
    }),
    cases: || vec![Case::new("matrix").distinct(&[2, 3]), Case::new("scalar").f(&[])],
};

fn numbers<'a>(cx: &OpCx<'a>) -> Result<&'a TensorType> {
    let x = cx.ty(0)?;
    ensure!(x.dtype.class() != Class::Bool, DType, "a median is of numbers, got {x}");
    Ok(x)
}

/// Median and index along a dimension of at least one element, which becomes 1.
fn along(b: &mut Builder, x: ValueId, dim: usize) -> Result<[ValueId; 2]> {
    let n = b.ty(x).shape[dim];
    let attrs = Attrs::new().with("dim", dim as i64).with("descending", false);
    let sorted = b.apply(&SORT, &[Some(x)], attrs)?;
    let middle = (n - 1) / 2;
    let mut index = b.slice(sorted[1], dim, middle, middle + 1)?;
    if b.ty(x).dtype.is_float() {
        // NaN is last in order; its first place counts.
        let last = b.slice(sorted[0], dim, n - 1, n)?;
        let nan = b.call(&ISNAN, &[last])?;
        let nans = b.call(&ISNAN, &[x])?;
        let nans = b.cast(nans, DType::F32)?;
        let first = b.one(&ARGMAX, &[nans], Attrs::new().with("dim", dim as i64).with("keepdim", true))?;
        index = b.choose(nan, first, index)?;
    }
    Ok([b.one(&GATHER, &[x, index], Attrs::new().with("dim", dim as i64))?, index])
}
