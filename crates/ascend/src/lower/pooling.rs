//! Pooling and its gradients by row programs over windows.
//!
//! Along each dimension outputs fall into runs whose windows are alike and evenly apart: those inside, those that padding
//! cuts. Each pair of runs is a launch, which reads its windows out of the input as a strided view and reduces them, so
//! that no padding is stored. The mean's gradient is written window by window where windows do not meet; where they do,
//! each input sums the outputs that cover it, whose runs are alike every stride.

use super::launch::{Lowered, Refusal};
use super::product::{even, input};
use super::sequence::{Sequence, Tensor};
use crate::chip::Chip;
use crate::kernel::Source;
use headwater_core::DType::{F32, I32, I64};
use headwater_core::expr::{Expr, float, input as x};
use headwater_core::ops::OpCx;
use headwater_core::ops::conv::window::{Pool, Window};
use headwater_core::plan::TensorView;
use headwater_core::row::{Access, Instr, Reduce, RowBuilder};

/// Most launches of a step.
const LAUNCHES: usize = 1024;

/// Most windows, and inputs, along a dimension.
const WINDOWS: usize = 1 << 16;

/// Largest distance of outputs whose windows are alike.
const APART: usize = 8;

/// Planes beyond it have indices that f32 does not hold.
const PLANE: usize = 1 << 24;

/// The launches of a `max_pool2d_with_indices` or `adaptive_max_pool2d` node.
///
/// # Errors
/// Windows of too many kinds, and planes whose indices f32 does not hold.
pub fn maximum(
    chip: &Chip,
    pool: &Pool,
    reads: &[Option<TensorView>],
    writes: &[TensorView],
    source: &Source,
) -> Result<Lowered, Refusal> {
    let s = &mut Sequence::new(chip, source);
    let [values, indices] = writes else { return Err(Refusal::new("a maximum without its two results")) };
    let from = planes(&input(reads, 0)?)?;
    let (values, indices) = (planes(&Tensor::write(0, values))?, planes(&Tensor::write(1, indices))?);
    if pool.input_plane() >= PLANE {
        return Err(Refusal::new(format!("indices in planes of {} elements", pool.input_plane())));
    }
    for at in pairs(&all(pool)?)? {
        let (from, values, indices) = (at.windows(&from)?, at.outputs(&values)?, at.outputs(&indices)?);
        let mut b = RowBuilder::new(&from.shape()[..4], &from.shape()[4..]);
        let element = b.read(from.dtype(), Access::identity(6));
        let largest = b.reduce(Reduce::Max, element);
        let [rows, columns] = at.0;
        let width = pool.input[1];
        let steps = [rows.stride * width, columns.stride, rows.window.step * width, columns.window.step];
        let counter = [0, 0].into_iter().chain(steps.map(|s| s as i64)).collect();
        let counter = b.push(Instr::Iota(counter));
        let first = rows.window.start * width + columns.window.start;
        let place = b.expr(&(x(0) + Expr::Int(first as i64)).cast(I32), &[counter]);
        // The first of equals, or the last NaN.
        let beyond = Expr::Int(pool.input_plane() as i64);
        let equal = b.expr(&x(0).eq(x(1)).select(x(2), beyond), &[element, largest, place]);
        let nan = b.expr(&x(0).is_nan().select(x(1), Expr::Int(-1)), &[element, place]);
        let [equal, nan] = [(Reduce::Min, equal), (Reduce::Max, nan)].map(|(op, reg)| {
            let found = b.reduce(op, reg);
            b.expr(&x(0).cast(I32), &[found])
        });
        let index = b.expr(&x(1).lt(Expr::Int(0)).select(x(0), x(1)), &[equal, nan]);
        b.store(values.dtype(), of_output(), largest);
        b.store(I64, of_output(), index);
        s.rows(&b.finish(), &[&from], &[&values, &indices])?;
    }
    Ok(std::mem::take(&mut s.lowered))
}

/// The launches of an `avg_pool2d` or `adaptive_avg_pool2d` node.
///
/// # Errors
/// Windows of too many kinds.
pub fn mean(
    chip: &Chip,
    cx: &OpCx,
    pool: &Pool,
    reads: &[Option<TensorView>],
    write: &TensorView,
    source: &Source,
) -> Result<Lowered, Refusal> {
    let s = &mut Sequence::new(chip, source);
    let (from, to) = (planes(&input(reads, 0)?)?, planes(&Tensor::write(0, write))?);
    for at in pairs(&all(pool)?)? {
        at.sum(s, &from, &to, at.divisor(cx)?)?;
    }
    Ok(std::mem::take(&mut s.lowered))
}

