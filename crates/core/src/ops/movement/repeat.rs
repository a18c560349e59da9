//! A tensor repeated like tiles.

use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `repeats[d]` copies along each dimension; more repeats than dimensions add leading ones.
pub static REPEAT: OpDef = OpDef {
    name: "repeat",
    schemas: &["repeat(Tensor self, SymInt[] repeats) -> Tensor"],
    infer: |cx| {
        let given = cx.sizes("repeats")?;
        ensure!(given.rank() >= cx.shape(0)?.rank(), Attribute, "`repeats` = {given} for {}", cx.ty(0)?);
        infer(cx, &given)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| tiled(b, required(inputs, 0)?, &cx.sizes("repeats")?)),
    cases: || {
        vec![
            Case::new("new dimension").f(&[2, 3]).attr("repeats", [2, 1, 3]),
            Case::new("no copies").f(&[2]).attr("repeats", [0]),
        ]
    },
};

/// As [`REPEAT`], but fewer numbers than dimensions leave the leading ones alone.
pub static TILE: OpDef = OpDef {
    name: "tile",
    schemas: &["tile(Tensor self, SymInt[] dims) -> Tensor"],
    infer: |cx| infer(cx, &cx.sizes("dims")?),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| tiled(b, required(inputs, 0)?, &cx.sizes("dims")?)),
    cases: || vec![Case::new("last").f(&[2, 3]).attr("dims", [2])],
};

/// Sizes and repeats of the same number of dimensions, ones in front of the shorter.
fn aligned(shape: &[usize], repeats: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let rank = shape.len().max(repeats.len());
    let fill = |v: &[usize]| vec![1; rank - v.len()].into_iter().chain(v.iter().copied()).collect();
    (fill(shape), fill(repeats))
}

fn infer(cx: &OpCx, repeats: &[usize]) -> Result<Vec<TensorType>> {
    let x = cx.ty(0)?;
    let (sizes, repeats) = aligned(&x.shape, repeats);
    let product = |(n, r): (&usize, &usize)| n.checked_mul(*r);
    let shape: Option<Vec<usize>> = sizes.iter().zip(&repeats).map(product).collect();
    let shape = Shape::from(shape.ok_or_else(|| fail!(Size, "{x} repeated {repeats:?} times"))?);
    ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
    Ok(vec![TensorType::new(x.dtype, shape)])
}

/// Every dimension broadcast over a new one before it, then both made one.
fn tiled(b: &mut Builder, x: ValueId, repeats: &[usize]) -> Result<Vec<ValueId>> {
    let (sizes, repeats) = aligned(&b.ty(x).shape.clone(), repeats);
    let pairs = |first: &dyn Fn(usize) -> usize| {
        (0..sizes.len()).flat_map(|d| [first(d), sizes[d]]).collect::<Vec<_>>()
    };
    let x = b.reshape(x, &pairs(&|_| 1))?;
    let x = b.expand(x, &pairs(&|d| repeats[d]))?;
    let shape: Vec<usize> = sizes.iter().zip(&repeats).map(|(n, r)| n * r).collect();
    Ok(vec![b.reshape(x, &shape)?])
}
