//! Sums over each parameter of a flat span, and values spread back over them: what optimizers with a norm for
//! each parameter need beside row programs. Every parameter begins at a block, so that both work on one
//! number a block.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};
use std::ops::Range;

/// `[blocks]` to the f64 sums `[segments]` of its segments, each from first to last. Attribute `ends`: the
/// block after each segment's last.
pub static SEGMENT_SUM: OpDef = OpDef {
    name: "segment_sum",
    schemas: &["headwater::segment_sum(Tensor x, *, int[] ends) -> Tensor"],
    infer: |cx| {
        let x = cx.ty(0)?;
        ensure!(
            x.dtype.is_float() && x.shape.rank() == 1,
            Shape,
            "segments are of a vector of floats, got {x}"
        );
        Ok(vec![TensorType::new(DType::F64, [segments(cx, x.shape[0])?.len()])])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        let x = inputs[0].expect("typed").floats();
        let segments = segments(cx, x.len())?;
        let sums = segments.into_iter().map(|s| x[s].iter().fold(0.0, |sum, x| sum + x)).collect();
        Ok(vec![Tensor::float(DType::F64, outs[0].shape.clone(), sums)])
    }),
    cases: || vec![case("empty segment").f(&[6]), case("one").f(&[4]).attr("ends", [4])],
};

/// `[segments]` to `[blocks, 1]`: every block gets the number of its segment. Attribute `ends` as in
/// [`SEGMENT_SUM`].
pub static SEGMENT_SPREAD: OpDef = OpDef {
    name: "segment_spread",
    schemas: &["headwater::segment_spread(Tensor x, *, int[] ends) -> Tensor"],
    infer: |cx| {
        let x = cx.ty(0)?;
        let blocks = ends(cx)?.last().copied().unwrap_or(0);
        let count = segments(cx, blocks)?.len();
        let fits = x.dtype.is_float() && x.shape[..] == [count];
        ensure!(fits, Shape, "expected floats [{count}], one a segment, got {x}");
        Ok(vec![TensorType::new(x.dtype, [blocks, 1])])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Kernel(|cx, inputs, outs| {
        let x = inputs[0].expect("typed").floats();
        let segments = segments(cx, outs[0].shape[0])?;
        let spread = segments.iter().zip(x).flat_map(|(s, &x)| s.clone().map(move |_| x)).collect();
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), spread)])
    }),
    cases: || vec![case("empty segment").f(&[3]), case("one").f(&[1]).attr("ends", [4])],
};

/// The segments of `blocks` blocks that the attribute `ends` gives.
///
/// # Errors
/// `Attribute` if they do not ascend to `blocks`.
pub fn segments(cx: &OpCx, blocks: usize) -> Result<Vec<Range<usize>>> {
    let ends = ends(cx)?;
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let segments: Vec<Range<usize>> = starts.zip(ends.iter()).map(|(start, &end)| start..end).collect();
    let ascend = segments.iter().all(|s| s.start <= s.end) && ends.last().copied().unwrap_or(0) == blocks;
    ensure!(ascend, Attribute, "`ends` must ascend to the number of blocks, {blocks}");
    Ok(segments)
}

fn ends(cx: &OpCx) -> Result<Vec<usize>> {
    let end = |&end: &i64| usize::try_from(end).ok().filter(|&end| end < usize::MAX / 16);
    let ends = cx.ints("ends")?.iter().map(end).collect::<Option<_>>();
    ends.ok_or_else(|| crate::fail!(Attribute, "`ends` counts more blocks than memory holds"))
}

fn case(name: &'static str) -> Case {
    Case::new(name).attr("ends", [2, 2, 6])
}
