//! The same elements, in the same order, under another shape.

use super::{reshape_back, reshape_gradient};
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// `reshape` and `view`: one size may be -1. Copies only where the layout demands it.
pub static RESHAPE: OpDef = OpDef {
    name: "reshape",
    schemas: &[
        "reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)",
        "view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
        "_unsafe_view(Tensor self, SymInt[] size) -> Tensor",
        "_reshape_alias(Tensor(a) self, SymInt[] size, SymInt[] stride) -> Tensor(a)",
    ],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, target(cx)?)]),
    derivative: Derivative::Rule(reshape_gradient),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View { layout: |cx, l, _| Ok(l.reshape(&target(cx)?)), scatter: Some(reshape_back) }),
    cases: || {
        vec![
            Case::new("infer one").f(&[2, 6]).attr("shape", [3, -1]),
            Case::new("to scalar").f(&[1, 1]).attr("shape", Vec::<i64>::new()),
        ]
    },
};

/// The result's shape, the -1 resolved.
fn target(cx: &OpCx) -> Result<Shape> {
    let (from, want) = (
        cx.shape(0)?,
        match cx.opt_ints("shape")? {
            Some(s) => s,
            None => cx.ints("size")?,
        },
    );
    let unknown = want.iter().filter(|&&d| d == -1).count();
    ensure!(unknown <= 1 && want.iter().all(|&d| d >= -1), Attribute, "shape {want:?} is not one");
    let known = want.iter().filter(|&&d| d != -1).try_fold(1usize, |n, &d| n.checked_mul(d as usize));
    let known = known.ok_or_else(|| crate::fail!(Size, "shape {want:?} is too large"))?;
    let free = if unknown == 1 {
        ensure!(known != 0 && from.numel().is_multiple_of(known), Shape, "{from} cannot be seen as {want:?}");
        from.numel() / known
    } else {
        1
    };
    ensure!(
        known * free == from.numel(),
        Shape,
        "{from} has {} elements, {want:?} has {known}",
        from.numel()
    );
    Ok(want.iter().map(|&d| if d == -1 { free } else { d as usize }).collect())
}
