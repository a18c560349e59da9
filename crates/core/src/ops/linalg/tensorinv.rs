//! Inverses of tensors seen as matrices.

use super::inverse::INVERSE;
use super::solve::LINALG_SOLVE;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample, required};
use crate::shape::{Shape, wrap_dim};
use crate::tensor::TensorType;

/// The inverse of `self` as a matrix from its dimensions after the first `ind` to those, in their shapes
/// exchanged.
pub static LINALG_TENSORINV: OpDef = OpDef {
    name: "linalg_tensorinv",
    schemas: &["linalg_tensorinv(Tensor self, int ind=2) -> Tensor"],
    infer: |cx| {
        let (t, at) = (cx.ty(0)?, cut(cx)?);
        let n: usize = t.shape[..at].iter().product();
        ensure!(t.shape[at..].iter().product::<usize>() == n, Shape, "{t} is no square matrix at {at}");
        let square = TensorType::new(t.dtype, [n, n]);
        (INVERSE.infer)(&OpCx { inputs: vec![Some(&square)], attrs: cx.attrs })?;
        Ok(vec![TensorType::new(t.dtype, Shape::from([&t.shape[at..], &t.shape[..at]].concat()))])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let out = (LINALG_TENSORINV.infer)(cx)?.remove(0);
        let n = cx.shape(0)?[..cut(cx)?].iter().product();
        let x = b.reshape(required(inputs, 0)?, &[n, n])?;
        let inverse = b.call(&INVERSE, &[x])?;
        Ok(vec![b.reshape(inverse, &out.shape)?])
    }),
    cases: || vec![tensor("two", &[2, 2, 4]).attr("ind", 2), tensor("one", &[4, 2, 2]).attr("ind", 1)],
};

/// The X with `tensordot(self, X, X.ndim) = other`; the dimensions `dims` of `self` are moved to its end
/// first.
pub static LINALG_TENSORSOLVE: OpDef = OpDef {
    name: "linalg_tensorsolve",
    schemas: &["linalg_tensorsolve(Tensor self, Tensor other, int[]? dims=None) -> Tensor"],
    infer: |cx| {
        let (t, other, order) = (cx.ty(0)?, cx.ty(1)?, order(cx)?);
        let shape: Vec<usize> = order.iter().map(|&d| t.shape[d]).collect();
        let (n, rank) = (other.shape.numel(), other.shape.rank());
        ensure!(rank <= shape.len() && n > 0, Shape, "{} do not fit", cx.list_types());
        let solution = &shape[rank..];
        let fits = solution.iter().product::<usize>() == n && shape[..rank].iter().product::<usize>() == n;
        ensure!(fits && t.dtype == other.dtype, Shape, "{} do not fit", cx.list_types());
        let (square, right) = (TensorType::new(t.dtype, [n, n]), TensorType::new(t.dtype, [n]));
        let attrs = Attrs::new();
        (LINALG_SOLVE.infer)(&OpCx { inputs: vec![Some(&square), Some(&right)], attrs: &attrs })?;
        Ok(vec![TensorType::new(t.dtype, Shape::new(solution))])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let out = (LINALG_TENSORSOLVE.infer)(cx)?.remove(0);
        let n = cx.shape(1)?.numel();
        let x = b.permute(required(inputs, 0)?, &order(cx)?)?;
        let x = b.reshape(x, &[n, n])?;
        let right = b.reshape(required(inputs, 1)?, &[n])?;
        let y = b.one(&LINALG_SOLVE, &[x, right], Attrs::new().with("left", true))?;
        Ok(vec![b.reshape(y, &out.shape)?])
    }),
    cases: || {
        vec![tensor("plain", &[2, 2, 4]).f(&[2, 2]), tensor("moved", &[2, 4, 2]).f(&[4]).attr("dims", [0])]
    },
};

fn cut(cx: &OpCx) -> Result<usize> {
    let (t, at) = (cx.ty(0)?, cx.opt_int("ind")?.unwrap_or(2));
    ensure!(at > 0 && at as u64 <= t.shape.rank() as u64, Attribute, "`ind` is {at} of {t}");
    Ok(at as usize)
}

/// The dimensions of the tensor, those that are moved last.
fn order(cx: &OpCx) -> Result<Vec<usize>> {
    let rank = cx.shape(0)?.rank();
    let mut moved = Vec::new();
    for &d in cx.opt_ints("dims")?.unwrap_or(&[]) {
        let dim = wrap_dim(d, rank).filter(|d| *d < rank && !moved.contains(d));
        ensure!(dim.is_some(), Attribute, "`dims` has {d}, twice or out of range for {rank} dimensions");
        moved.extend(dim);
    }
    Ok((0..rank).filter(|d| !moved.contains(d)).chain(moved.iter().copied()).collect())
}

fn tensor(name: &'static str, shape: &[usize]) -> Case {
    let values =
        [2.0, 0.5, -0.3, 0.4, 0.2, -1.5, 0.3, -0.4, 0.1, 0.7, -2.0, 0.9, 0.3, 0.2, -0.6, 1.8].to_vec();
    Case::new(name).arg(DType::F64, shape, Sample::Values(values))
}
