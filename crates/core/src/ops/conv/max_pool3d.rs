//! The largest input of each window of three dimensions.

use super::max_pool2d::{ADAPTIVE_MAX_POOL2D, MAX_POOL2D};
use super::volume::Volume;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::index::gather::GATHER;
use crate::ops::pointwise::{add::ADD, div::DIV, mul::MUL};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};

/// Maximum over sliding windows of `[…, D, H, W]`, and its index in the volume
/// (`(depth · H + row) · W + column`). As of [`MAX_POOL2D`], the first of equals wins, and the last NaN over
/// everything.
pub static MAX_POOL3D: OpDef = OpDef {
    name: "max_pool3d_with_indices",
    schemas: &[
        "max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
        "max_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> Tensor",
    ],
    infer: |cx| Volume::of(cx)?.infer(cx.dtype(0)?, &MAX_POOL2D),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| pooled(b, cx, inputs, &MAX_POOL2D)),
    cases: || {
        let pool = |name, shape: &[usize]| Case::new(name).distinct(shape);
        vec![
            pool("plain", &[1, 2, 2, 3, 4]).attr("kernel_size", [2, 3, 2]),
            pool("overlapping, padded", &[1, 3, 4, 3])
                .attr("kernel_size", [3, 2, 2])
                .attr("stride", [1, 1, 2])
                .attr("padding", [1, 1, 0]),
            pool("dilated", &[1, 1, 5, 4, 2])
                .attr("kernel_size", [2, 2, 1])
                .attr("stride", [1])
                .attr("dilation", [3, 2, 1]),
            pool("ceil", &[2, 3, 3, 3]).attr("kernel_size", [2]).attr("stride", [2]).attr("ceil_mode", true),
        ]
    },
};

/// Maximum over as many windows of `[…, D, H, W]` as `output_size` requests, and its index in the volume.
pub static ADAPTIVE_MAX_POOL3D: OpDef = OpDef {
    name: "adaptive_max_pool3d",
    schemas: &["adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)"],
    infer: |cx| Volume::of(cx)?.infer(cx.dtype(0)?, &ADAPTIVE_MAX_POOL2D),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| pooled(b, cx, inputs, &ADAPTIVE_MAX_POOL2D)),
    cases: || {
        vec![
            Case::new("one").distinct(&[1, 2, 2, 3, 2]).attr("output_size", [1, 1, 1]),
            Case::new("uneven").distinct(&[1, 5, 4, 2]).attr("output_size", [3, 2, 2]),
        ]
    },
};

/// Both results, by a pooling of planes and one of depth.
fn pooled(
    b: &mut Builder,
    cx: &OpCx,
    inputs: &[Option<ValueId>],
    op: &'static OpDef,
) -> Result<Vec<ValueId>> {
    let parts = Volume::of(cx)?.pool(b, required(inputs, 0)?, op)?;
    let types = Volume::of(cx)?.infer(cx.dtype(0)?, op)?;
    let (best, within) = (parts.depth[0], parts.depth[1]);
    let best = b.reshape(best, &types[0].shape)?;
    let best = b.cast(best, types[0].dtype)?;
    // The index among all planes' maxima names the plane, and the position of its maximum in it.
    let [channels, _, columns] = b.ty(within).shape[..] else { unreachable!("three dimensions") };
    let planes =
        b.reshape(parts.planes[1], &[channels, b.ty(parts.planes[1]).shape.numel() / channels.max(1)])?;
    let flat = b.reshape(within, &[channels, b.ty(within).shape.numel() / channels.max(1)])?;
    let inside = b.one(&GATHER, &[planes, flat], Attrs::new().with("dim", 1))?;
    let by = Attrs::new().with("other", columns.max(1) as i64).with("rounding_mode", "floor");
    let depth = b.one(&DIV, &[flat], by)?;
    let x = cx.shape(0)?;
    let plane = x[x.rank() - 2] * x[x.rank() - 1];
    let start = b.one(&MUL, &[depth], Attrs::new().with("other", plane as i64))?;
    let at = b.one(&ADD, &[start, inside], Attrs::new())?;
    Ok(vec![best, b.reshape(at, &types[1].shape)?])
}
