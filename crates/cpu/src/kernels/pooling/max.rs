//! Maxima and their places. Windows with one stride are compared for neighbouring outputs at a time, as
//! vectors. Rows of the input are copied into lines that have padding at both ends, so that no output
//! differs.

use super::{Prepared, Site, Windows, wide};
use crate::element::{Float, Wide};
use crate::float_dtype;
use crate::gemm::{Microkernels, Operand};
use crate::matrix::Mat;
use crate::pool::Shared;
use crate::tier::Loop;
use headwater_core::diagnostic::Result;
use headwater_core::fail;
use headwater_core::ops::conv::window::{Pool, Window};
use std::hint::select_unpredictable;

/// Neighbouring outputs computed at a time.
const SIDE: usize = 16;

/// Bytes of workspace: lines for each thread.
pub(super) fn workspace(site: &Site, pool: Result<Pool>) -> usize {
    let lines = pool.ok().and_then(|pool| Lines::new(&Windows::new(pool)));
    lines.map_or(0, |lines| lines.elements() * wide(site) * site.threads)
}

pub(super) fn prepare(site: &Site, pool: Pool) -> Prepared {
    let windows = Windows::new(pool);
    let (lines, tier) = (Lines::new(&windows), site.tier);
    float_dtype!(site.outs[0].dtype, T => Box::new(move |args| {
        let x = args.read(0)?.slice::<T>();
        let [best, places] = args.writes else { return Err(fail!(Graph, "two results are needed")) };
        let (best, places) = (best.slice_mut::<T>(), places.slice_mut::<i64>());
        let (from, to) = (windows.pool.input_plane(), windows.pool.output_plane());
        assert!(best.len() == places.len() && best.len() == windows.pool.planes * to);
        let (best, places) = (Shared(best.as_mut_ptr()), Shared(places.as_mut_ptr()));
        let planes = if to == 0 { 0 } else { windows.pool.planes };
        let bytes = lines.as_ref().map_or(0, Lines::elements) * size_of::<<T as Float>::Wide>() * args.pool.threads();
        // An empty workspace need not be aligned, which the cast would demand.
        let scratch: &mut [<T as Float>::Wide] =
            if bytes == 0 { &mut [] } else { bytemuck::cast_slice_mut(&mut args.workspace[..bytes]) };
        args.pool.each_with(planes, scratch, |p, scratch| {
            // SAFETY: the results of this plane, which no other task writes.
            let (best, places) = unsafe {
                let (best, places) = (best.get().add(p * to), places.get().add(p * to));
                (std::slice::from_raw_parts_mut(best, to), std::slice::from_raw_parts_mut(places, to))
            };
            let lines = lines.as_ref();
            let (kernels, x) = (T::kernels(tier), &x[p * from..][..from]);
            tier.run(Plane { windows: &windows, lines, kernels, x, scratch, best, places });
        });
        Ok(())
    }))
}

/// The inputs of the windows of a row of outputs, in a padded row: output `c` meets through tap `t` the
/// element `c · apart + t · step`.
struct Lines {
    apart: usize,
    step: usize,
    taps: usize,
    /// Elements before the row's first, and of a line, which is padded to whole vectors of outputs.
    before: usize,
    length: usize,
    /// Lines held: as many as a window's rows span.
    held: usize,
    /// For each output, the distance of its first input that is no padding from where tap 0 would be.
    first: Vec<i32>,
}

impl Lines {
    /// `None` where windows are not alike, or so few, or so large, that this does not pay.
    fn new(windows: &Windows) -> Option<Lines> {
        let [height, width] = windows.pool.input;
        let columns = &windows.columns;
        let (a, b) = (columns.first()?, columns.get(1)?);
        let base = |w: &Window| w.start as i64 - (w.skipped * w.step) as i64;
        let apart = usize::try_from(base(b) - base(a)).ok().filter(|&a| a > 0)?;
        let taps = columns.iter().map(|w| w.skipped + w.count).max()?;
        let alike = columns.iter().enumerate().all(|(c, w)| {
            let ends = w.skipped + w.count == taps || w.start + w.count * w.step >= width;
            ends && w.step == a.step && base(w) == base(a) + (c * apart) as i64
        });
        let held = windows.rows.iter().map(|w| last(w) - begin(w) + 1).max()?;
        let whole = columns.len().next_multiple_of(SIDE);
        // The vector of the last outputs reads `apart` elements for each.
        let length = whole * apart + (taps - 1) * a.step;
        let sensible = length <= 4 * width + 64 * SIDE
            && i32::try_from(height.checked_mul(length)?.checked_mul(2)?).is_ok();
        let lines = alike && sensible && columns.len() >= SIDE / 4;
        lines.then(|| Lines {
            apart,
            step: a.step,
            taps,
            before: a.skipped * a.step - a.start,
            length,
            held,
            first: (0..whole).map(|c| columns.get(c).map_or(0, |w| (w.skipped * w.step) as i32)).collect(),
        })
    }

