//! A range of dimensions joined into one.

use super::{reshape_back, reshape_gradient};
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::shape::{Shape, wrap_dim};
use crate::tensor::TensorType;

/// Dimensions `start_dim..=end_dim` become one.
pub static FLATTEN: OpDef = OpDef {
    name: "flatten",
    schemas: &[
        "flatten.using_ints(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)",
        "ravel(Tensor(a) self) -> Tensor(a)",
    ],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, target(cx)?)]),
    derivative: Derivative::Rule(reshape_gradient),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View { layout: |cx, l, _| Ok(l.reshape(&target(cx)?)), scatter: Some(reshape_back) }),
    cases: || {
        vec![
            Case::new("all").f(&[2, 3, 2]),
            Case::new("middle").f(&[2, 3, 2, 2]).attr("start_dim", 1).attr("end_dim", -2),
            Case::new("scalar").f(&[]),
        ]
    },
};

fn target(cx: &OpCx) -> Result<Shape> {
    let x = cx.shape(0)?;
    if x.rank() == 0 {
        return Ok([1].into());
    }
    let dim = |name: &str, default: i64| {
        let d = cx.opt_int(name)?.unwrap_or(default);
        wrap_dim(d, x.rank()).ok_or_else(|| crate::fail!(Attribute, "`{name}` = {d} is out of range for {x}"))
    };
    let (start, end) = (dim("start_dim", 0)?, dim("end_dim", -1)?);
    ensure!(start <= end, Attribute, "start_dim {start} is behind end_dim {end}");
    let joined: usize = x[start..=end].iter().product();
    Ok(x[..start].iter().copied().chain([joined]).chain(x[end + 1..].iter().copied()).collect())
}
