//! One dimension divided into several.

use super::{reshape_back, reshape_gradient};
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// Dimension `dim` becomes `sizes`, of which one may be -1.
pub static UNFLATTEN: OpDef = OpDef {
    name: "unflatten",
    schemas: &["unflatten.int(Tensor(a) self, int dim, SymInt[] sizes) -> Tensor(a)"],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, target(cx)?)]),
    derivative: Derivative::Rule(reshape_gradient),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View { layout: |cx, l, _| Ok(l.reshape(&target(cx)?)), scatter: Some(reshape_back) }),
    cases: || vec![Case::new("infer one").f(&[2, 6]).attr("dim", -1).attr("sizes", [3, -1])],
};

fn target(cx: &OpCx) -> Result<Shape> {
    let x = cx.shape(0)?;
    let dim = cx.dim("dim", x.rank())?;
    let sizes = cx.ints("sizes")?;
    ensure!(x.rank() > 0 && !sizes.is_empty(), Shape, "{x} cannot be divided into {sizes:?}");
    let known =
        sizes.iter().filter(|&&s| s != -1).try_fold(1usize, |n, &s| n.checked_mul(usize::try_from(s).ok()?));
    let unknown = sizes.iter().filter(|&&s| s == -1).count();
    let free = match (known, unknown) {
        (Some(k), 1) if k > 0 && x[dim].is_multiple_of(k) => x[dim] / k,
        (Some(k), 0) if k == x[dim] => 1,
        _ => return Err(crate::fail!(Shape, "size {} cannot be divided into {sizes:?}", x[dim])),
    };
    let middle = sizes.iter().map(|&s| if s == -1 { free } else { s as usize });
    Ok(x[..dim].iter().copied().chain(middle).chain(x[dim + 1..].iter().copied()).collect())
}
