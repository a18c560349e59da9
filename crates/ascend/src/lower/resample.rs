//! Resampling of images and its gradient, along columns and then along rows.
//!
//! Each output is a weighted sum of a few inputs ([`ResampledAxis::taps`]), and each gradient of a few
//! outputs' gradients: both are gathers of whole lines by constant indices, and a row program that weighs
//! them. The nearest input at a whole factor needs no gather: it is one row program.

use super::indexing::gathered;
use super::launch::Refusal;
use super::product::even;
use super::sequence::{Sequence, Tensor};
use headwater_core::DType::{F32, I32};
use headwater_core::expr::{Expr, float, input as x};
use headwater_core::ops::OpCx;
use headwater_core::ops::image::resample::ResampledAxis;
use headwater_core::ops::image::upsample2d::axes;
use headwater_core::row::{Access, RowBuilder, RowProgram};

/// Most inputs that a sum has.
const TAPS: usize = 16;

/// Terms of each result along an axis: where they come from, and their weights.
type Terms = Vec<Vec<(usize, f64)>>;

/// The launches of an `upsample2d` node.
///
/// # Errors
/// Sums of too many terms, and lines without a kernel.
pub fn upsample(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    resample(s, cx, false)
}

/// The launches of an `upsample2d_backward` node.
///
/// # Errors
/// As [`upsample`].
pub fn upsample_backward(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    resample(s, cx, true)
}

/// Weighted sums along both dimensions, or their gradient.
fn resample(s: &mut Sequence, cx: &OpCx, backward: bool) -> Result<(), Refusal> {
    let (from, to) = (s.input(0)?, s.output(0)?);
    if to.shape().contains(&0) {
        return Ok(());
    }
    let image = if backward { to.shape().clone() } else { from.shape().clone() };
    let (axes, lead) = axes(cx, &image)?;
    let planes = lead.iter().product();
    let planar = |t: &Tensor| {
        let [.., rows, columns] = t.shape()[..] else {
            return Err(Refusal::new("an image of one dimension"));
        };
        even(t, &[planes, rows, columns])
    };
    let (from, to) = (planar(&from)?, planar(&to)?);
    if let [Some(rows), Some(columns)] = axes.map(|a| factor(&a)) {
        repeated(s, [rows, columns], backward, &from, &to)?;
        return Ok(());
    }
    let [rows, columns] = axes.map(|a| terms(&a, backward));
    // Along columns, whose lines are strided: transposed.
    let (height, width) = (from.shape()[1], to.shape()[2]);
    let mut have = from;
    if !still(&columns, have.shape()[2]) {
        let lines = s.copied(&have.transposed())?;
        let found = s.scratch(F32, &[planes, width, height])?;
        weighed(s, &lines, &columns, &found)?;
        have = found.transposed();
    }
    if still(&rows, height) {
        s.copy(&have, &to)?;
        return Ok(());
    }
    if !have.view.layout.is_contiguous() {
        have = s.copied(&have)?;
    }
    weighed(s, &have, &rows, &to)?;
    Ok(())
}

/// The factor of an axis whose every input is repeated so many times.
fn factor(axis: &ResampledAxis) -> Option<usize> {
    let factor = axis.output / axis.input;
    let whole = axis.input * factor == axis.output && factor > 0;
    let same = |o: usize| axis.taps(o) == [(o / factor, 1.0)];
    (whole && (0..axis.output).all(same)).then_some(factor)
}

/// Terms of each output, or of each input's gradient; an input that occurs twice in a sum has one weight.
fn terms(axis: &ResampledAxis, backward: bool) -> Terms {
    let mut all: Terms = vec![Vec::new(); if backward { axis.input } else { axis.output }];
    for o in 0..axis.output {
        for (i, weight) in axis.taps(o) {
            let (to, from) = if backward { (i, o) } else { (o, i) };
            match all[to].iter_mut().find(|t| t.0 == from) {
                Some(known) => known.1 += weight,
                None => all[to].push((from, weight)),
            }
        }
    }
    all
}

/// True if every result is the input at its own place.
fn still(terms: &Terms, inputs: usize) -> bool {
    terms.len() == inputs && terms.iter().enumerate().all(|(at, t)| *t == [(at, 1.0)])
}

