//! Pooling and its gradients by row programs over windows.
//!
//! Along each dimension outputs fall into runs whose windows are alike and have a constant stride: those
//! inside, those that padding cuts. Each pair of runs is a step, which reads its windows out of the input as
//! a strided view and reduces them, so that no padding is stored. The mean's gradient is written window by
//! window where windows do not meet; where they do, each input sums the outputs that cover it, whose runs are
//! alike every stride.

use super::sequence::{Sequence, View};
use crate::diagnostic::Result;
use crate::dtype::DType::{F32, I32, I64};
use crate::expr::{Expr, float, input as x};
use crate::fail;
use crate::ops::OpCx;
use crate::ops::conv::window::{Pool, Window};
use crate::row::{Access, Instr, Reduce, RowBuilder};

/// Most steps of a node.
const STEPS: usize = 1024;

/// Most windows, and inputs, along a dimension.
const WINDOWS: usize = 1 << 16;

/// Largest distance of outputs whose windows are alike.
const APART: usize = 8;

/// Planes beyond it have indices that f32 does not hold.
const PLANE: usize = 1 << 24;

/// The steps of a `max_pool2d_with_indices` node.
///
/// # Errors
/// `Unsupported` for windows of too many kinds, and planes whose indices f32 does not hold.
pub fn maximum(s: &mut Sequence, cx: &OpCx) -> Result<()> {
    largest(s, &Pool::sliding(cx.shape(0)?, cx)?)
}

/// The steps of an `adaptive_max_pool2d` node.
///
/// # Errors
/// As [`maximum`].
pub fn maximum_adaptive(s: &mut Sequence, cx: &OpCx) -> Result<()> {
    largest(s, &Pool::adaptive(cx.shape(0)?, cx)?)
}

/// The steps of an `avg_pool2d` node.
///
/// # Errors
/// `Unsupported` for windows of too many kinds.
pub fn mean(s: &mut Sequence, cx: &OpCx) -> Result<()> {
    means(s, cx, &Pool::sliding(cx.shape(0)?, cx)?)
}

/// The steps of an `adaptive_avg_pool2d` node.
///
/// # Errors
/// As [`mean`].
pub fn mean_adaptive(s: &mut Sequence, cx: &OpCx) -> Result<()> {
    means(s, cx, &Pool::adaptive(cx.shape(0)?, cx)?)
}

/// The steps of an `avg_pool2d_backward` node.
///
/// # Errors
/// As [`mean`].
pub fn mean_backward(s: &mut Sequence, cx: &OpCx) -> Result<()> {
    shares(s, cx, &Pool::sliding(&cx.sizes("input_size")?, cx)?)
}

/// The steps of an `_adaptive_avg_pool2d_backward` node.
///
/// # Errors
/// As [`mean`].
pub fn mean_backward_adaptive(s: &mut Sequence, cx: &OpCx) -> Result<()> {
    shares(s, cx, &Pool::adaptive(&cx.sizes("input_size")?, cx)?)
}

/// The largest element of each window, and its index in the plane.
fn largest(s: &mut Sequence, pool: &Pool) -> Result<()> {
    let from = planes(&s.input(0)?)?;
    let (values, indices) = (planes(&s.output(0)?)?, planes(&s.output(1)?)?);
    if pool.input_plane() >= PLANE {
        return Err(fail!(Unsupported, "indices in planes of {} elements", pool.input_plane()));
    }
    for at in pairs(&all(pool)?)? {
        let (from, values, indices) = (at.windows(&from)?, at.outputs(&values)?, at.outputs(&indices)?);
        let mut b = RowBuilder::new(&from.shape()[..4], &from.shape()[4..]);
        let element = b.read(from.dtype, Access::identity(6));
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
        b.store(values.dtype, of_output(), largest);
        b.store(I64, of_output(), index);
        s.rows(b.finish(), &[&from], &[&values, &indices])?;
    }
    Ok(())
}

/// The mean of each window.
fn means(s: &mut Sequence, cx: &OpCx, pool: &Pool) -> Result<()> {
    let (from, to) = (planes(&s.input(0)?)?, planes(&s.output(0)?)?);
    for at in pairs(&all(pool)?)? {
        at.sum(s, &from, &to, at.divisor(cx)?)?;
    }
    Ok(())
}

