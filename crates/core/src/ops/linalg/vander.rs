//! Matrices of powers.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::movement::flip::FLIP;
use crate::ops::reduce::cumprod::CUMPROD;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// The powers 0 to `N − 1` of each element of `[..., n]`, in a new last dimension; absent, N is n.
pub static LINALG_VANDER: OpDef = OpDef {
    name: "linalg_vander",
    schemas: &["linalg_vander(Tensor x, *, SymInt? N=None) -> Tensor"],
    infer: |cx| {
        let rank = cx.shape(0)?.rank();
        let count = count(cx, rank.checked_sub(1))?;
        ensure!(rank > 0 && cx.shape(0)?[rank - 1] > 0, Shape, "no powers of {}", cx.ty(0)?);
        Ok(vec![result(cx, count)?])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let count = count(cx, cx.shape(0)?.rank().checked_sub(1))?;
        Ok(vec![powers(b, cx, required(inputs, 0)?, count)?])
    }),
    cases: || {
        vec![
            Case::new("square").f(&[2, 3]),
            Case::new("four").f(&[2]).attr("N", 4),
            Case::new("one").f(&[2]).attr("N", 1),
        ]
    },
};

/// [`LINALG_VANDER`] of a vector; unless `increasing` the highest power comes first.
pub static VANDER: OpDef = OpDef {
    name: "vander",
    schemas: &["vander(Tensor x, int? N=None, bool increasing=False) -> Tensor"],
    infer: |cx| {
        let x = cx.ty(0)?;
        ensure!(x.shape.rank() == 1, Shape, "powers of a vector, got {x}");
        cx.flag("increasing")?;
        Ok(vec![result(cx, count(cx, Some(0))?)?])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerOutput(1),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let count = count(cx, Some(0))?;
        let y = powers(b, cx, required(inputs, 0)?, count)?;
        if cx.flag("increasing")? {
            return Ok(vec![y]);
        }
        Ok(vec![b.one(&FLIP, &[y], Attrs::new().with("dims", [1]))?])
    }),
    cases: || {
        vec![
            Case::new("falling").f(&[3]).attr("increasing", false),
            Case::new("rising").f(&[3]).attr("N", 2).attr("increasing", true),
        ]
    },
};

/// The number of powers: `N`, or the size of a dimension.
fn count(cx: &OpCx, dim: Option<usize>) -> Result<usize> {
    if cx.opt_int("N")?.is_some() {
        return cx.size("N");
    }
    Ok(dim.map_or(0, |d| cx.shape(0).map_or(0, |s| s[d])))
}

fn result(cx: &OpCx, count: usize) -> Result<TensorType> {
    let x = cx.ty(0)?;
    ensure!(x.dtype != DType::Bool, DType, "truth values have no powers");
    // Integers multiply in i64, as running products do.
    let dtype = if x.dtype.is_float() { x.dtype } else { DType::I64 };
    let shape = Shape::from([&x.shape[..], &[count]].concat());
    ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
    Ok(TensorType::new(dtype, shape))
}

/// Running products of as many copies of each element, after a 1.
fn powers(b: &mut Builder, cx: &OpCx, x: ValueId, count: usize) -> Result<ValueId> {
    let (ty, rank) = (result(cx, count)?, cx.shape(0)?.rank());
    let with = |n: usize| [&cx.shape(0).map_or(vec![], |s| s.to_vec())[..], &[n]].concat();
    if count == 0 {
        return b.full(&ty, 0.0);
    }
    let one = b.full(&TensorType::new(ty.dtype, with(1)), 1.0)?;
    if count == 1 {
        return Ok(one);
    }
    let x = b.cast(x, ty.dtype)?;
    let x = b.unsqueeze(x, rank)?;
    let copies = b.expand(x, &with(count - 1))?;
    let products = b.one(&CUMPROD, &[copies], Attrs::new().with("dim", rank as i64))?;
    b.cat(&[one, products], rank)
}