/// Elements repeated along rows and columns, or sums of those repetitions.
fn repeated(
    s: &mut Sequence,
    [rows, columns]: [usize; 2],
    backward: bool,
    from: &Tensor,
    to: &Tensor,
) -> Result<(), Refusal> {
    let small = if backward { to } else { from };
    let [planes, height, width] = small.shape()[..] else {
        return Err(Refusal::new("an image of one dimension"));
    };
    if backward {
        let mut b = RowBuilder::new(&[planes, height, width], &[rows, columns]);
        let all = [(0, 1), (1, rows), (2, columns), (1, 1), (2, 1)].map(Some);
        let term = b.read(from.dtype(), Access(all.to_vec()));
        let sum = b.sum(term);
        b.store(to.dtype(), Access::dims(&[Some(0), Some(1), Some(2), None, None]), sum);
        return s.rows(&b.finish(), &[from], &[to]);
    }
    let mut b = RowBuilder::new(&[planes, height, rows], &[width, columns]);
    let element = b.read(from.dtype(), Access::dims(&[Some(0), Some(1), None, Some(2), None]));
    let all = [(0, 1), (1, rows), (1, 1), (2, columns), (2, 1)].map(Some);
    b.store(to.dtype(), Access(all.to_vec()), element);
    s.rows(&b.finish(), &[from], &[to])
}

/// Lines `[planes, n, width]`, contiguous, summed with weights to `[planes, results, width]`.
fn weighed(s: &mut Sequence, lines: &Tensor, terms: &Terms, to: &Tensor) -> Result<(), Refusal> {
    let [planes, n, width] = lines.shape()[..] else { return Err(Refusal::new("lines of another rank")) };
    let (results, most) = (terms.len(), terms.iter().map(Vec::len).max().unwrap_or(0).max(1));
    if most > TAPS {
        return Err(Refusal(format!("resampling by sums of more than {TAPS} terms")));
    }
    if planes * n.max(results * most) > i32::MAX as usize {
        return Err(Refusal::new("places beyond 32 bits"));
    }
    let term = |t: usize, r: usize| terms[r].get(t).copied().unwrap_or((0, 0.0));
    let own: Vec<u8> =
        (0..results).flat_map(|r| (0..most).flat_map(move |t| (term(t, r).0 as i32).to_le_bytes())).collect();
    let own = s.constant(I32, &[results * most], &own);
    let at = s.scratch(I32, &[planes, results * most])?;
    let shape: &[usize] = at.shape();
    let first = (Expr::Coord(0) * Expr::Int(n as i64)).cast(I32);
    let place = (first + x(0)).cast(I32);
    s.rows(&RowProgram::pointwise(&[(I32, &shape[1..])], shape, &[I32], &[place]), &[&own], &[&at])?;
    let sizes = [planes * results * most, planes * n, width];
    let unit = terms.iter().all(|t| matches!(t[..], [(_, 1.0)]));
    if unit && lines.dtype() == to.dtype() && to.view.layout.is_contiguous() {
        return gathered(s, sizes, &at, lines, None, to);
    }
    let found = s.scratch(lines.dtype(), &[planes, results, most, width])?;
    gathered(s, sizes, &at, lines, None, &found)?;
    let mut b = RowBuilder::new(&[planes, results], &[width]);
    let (mut reads, mut sum) = (Vec::new(), None);
    for t in 0..most {
        let element = b.read(lines.dtype(), Access::dims(&[Some(0), Some(1), Some(3)]));
        reads.push(found.part(2, t, 1)?);
        let weights: Vec<u8> = (0..results).flat_map(|r| (term(t, r).1 as f32).to_le_bytes()).collect();
        let weight = b.read(F32, Access::dims(&[None, Some(0), None]));
        reads.push(s.constant(F32, &[results], &weights));
        // Terms that a sum lacks have no weight, whatever their values.
        let counts = x(1).eq(float(0.0)).select(float(0.0), x(0) * x(1));
        let product = b.expr(&counts, &[element, weight]);
        sum = Some(match sum {
            None => product,
            Some(sum) => b.expr(&(x(0) + x(1)), &[sum, product]),
        });
    }
    let sum = sum.ok_or_else(|| Refusal::new("sums of nothing"))?;
    b.store(to.dtype(), Access::identity(3), sum);
    s.rows(&b.finish(), &reads.iter().collect::<Vec<_>>(), &[to])
}