/// The gradient of means: each input's share of the outputs that cover it.
fn shares(s: &mut Sequence, cx: &OpCx, pool: &Pool) -> Result<()> {
    let (g, dx) = (planes(&s.input(0)?)?, planes(&s.output(0)?)?);
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
            let share = b.read(g.dtype, of_output());
            let share = b.expr(&(x(0) / float(at.divisor(cx)?)), &[share]);
            b.store(to.dtype, Access::identity(6), share);
            s.rows(b.finish(), &[&g], &[&to])?;
        }
        return Ok(());
    }
    let shared = s.temporary(F32, g.shape())?;
    for at in shares {
        let (from, to) = (at.outputs(&g)?, at.outputs(&shared)?);
        let mut b = RowBuilder::new(&to.shape()[..3], &to.shape()[3..]);
        let share = b.read(from.dtype, Access::identity(4));
        let share = b.expr(&(x(0) / float(at.divisor(cx)?)), &[share]);
        b.store(F32, Access::identity(4), share);
        s.rows(b.finish(), &[&from], &[&to])?;
    }
    for at in pairs(&covered.map(|c| c.windows))? {
        match at.0.iter().any(|run| run.window.count == 0) {
            true => s.fill(&at.outputs(&dx)?, 0.0)?,
            false => at.sum(s, &shared, &dx, 1.0)?,
        }
    }
    Ok(())
}

/// `[n, channels, rows, columns]`, also of planes without a batch.
fn planes(t: &View) -> Result<View> {
    match t.shape().rank() {
        3 => t.reshaped(&[&[1], &t.shape()[..]].concat()),
        _ => Ok(t.clone()),
    }
}

/// The windows of a pooling along both dimensions.
fn all(pool: &Pool) -> Result<[Vec<Window>; 2]> {
    let sizes = pool.input.into_iter().chain(pool.output);
    if sizes.max().is_some_and(|most| most > WINDOWS) {
        return Err(fail!(Unsupported, "pooling of more than {WINDOWS} elements along a dimension"));
    }
    // Places that are skipped are in the padding and are not read.
    let window = |d: usize, o: usize| Window { skipped: 0, ..pool.window(d, o) };
    Ok([0, 1].map(|d| (0..pool.output[d]).map(|o| window(d, o)).collect()))
}

/// One number for each output of `[n, channels, rows, columns]` and window.
fn of_output() -> Access {
    Access::dims(&[Some(0), Some(1), Some(2), Some(3), None, None])
}

/// Outputs whose windows are alike: `first`, and `len` in all, `apart` from one another. The first one's
/// window begins where `window` does, each next one's `stride` further.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Run {
    first: usize,
    len: usize,
    apart: usize,
    window: Window,
    stride: usize,
}

/// Runs of all outputs, the fewest with outputs of a constant stride.
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

fn pairs(windows: &[Vec<Window>; 2]) -> Result<Vec<Pair>> {
    let [rows, columns] = windows.each_ref().map(|w| runs(w));
    let pairs = rows.iter().flat_map(|&r| columns.iter().map(move |&c| Pair([r, c])));
    let pairs: Vec<Pair> = pairs.take(STEPS + 1).collect();
    match pairs.len() > STEPS {
        true => Err(fail!(Unsupported, "pooling by more than {STEPS} kinds of windows")),
        false => Ok(pairs),
    }
}

impl Pair {
    /// The outputs of `[n, channels, rows, columns]`.
    fn outputs(&self, t: &View) -> Result<View> {
        let [rows, columns] = self.0;
        let size = |d: usize, run: Run| t.shape()[d] - run.first;
        let t = t.part(2, rows.first, size(2, rows))?.part(3, columns.first, size(3, columns))?;
        let along = |d: usize, run: Run| (run.len, Some((d, run.apart)));
        t.strided(&[
            (t.shape()[0], Some((0, 1))),
            (t.shape()[1], Some((1, 1))),
            along(2, rows),
            along(3, columns),
        ])
    }

    /// Their windows, as `[n, channels, rows, columns, window's rows, window's columns]`.
    fn windows(&self, t: &View) -> Result<View> {
        let [rows, columns] = self.0;
        let size = |d: usize, run: Run| t.shape()[d] - run.window.start;
        let t =
            t.part(2, rows.window.start, size(2, rows))?.part(3, columns.window.start, size(3, columns))?;
        let along = |d: usize, run: Run| (run.len, Some((d, run.stride)));
        let inside = |d: usize, run: Run| (run.window.count, Some((d, run.window.step)));
        t.strided(&[
            (t.shape()[0], Some((0, 1))),
            (t.shape()[1], Some((1, 1))),
            along(2, rows),
            along(3, columns),
            inside(2, rows),
            inside(3, columns),
        ])
    }

    fn divisor(&self, cx: &OpCx) -> Result<f64> {
        Pool::divisor(cx, self.0[0].window, self.0[1].window)
    }

    /// Sums of windows, divided.
    fn sum(&self, s: &mut Sequence, from: &View, to: &View, divisor: f64) -> Result<()> {
        let (from, to) = (self.windows(from)?, self.outputs(to)?);
        let mut b = RowBuilder::new(&from.shape()[..4], &from.shape()[4..]);
        let element = b.read(from.dtype, Access::identity(6));
        let sum = b.sum(element);
        let mean = if divisor == 1.0 { sum } else { b.expr(&(x(0) / float(divisor)), &[sum]) };
        b.store(to.dtype, of_output(), mean);
        s.rows(b.finish(), &[&from], &[&to])
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
