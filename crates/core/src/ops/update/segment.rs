//! Sums over each parameter of a flat span, and values spread back over them. Optimizers with a norm for each
//! parameter need them beside row programs. Every parameter begins at a block, so that both work on one
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
    infer: |cx| Ok(vec![TensorType::new(DType::F64, [count(cx)?])]),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        Ok(vec![Tensor::float(DType::F64, outs[0].shape.clone(), sums(cx, inputs)?)])
    }),
    cases: || vec![case("empty segment").f(&[6]), case("one").f(&[4]).attr("ends", [4])],
};

/// [`SEGMENT_SUM`] as pairs of f32, `[2, segments]`: the sums rounded to f32, then what that left, for
/// targets without f64 (`pass::split_wide`). The error is at most `n · 2⁻⁴⁶` of the sum of `n` magnitudes, as
/// a running sum in double-word arithmetic has it.
pub static SEGMENT_SUM_PAIR: OpDef = OpDef {
    name: "segment_sum_pair",
    schemas: &["headwater::segment_sum_pair(Tensor x, *, int[] ends) -> Tensor"],
    infer: |cx| Ok(vec![TensorType::new(DType::F32, [2, count(cx)?])]),
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Full,
    cost: Cost::PerInput(20),
    body: Body::Kernel(|cx, inputs, outs| {
        let sums = sums(cx, inputs)?;
        let hi: Vec<f64> = sums.iter().map(|&x| x as f32 as f64).collect();
        let lo: Vec<f64> =
            sums.iter().zip(&hi).map(|(x, hi)| if hi.is_finite() { x - hi } else { 0.0 }).collect();
        Ok(vec![Tensor::float(DType::F32, outs[0].shape.clone(), [hi, lo].concat())])
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

/// Number of segments of input 0, which must be a vector of floats.
fn count(cx: &OpCx) -> Result<usize> {
    let x = cx.ty(0)?;
    let vector = x.dtype.is_float() && x.shape.rank() == 1;
    ensure!(vector, Shape, "segments are of a vector of floats, got {x}");
    Ok(segments(cx, x.shape[0])?.len())
}

/// The sum of each segment of input 0, in f64.
fn sums(cx: &OpCx, inputs: &[Option<&Tensor>]) -> Result<Vec<f64>> {
    let x = inputs[0].expect("typed").floats();
    let segments = segments(cx, x.len())?;
    Ok(segments.into_iter().map(|s| x[s].iter().fold(0.0, |sum, x| sum + x)).collect())
}

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