/// The launches of an `avg_pool2d_backward` or `_adaptive_avg_pool2d_backward` node.
///
/// # Errors
/// Windows of too many kinds.
pub fn mean_backward(
    chip: &Chip,
    cx: &OpCx,
    pool: &Pool,
    reads: &[Option<TensorView>],
    write: &TensorView,
    source: &Source,
) -> Result<Lowered, Refusal> {
    let s = &mut Sequence::new(chip, source);
    let (g, dx) = (planes(&input(reads, 0)?)?, planes(&Tensor::write(0, write))?);
    let windows = all(pool)?;
    let covered = [0, 1].map(|d| Covered::of(&windows[d], pool.input[d]));
    let shares = pairs(&windows)?;
    if covered.iter().all(|c| c.most <= 1) {
        if covered.iter().any(|c| c.least == 0) {
            s.fill(&dx, 0.0)?;
        }
        for at in shares {
            let (g, to) = (at.outputs(&g)?, at.windows(&dx)?);
            let mut b = RowBuilder::new(&to.shape()[..4], &to.shape()[4..]);
            let share = b.read(g.dtype(), of_output());
            let share = b.expr(&(x(0) / float(at.divisor(cx)?)), &[share]);
            b.store(to.dtype(), Access::identity(6), share);
            s.rows(&b.finish(), &[&g], &[&to])?;
        }
        return Ok(std::mem::take(&mut s.lowered));
    }
    let shared = s.scratch(F32, g.shape())?;
    for at in shares {
        let (from, to) = (at.outputs(&g)?, at.outputs(&shared)?);
        let mut b = RowBuilder::new(&to.shape()[..3], &to.shape()[3..]);
        let share = b.read(from.dtype(), Access::identity(4));
        let share = b.expr(&(x(0) / float(at.divisor(cx)?)), &[share]);
        b.store(F32, Access::identity(4), share);
        s.rows(&b.finish(), &[&from], &[&to])?;
    }
    for at in pairs(&covered.map(|c| c.windows))? {
        match at.0.iter().any(|run| run.window.count == 0) {
            true => s.fill(&at.outputs(&dx)?, 0.0)?,
            false => at.sum(s, &shared, &dx, 1.0)?,
        }
    }
    Ok(std::mem::take(&mut s.lowered))
}

/// `[n, channels, rows, columns]`, also of planes without a batch.
fn planes(t: &Tensor) -> Result<Tensor, Refusal> {
    match t.shape().rank() {
        3 => even(t, &[&[1], &t.shape()[..]].concat()),
        _ => Ok(t.clone()),
    }
}

/// The windows of a pooling along both dimensions.
fn all(pool: &Pool) -> Result<[Vec<Window>; 2], Refusal> {
    let sizes = pool.input.into_iter().chain(pool.output);
    if sizes.max().is_some_and(|most| most > WINDOWS) {
        return Err(Refusal::new(format!("pooling of more than {WINDOWS} elements along a dimension")));
    }
    // Places that are skipped lie in the padding and are not read.
    let window = |d: usize, o: usize| Window { skipped: 0, ..pool.window(d, o) };
    Ok([0, 1].map(|d| (0..pool.output[d]).map(|o| window(d, o)).collect()))
}

/// One number for each output of `[n, channels, rows, columns]` and window.
fn of_output() -> Access {
    Access::dims(&[Some(0), Some(1), Some(2), Some(3), None, None])
}

/// Outputs whose windows are alike: `first`, and `len` in all, `apart` from one another. The first one's window begins
/// where `window` does, each next one's `stride` further.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Run {
    first: usize,
    len: usize,
    apart: usize,
    window: Window,
    stride: usize,
}

/// Runs of all outputs, the fewest with outputs that are evenly apart.
fn runs(windows: &[Window]) -> Vec<Run> {
    let cut = |apart: usize| {
        let mut all: Vec<Run> = Vec::new();
        for class in 0..apart.min(windows.len()) {
            let mut last: Option<Run> = None;
            for o in (class..windows.len()).step_by(apart) {
                let window = windows[o];
                let next = last.and_then(|run| {
                    let end = run.window.start + run.stride * (run.len - 1);
                    let stride = window.start.checked_sub(end)?;
                    let alike = Window { start: window.start, ..run.window } == window;
                    (alike && (run.len == 1 || stride == run.stride)).then_some(Run {
                        len: run.len + 1,
                        stride,
                        ..run
                    })
                });
                if next.is_none() {
                    all.extend(last);
                }
                last = next.or(Some(Run { first: o, len: 1, apart, window, stride: 0 }));
            }
            all.extend(last);
        }
        all
    };
    (1..=APART).map(cut).min_by_key(Vec::len).unwrap_or_default()
}

