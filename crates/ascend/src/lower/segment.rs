//! Sums over each parameter of a flat span as pairs of f32, and values spread back over the parameters'
//! blocks.
//!
//! Which blocks a parameter has is known when a plan is loaded, so both are gathers by constant indices. A
//! sum takes up to [`WIDTH`] blocks at a time into columns, whose pairs are added in a tree (AccurateDWPlusDW
//! without its last term: Joldes, Muller and Popescu, "Tight and rigorous error bounds for basic building
//! blocks of double-word arithmetic", ACM TOMS 44, 2017), and the results likewise until each parameter has
//! one.

use super::indexing::gathered;
use super::launch::Refusal;
use super::product::even;
use super::sequence::{Sequence, Tensor};
use headwater_core::DType::{F32, I32};
use headwater_core::expr::{Expr, float, input as x};
use headwater_core::ops::OpCx;
use headwater_core::ops::update::segment::segments;
use headwater_core::row::{Access, Reg, RowBuilder};
use std::ops::Range;

/// Blocks that are added in one pass.
const WIDTH: usize = 64;

/// Operands of a program that adds them.
const TERMS: usize = 8;

/// The launches of a `segment_spread` node.
///
/// # Errors
/// Types and shapes without a kernel.
pub fn spread(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let (from, to) = (s.input(0)?, s.output(0)?);
    let blocks = to.shape()[0];
    let segments = segments(cx, blocks)?;
    if blocks == 0 {
        return Ok(());
    }
    let numbers = segments.iter().enumerate().flat_map(|(i, s)| s.clone().map(move |_| i));
    let at = indices(s, numbers)?;
    gathered(s, [blocks, segments.len(), 1], &at, &from, None, &to)?;
    Ok(())
}

/// A constant vector of indices.
fn indices(s: &mut Sequence, numbers: impl Iterator<Item = usize>) -> Result<Tensor, Refusal> {
    let words = numbers.map(|i| i32::try_from(i).ok()).collect::<Option<Vec<i32>>>();
    let words = words.ok_or_else(|| Refusal::new("places beyond 32 bits"))?;
    let bytes: Vec<u8> = words.iter().flat_map(|i| i.to_le_bytes()).collect();
    Ok(s.constant(I32, &[words.len()], &bytes))
}

/// The launches of a `segment_sum_pair` node.
///
/// # Errors
/// Types and shapes without a kernel.
pub fn sums(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let (from, to) = (s.input(0)?, s.output(0)?);
    let blocks = from.shape()[0];
    let mut ranges = segments(cx, blocks)?;
    if ranges.is_empty() {
        return Ok(());
    }
    let results = [0, 1].map(|i| to.part(0, i, 1).and_then(|t| even(&t, &[1, ranges.len()])));
    let [hi, lo] = results;
    let results = [hi?, lo?];
    // Numbers of the pass, of which the last is 0.
    let mut have = vec![padded(s, blocks)?];
    if blocks > 0 {
        s.copy(&from, &have[0].part(0, 0, blocks)?)?;
    }
    loop {
        let longest = ranges.iter().map(|r| r.len()).max().unwrap_or(0);
        let width = longest.clamp(1, WIDTH).next_power_of_two();
        let mut pieces: Vec<Range<usize>> = Vec::new();
        let mut next = Vec::new();
        for range in &ranges {
            let first = pieces.len();
            let starts = (range.start..range.end.max(range.start + 1)).step_by(width);
            pieces.extend(starts.map(|start| start..range.end.min(start + width)));
            next.push(first..pieces.len());
        }
        let (count, zero) = (pieces.len(), have[0].shape()[0] - 1);
        let term = |j: usize| pieces.iter().map(move |p| if j < p.len() { p.start + j } else { zero });
        let at = indices(s, (0..width).flat_map(term))?;
        let mut columns = Vec::new();
        for part in &have {
            let column = s.scratch(F32, &[width, count])?;
            gathered(s, [width * count, zero + 1, 1], &at, part, None, &column)?;
            columns.push(column);
        }
        if longest <= WIDTH {
            added(s, columns, &results)?;
            return Ok(());
        }
        have = vec![padded(s, count)?, padded(s, count)?];
        let to = |t: &Tensor| t.part(0, 0, count).and_then(|t| even(&t, &[1, count]));
        added(s, columns, &[to(&have[0])?, to(&have[1])?])?;
        ranges = next;
    }
}

/// A buffer for `count` numbers and a 0.
fn padded(s: &mut Sequence, count: usize) -> Result<Tensor, Refusal> {
    let room = s.scratch(F32, &[count + 1])?;
    s.fill(&room, 0.0)?;
    Ok(room)
}

/// The sums of the columns of numbers or pairs `[rows, columns]`, a power of two rows, as pairs
/// `[1, columns]`.
fn added(s: &mut Sequence, mut have: Vec<Tensor>, to: &[Tensor; 2]) -> Result<(), Refusal> {
    loop {
        let (rows, columns) = (have[0].shape()[0], have[0].shape()[1]);
        let terms = rows.min(TERMS);
        let left = rows / terms;
        let mut b = RowBuilder::new(&[left], &[columns]);
        let mut reads = Vec::new();
        let mut pairs: Vec<(Reg, Option<Reg>)> = Vec::new();
        for i in 0..terms {
            let mut halves = Vec::new();
            for part in &have {
                halves.push(b.read(F32, Access::identity(2)));
                reads.push(part.part(0, i * left, left)?);
            }
            pairs.push((halves[0], halves.get(1).copied()));
        }
        while pairs.len() > 1 {
            pairs = pairs.chunks(2).map(|two| sum(&mut b, two[0], two[1])).collect();
        }
        let (hi, lo) = pairs[0];
        let lo = lo.unwrap_or_else(|| b.expr(&float(0.0), &[]));
        for half in [hi, lo] {
            b.store(F32, Access::identity(2), half);
        }
        let reads: Vec<&Tensor> = reads.iter().collect();
        if left == 1 {
            return s.rows(&b.finish(), &reads, &[&to[0], &to[1]]);
        }
        let next = [s.scratch(F32, &[left, columns])?, s.scratch(F32, &[left, columns])?];
        s.rows(&b.finish(), &reads, &[&next[0], &next[1]])?;
        have = next.to_vec();
    }
}

/// The sum of two pairs; where it is not finite it has no lower half.
fn sum(b: &mut RowBuilder, p: (Reg, Option<Reg>), q: (Reg, Option<Reg>)) -> (Reg, Option<Reg>) {
    let meaningful = |error: Expr| x(0).abs().lt(float(f64::INFINITY)).select(error, float(0.0));
    let s = b.expr(&(x(0) + x(1)), &[p.0, q.0]);
    let part = b.expr(&(x(0) - x(1)), &[s, p.0]);
    let error = (x(1) - (x(0) - x(3))) + (x(2) - x(3));
    let error = b.expr(&meaningful(error), &[s, p.0, q.0, part]);
    let (Some(first), Some(second)) = (p.1, q.1) else { return (s, Some(error)) };
    let below = b.expr(&(x(0) + (x(1) + x(2))), &[error, first, second]);
    let hi = b.expr(&(x(0) + x(1)), &[s, below]);
    let lo = b.expr(&meaningful(x(2) - (x(0) - x(1))), &[hi, s, below]);
    (hi, Some(lo))
}
