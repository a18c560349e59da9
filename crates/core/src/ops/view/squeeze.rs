//! Dimensions of size 1 dropped.

use super::{reshape_back, reshape_gradient};
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// Drops the dimensions `dim` (absent: all) that have size 1.
pub static SQUEEZE: OpDef = OpDef {
    name: "squeeze",
    schemas: &[
        "squeeze(Tensor(a) self) -> Tensor(a)",
        "squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)",
        "squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)",
    ],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, target(cx)?)]),
    derivative: Derivative::Rule(reshape_gradient),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View { layout: |cx, l, _| Ok(l.reshape(&target(cx)?)), scatter: Some(reshape_back) }),
    cases: || {
        vec![
            Case::new("all").f(&[1, 3, 1]),
            Case::new("one").f(&[1, 3, 1]).attr("dim", -1),
            Case::new("not of size 1").f(&[1, 3, 1]).attr("dim", [0, 1]),
        ]
    },
};

fn target(cx: &OpCx) -> Result<Shape> {
    let x = cx.shape(0)?;
    // An empty list drops nothing; only an absent one drops all.
    let none = cx.attrs.get("dim").is_some() && matches!(cx.opt_ints("dim"), Ok(Some([])));
    let dims = if none { vec![] } else { cx.dims("dim", x.rank())? };
    Ok(x.iter().enumerate().filter(|(d, n)| !(**n == 1 && dims.contains(d))).map(|(_, &n)| n).collect())
}
