//! Dimensions of size 1 repeated without copying.

use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, View};
use crate::shape::{Layout, Shape};
use crate::tensor::TensorType;

/// Broadcast to `size`; -1 keeps a dimension.
pub static EXPAND: OpDef = OpDef {
    name: "expand",
    schemas: &[
        "expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)",
        "broadcast_to(Tensor(a) self, SymInt[] size) -> Tensor(a)",
    ],
    infer: |cx| Ok(vec![TensorType::new(cx.dtype(0)?, target(cx)?)]),
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let g = cx.grad(0)?;
        cx.set(0, g)
    }),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| {
            let shape = target(cx)?;
            let lead = shape.rank() - l.shape.rank();
            let stride =
                |d: usize| if d < lead || l.shape[d - lead] != shape[d] { 0 } else { l.strides[d - lead] };
            let strides = (0..shape.rank()).map(stride).collect();
            Ok(Some(Layout { shape, strides, offset: l.offset }))
        },
        scatter: None,
    }),
    cases: || vec![Case::new("lead and middle").f(&[3, 1, 2]).attr("size", [4, -1, 5, 2])],
};

fn target(cx: &OpCx) -> Result<Shape> {
    let (from, size) = (cx.shape(0)?, cx.ints("size")?);
    ensure!(size.len() >= from.rank(), Attribute, "{size:?} has fewer dimensions than {from}");
    let lead = size.len() - from.rank();
    let mut out = Vec::new();
    for (d, &s) in size.iter().enumerate() {
        let have = (d >= lead).then(|| from[d - lead]);
        let want = match (s, have) {
            (-1, Some(h)) => h,
            (s, _) => usize::try_from(s).map_err(|_| crate::fail!(Attribute, "size {s} in {size:?}"))?,
        };
        ensure!(have.is_none_or(|h| h == want || h == 1), Shape, "{from} cannot be expanded to {size:?}");
        out.push(want);
    }
    Ok(out.into())
}
