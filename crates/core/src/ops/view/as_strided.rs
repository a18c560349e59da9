//! Any layout over a tensor's memory.

use super::unfold::add_through;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ops::pointwise::NO_SECOND;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::shape::{Layout, Shape};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// The elements of `self` in row-major order from `storage_offset` on, shown in the shape `size` with the
/// strides `stride`. PyTorch addresses the storage of `self`; that is the same where `self` is contiguous and
/// starts it.
pub static AS_STRIDED: OpDef = OpDef {
    name: "as_strided",
    schemas: &[
        "as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)",
    ],
    infer: |cx| {
        let x = cx.ty(0)?;
        Ok(vec![TensorType::new(x.dtype, layout(cx, &x.shape)?.shape)])
    },
    derivative: Derivative::Rule(|cx| {
        let g = cx.grad(0)?;
        let sizes = cx.of(|of| of.shape(0).map(|s| s.to_ints()))?;
        let attrs: Attrs = cx.attrs().clone().with("input_sizes", sizes);
        let dx = cx.one(&AS_STRIDED_BACKWARD, &[g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| {
            let mut view = layout(cx, &l.shape)?;
            view.offset += l.offset;
            Ok(l.is_contiguous().then_some(view))
        },
        // Elements may be shown several times.
        scatter: None,
    }),
    cases: || {
        vec![
            Case::new("overlapping")
                .f(&[2, 4])
                .attr("size", [3, 3])
                .attr("stride", [2, 1])
                .attr("storage_offset", 1),
            Case::new("repeated").f(&[3]).attr("size", [2, 3]).attr("stride", [0, 1]),
        ]
    },
};

/// Gradient of [`AS_STRIDED`]: every element of `grad` added where it was taken from, in a tensor of
/// `input_sizes`.
pub static AS_STRIDED_BACKWARD: OpDef = OpDef {
    name: "as_strided_backward",
    schemas: &[
        "headwater::as_strided_backward(Tensor grad, int[] input_sizes, int[] size, int[] stride, int? storage_offset=None) -> Tensor",
    ],
    infer: |cx| {
        let (g, sizes) = (cx.ty(0)?, cx.sizes("input_sizes")?);
        ensure!(g.dtype.is_float(), DType, "a gradient is a float, got {g}");
        let want = layout(cx, &sizes)?.shape;
        ensure!(g.shape == want, Shape, "{g} is not the view of shape {want}");
        Ok(vec![TensorType::new(g.dtype, sizes)])
    },
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        Ok(vec![add_through(&layout(cx, &outs[0].shape)?, inputs, &outs[0])?])
    }),
    cases: || {
        vec![
            Case::new("overlapping")
                .f(&[3, 3])
                .attr("input_sizes", [2, 4])
                .attr("size", [3, 3])
                .attr("stride", [2, 1]),
        ]
    },
};

/// The layout requested, on contiguous elements of shape `of`; refused where it reaches outside them.
fn layout(cx: &OpCx, of: &Shape) -> Result<Layout> {
    let (shape, given) = (cx.sizes("size")?, cx.ints("stride")?);
    ensure!(given.len() == shape.rank(), Attribute, "{} strides for {shape}", given.len());
    let start = cx.opt_int("storage_offset")?.unwrap_or(0);
    let outside = || fail!(Attribute, "strides {given:?} from {start} lead outside {of}");
    ensure!(
        start >= 0 && given.iter().all(|&s| s >= 0),
        Attribute,
        "strides {given:?} from {start} are negative"
    );
    let last = shape
        .iter()
        .zip(given)
        .try_fold(start, |at, (&n, &s)| at.checked_add((n.max(1) as i64 - 1).checked_mul(s)?));
    let inside = last.ok_or_else(outside)? < of.numel() as i64;
    if !inside && shape.numel() > 0 {
        return Err(outside());
    }
    let strides = given.iter().map(|&s| s as isize).collect();
    Ok(Layout { shape, strides, offset: start as isize })
}
