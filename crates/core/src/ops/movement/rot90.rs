//! Quarter turns, and the older names of reversing.

use super::flip::FLIP;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ops::pointwise::same;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::wrap_dim;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `k` quarter turns in the plane of the two dimensions `dims`, from the first towards the second.
pub static ROT90: OpDef = OpDef {
    name: "rot90",
    schemas: &["rot90(Tensor self, int k=1, int[] dims=[0,1]) -> Tensor"],
    infer: |cx| {
        let (x, [a, c], turns) = (cx.ty(0)?, plane(cx)?, turns(cx)?);
        let mut shape = x.shape.to_vec();
        if turns % 2 == 1 {
            shape.swap(a, c);
        }
        Ok(vec![TensorType::new(x.dtype, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let (x, [from, to]) = (required(inputs, 0)?, plane(cx)?);
        let flip = |dims: &[usize]| {
            let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
            Attrs::new().with("dims", dims)
        };
        Ok(vec![match turns(cx)? {
            0 => x,
            1 => {
                let flipped = b.one(&FLIP, &[x], flip(&[to]))?;
                b.transpose(flipped, from, to)?
            }
            2 => b.one(&FLIP, &[x], flip(&[from, to]))?,
            _ => {
                let flipped = b.one(&FLIP, &[x], flip(&[from]))?;
                b.transpose(flipped, from, to)?
            }
        }])
    }),
    cases: || {
        let case = |name, k: i64| Case::new(name).f(&[2, 3]).attr("k", k).attr("dims", [0, 1]);
        let backwards = Case::new("backwards").f(&[2, 3, 2]).attr("k", -1).attr("dims", [2, 1]);
        vec![case("none", 0), case("one", 1), case("two", 2), case("three", 3), backwards]
    },
};

/// Columns in reverse order: dimension 1.
pub static FLIPLR: OpDef = OpDef {
    name: "fliplr",
    schemas: &["fliplr(Tensor self) -> Tensor"],
    infer: |cx| reversed(cx, 1),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, _, inputs| b.apply(&FLIP, inputs, Attrs::new().with("dims", [1]))),
    cases: || vec![Case::new("matrix").f(&[2, 3])],
};

/// Rows in reverse order: dimension 0.
pub static FLIPUD: OpDef = OpDef {
    name: "flipud",
    schemas: &["flipud(Tensor self) -> Tensor"],
    infer: |cx| reversed(cx, 0),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, _, inputs| b.apply(&FLIP, inputs, Attrs::new().with("dims", [0]))),
    cases: || vec![Case::new("matrix").f(&[2, 3])],
};

fn reversed(cx: &OpCx, dim: usize) -> Result<Vec<TensorType>> {
    ensure!(cx.shape(0)?.rank() > dim, Shape, "{} has no dimension {dim}", cx.ty(0)?);
    same(cx)
}

fn turns(cx: &OpCx) -> Result<i64> {
    Ok(cx.opt_int("k")?.unwrap_or(1).rem_euclid(4))
}

fn plane(cx: &OpCx) -> Result<[usize; 2]> {
    let (x, dims) = (cx.shape(0)?, cx.opt_ints("dims")?.unwrap_or(&[0, 1]));
    let wrap = |d: i64| wrap_dim(d, x.rank()).filter(|&d| d < x.rank());
    let wrapped: Option<Vec<usize>> = dims.iter().map(|&d| wrap(d)).collect();
    match wrapped.as_deref() {
        Some(&[a, c]) if a != c => Ok([a, c]),
        _ => Err(fail!(Attribute, "`dims` = {dims:?} is no plane of {x}")),
    }
}