    /// Elements of all lines, and of the results of one.
    fn elements(&self) -> usize {
        (self.held * self.length + self.first.len()).next_multiple_of(16)
    }
}

/// First input of a window, were there none in the padding; unlike those it has, such inputs ascend from
/// window to window.
fn begin(w: &Window) -> usize {
    w.start.saturating_sub(w.skipped * w.step)
}

/// Last input of a window.
fn last(w: &Window) -> usize {
    w.start + (w.count - 1) * w.step
}

/// The maxima of a plane.
struct Plane<'a, T: Float> {
    windows: &'a Windows,
    lines: Option<&'a Lines>,
    kernels: &'static Microkernels<T>,
    x: &'a [T],
    scratch: &'a mut [T::Wide],
    best: &'a mut [T],
    places: &'a mut [i64],
}

impl<T: Operand> Loop for Plane<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        match self.lines {
            // Distances that the compiler knows make one load of many.
            Some(lines @ Lines { apart: 1, .. }) => self.side_by_side(lines, 1),
            Some(lines @ Lines { apart: 2, .. }) => self.side_by_side(lines, 2),
            Some(lines) => self.side_by_side(lines, lines.apart),
            None => self.one_by_one(),
        }
    }
}

impl<T: Operand> Plane<'_, T> {
    #[inline(always)]
    fn side_by_side(self, lines: &Lines, apart: usize) {
        let (width, outputs) = (self.windows.pool.input[1], self.windows.columns.len());
        let (length, before) = (lines.length, lines.before);
        let (held, results) = self.scratch.split_at_mut(lines.held * length);
        held.fill(T::Wide::NEG_INFINITY);
        // Rows before this one were copied to their lines.
        let mut next = 0;
        let rows = self.best.chunks_exact_mut(outputs).zip(self.places.chunks_exact_mut(outputs));
        for (rows, (best, places)) in self.windows.rows.iter().zip(rows) {
            for r in next.max(begin(rows))..=last(rows) {
                let line = &mut held[r % lines.held * length..][..length];
                let n = width.min(length - before);
                let row = Mat { ptr: self.x[r * width..][..n].as_ptr(), rs: 0, cs: 1 };
                // SAFETY: so many inputs of a row, and capacity in its line.
                unsafe { (self.kernels.widen)(row, 1, n, line[before..].as_mut_ptr(), 0) };
            }
            next = next.max(last(rows) + 1);
            let results = &mut results[..lines.first.len()];
            let sides = results.as_chunks_mut().0.iter_mut().zip(places.chunks_mut(SIDE));
            for (side, ((result, places), first)) in sides.zip(lines.first.as_chunks().0).enumerate() {
                let start = side * SIDE * apart;
                // A window's first element is its maximum until a larger one is found: padding never is.
                let mut found: [i32; SIDE] = *first;
                found.iter_mut().for_each(|f| *f += (rows.start * width) as i32);
                let mut largest = [T::Wide::NEG_INFINITY; SIDE];
                for r in rows.indices() {
                    let line = &held[r % lines.held * length..][..length];
                    for tap in 0..lines.taps {
                        let x = &line[start + tap * lines.step..][..SIDE * apart];
                        let here = (r * width + tap * lines.step) as i32;
                        for i in 0..SIDE {
                            let value = x[i * apart];
                            let take = (value > largest[i]) | value.is_nan();
                            largest[i] = if take { value } else { largest[i] };
                            found[i] = if take { here } else { found[i] };
                        }
                    }
                }
                let base = start as i32 - before as i32;
                let mut at = [0; SIDE];
                for i in 0..SIDE {
                    at[i] = i64::from(found[i] + base + (i * apart) as i32);
                }
                *result = largest;
                match places.first_chunk_mut() {
                    Some(places) => *places = at,
                    None => places.copy_from_slice(&at[..places.len()]),
                }
            }
            // SAFETY: as many results.
            unsafe { (self.kernels.narrow)(results.as_ptr(), outputs, best.as_mut_ptr()) };
        }
    }

    #[inline(always)]
    fn one_by_one(self) {
        let (x, width) = (self.x, self.windows.pool.input[1]);
        self.windows.each(|o, rows, columns| {
            let mut found = rows.start * width + columns.start;
            for r in rows.indices() {
                for c in columns.indices() {
                    let at = r * width + c;
                    let value = x[at].widen();
                    // A branch would be guessed wrongly half the time, and choosing between floats would be
                    // one.
                    let take = (value > x[found].widen()) | value.is_nan();
                    found = select_unpredictable(take, at, found);
                }
            }
            (self.best[o], self.places[o]) = (x[found], found as i64);
        });
    }
}
