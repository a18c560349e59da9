//! Medians: of an even number of elements, the lower one of the middle two. NaN if one of the elements is.

use super::gather::GATHER;
use super::sort::SORT;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::expr::{float, input};
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::isnan::ISNAN;
use crate::ops::reduce::amax::EVENLY_DISTRIBUTE;
use crate::ops::reduce::argmax::ARGMAX;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample, required};
use crate::row::{Reduce, ReduceSpace};
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

/// The median of all elements. Its gradient is shared evenly among the elements that equal it.
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
        let value = shared(b, x, value)?;
        Ok(vec![b.reshape(value, &[])?])
    }),
    cases: || {
        let tie = Sample::Values(vec![2.0, 1.0, 2.0, 5.0, 2.0]);
        vec![
            Case::new("matrix").distinct(&[2, 3]),
            Case::new("scalar").f(&[]),
            Case::new("tie").arg(DType::F64, &[5], tie).constant(),
        ]
    },
};

/// `(self, value)`: a vector, and an element of it, the result. Its gradient is shared evenly among all
/// elements that are equal to it, or NaN as it is; the place that it was taken from has none.
pub static EQUAL_ELEMENTS: OpDef = OpDef {
    name: "equal_elements",
    schemas: &[],
    infer: |cx| {
        let x = cx.ty(0)?;
        ensure!(x.shape.rank() == 1 && x.shape.numel() > 0, Shape, "no element of {x}");
        cx.expect_floats(0, &x.shape)?;
        ensure!(*cx.ty(1)? == TensorType::new(x.dtype, [1]), Shape, "{} is no element of {x}", cx.ty(1)?);
        Ok(vec![cx.ty(1)?.clone()])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x, y) = (cx.grad(0)?, cx.x(0)?, cx.y(0));
        let dx = cx.one(&EVENLY_DISTRIBUTE, &[g, x, y], Attrs::new().with("dim", [0]))?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerInput(2),
    body: Body::Rows(|cx, out| {
        let x = cx.ty(0)?;
        let space = ReduceSpace::new(&x.shape, &[0]);
        let mut b = space.builder();
        let v = b.read(x.dtype, space.full.clone());
        let y = b.read(x.dtype, space.kept.clone());
        let equal = input(0).eq(input(1)).or(input(0).is_nan().and(input(1).is_nan()));
        let equal = b.expr(&equal.select(input(0), float(f64::NEG_INFINITY)), &[v, y]);
        let y = b.reduce(Reduce::Max, equal);
        b.store(out[0].dtype, space.kept.clone(), y);
        Ok(b.finish())
    }),
    cases: || {
        let values = || Sample::Values(vec![2.0, 1.0, 2.0, 5.0, 2.0]);
        let two = || Sample::Values(vec![2.0]);
        vec![
            Case::new("tie")
                .arg(DType::F64, &[5], values())
                .constant()
                .arg(DType::F64, &[1], two())
                .constant(),
        ]
    },
};

/// The median `value` of a vector, of which all elements that are equal share the gradient.
pub(super) fn shared(b: &mut Builder, x: ValueId, value: ValueId) -> Result<ValueId> {
    match b.ty(x).dtype.is_float() {
        true => b.call(&EQUAL_ELEMENTS, &[x, value]),
        false => Ok(value),
    }
}

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