/// Runs of rows and columns.
#[derive(Clone, Copy, Debug)]
struct Pair([Run; 2]);

fn pairs(windows: &[Vec<Window>; 2]) -> Result<Vec<Pair>, Refusal> {
    let [rows, columns] = windows.each_ref().map(|w| runs(w));
    let pairs = rows.iter().flat_map(|&r| columns.iter().map(move |&c| Pair([r, c])));
    let pairs: Vec<Pair> = pairs.take(LAUNCHES + 1).collect();
    match pairs.len() > LAUNCHES {
        true => Err(Refusal::new(format!("pooling by more than {LAUNCHES} kinds of windows"))),
        false => Ok(pairs),
    }
}

impl Pair {
    /// The outputs of `[n, channels, rows, columns]`.
    fn outputs(&self, t: &Tensor) -> Result<Tensor, Refusal> {
        let [rows, columns] = self.0;
        let size = |d: usize, run: Run| t.shape()[d] - run.first;
        let t = t.part(2, rows.first, size(2, rows))?.part(3, columns.first, size(3, columns))?;
        let along = |d: usize, run: Run| (run.len, Some((d, run.apart)));
        t.walked(&[
            (t.shape()[0], Some((0, 1))),
            (t.shape()[1], Some((1, 1))),
            along(2, rows),
            along(3, columns),
        ])
    }

    /// Their windows, as `[n, channels, rows, columns, window's rows, window's columns]`.
    fn windows(&self, t: &Tensor) -> Result<Tensor, Refusal> {
        let [rows, columns] = self.0;
        let size = |d: usize, run: Run| t.shape()[d] - run.window.start;
        let t =
            t.part(2, rows.window.start, size(2, rows))?.part(3, columns.window.start, size(3, columns))?;
        let along = |d: usize, run: Run| (run.len, Some((d, run.stride)));
        let inside = |d: usize, run: Run| (run.window.count, Some((d, run.window.step)));
        t.walked(&[
            (t.shape()[0], Some((0, 1))),
            (t.shape()[1], Some((1, 1))),
            along(2, rows),
            along(3, columns),
            inside(2, rows),
            inside(3, columns),
        ])
    }

    fn divisor(&self, cx: &OpCx) -> Result<f64, Refusal> {
        Pool::divisor(cx, self.0[0].window, self.0[1].window).map_err(|e| Refusal(e.message))
    }

    /// Sums of windows, divided.
    fn sum(&self, s: &mut Sequence, from: &Tensor, to: &Tensor, divisor: f64) -> Result<(), Refusal> {
        let (from, to) = (self.windows(from)?, self.outputs(to)?);
        let mut b = RowBuilder::new(&from.shape()[..4], &from.shape()[4..]);
        let element = b.read(from.dtype(), Access::identity(6));
        let sum = b.sum(element);
        let mean = if divisor == 1.0 { sum } else { b.expr(&(x(0) / float(divisor)), &[sum]) };
        b.store(to.dtype(), of_output(), mean);
        s.rows(&b.finish(), &[&from], &[&to])
    }
}

/// The outputs that cover each input along a dimension: they follow one another, as windows do.
struct Covered {
    windows: Vec<Window>,
    least: usize,
    most: usize,
}

impl Covered {
    /// Takes windows over so many inputs, without gaps inside, whose ends do not go back.
    fn of(windows: &[Window], inputs: usize) -> Covered {
        let mut covering = Vec::with_capacity(inputs);
        let (mut first, mut end) = (0, 0);
        for i in 0..inputs {
            while end < windows.len() && windows[end].start <= i {
                end += 1;
            }
            while first < end && windows[first].start + windows[first].count <= i {
                first += 1;
            }
            covering.push(Window { start: first, count: end - first, step: 1, weight: 0, skipped: 0 });
        }
        let count = || covering.iter().map(|w| w.count);
        Covered { least: count().min().unwrap_or(0), most: count().max().unwrap_or(0), windows: covering }
    }
}
