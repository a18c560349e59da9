//! Segment sums: the rows of each segment added in the order of their positions, in f32 or wider, and rounded
//! once.
//!
//! Work is cut into blocks of nearly equal work, where a row of the result and a position count alike. So
//! neither many empty rows nor a few much-read ones fall to one thread. Segments longer than [`CHUNK`] are
//! cut into chunks first, whose sums are then added in order.

use super::index::Segments;
use super::operand::Strided;
use super::vector::{Class, Finish, Loops, fence, prefetch};
use crate::element::{Float, Wide};
use crate::pool::{Pool, Shared};
use headwater_core::ops::index::embedding_grad::EmbeddingGradReport;
use std::sync::atomic::{AtomicU64, Ordering};

/// Positions that are summed without a break.
pub(super) const CHUNK: usize = 256;
/// Columns summed at a time: their sums stay in the first-level cache.
const STRIP: usize = 1024;
/// Rows added in one pass over the columns.
const GROUP: usize = 8;
/// Bytes of sums in a block of work.
const BLOCK: usize = 1 << 18;
/// Bytes of a row that are prefetched by software; beyond them the hardware prefetcher has detected the
/// pattern.
const AHEAD: usize = 1 << 12;

/// Most chunks that the segments of so many positions are cut into. Those longer than [`CHUNK`] take
/// `⌈n/CHUNK⌉` each, which is most, by position, for `CHUNK + 1`.
pub(super) fn most_chunks(positions: usize) -> usize {
    (2 * positions as u128 / (CHUNK as u128 + 1)) as usize
}

/// Most segments longer than [`CHUNK`].
pub(super) fn most_long(positions: usize) -> usize {
    positions / (CHUNK + 1)
}

/// Rows and positions in a block of work.
fn share<W>(width: usize) -> usize {
    (BLOCK / (width * size_of::<W>()).max(1)).max(1)
}

/// Most blocks of work.
pub(super) fn most_blocks<W>(positions: usize, rows: usize, width: usize) -> usize {
    (positions + rows).div_ceil(share::<W>(width))
}

/// The place where the sums go.
#[derive(Clone, Copy)]
pub(super) struct Out<T> {
    /// Rows `first..first + count` of the table, or, if `packed`, those of them that are read.
    pub first: usize,
    pub count: usize,
    pub packed: bool,
    pub ptr: Shared<T>,
    /// The rows that sums are added to: nothing (null), or as many rows, which may be the result itself.
    pub into: Shared<T>,
}

/// One run of the kernel.
pub(super) struct Sums<'a, T: Float> {
    pub pool: &'a Pool,
    pub loops: Loops<T>,
    /// To add sums of chunks.
    pub wide: Loops<T::Wide>,
    pub grad: &'a Strided<'a, T>,
    pub segments: Segments<'a>,
    /// Segments longer than [`CHUNK`], and the first of their chunks; ascending.
    pub long: &'a [[u32; 2]],
    /// Sums of the chunks.
    pub partial: &'a [T::Wide],
    pub by_frequency: bool,
}

/// Sums that were found not to fit.
#[derive(Default)]
struct Tally {
    overflowed: AtomicU64,
    nonfinite: AtomicU64,
    /// `row · width + column`.
    first: AtomicU64,
}

/// The workspace of a block of work.
struct Block<'a, W> {
    sums: [W; STRIP],
    tally: &'a Tally,
}

/// Finds the long segments and sums their chunks. Returns how many segments are long.
pub(super) fn chunks<T: Float>(
    pool: &Pool,
    loops: Loops<T>,
    grad: &Strided<T>,
    segments: Segments,
    long: &mut [[u32; 2]],
    partial: &mut [T::Wide],
) -> usize {
    let (mut found, mut total) = (0, 0);
    for (s, ends) in segments.starts.windows(2).enumerate() {
        let len = (ends[1] - ends[0]) as usize;
        if len > CHUNK {
            long[found] = [s as u32, total as u32];
            found += 1;
            total += len.div_ceil(CHUNK);
        }
    }
    let (long, width) = (&long[..found], grad.width());
    if width > 0 {
        pool.chunks(&mut partial[..total * width], width, |chunk, sums| {
            let [s, first] = long[long.partition_point(|l| l[1] as usize <= chunk) - 1];
            let own = &segments.order
                [segments.starts[s as usize] as usize..segments.starts[s as usize + 1] as usize];
            let from = (chunk - first as usize) * CHUNK;
            let own = &own[from..own.len().min(from + CHUNK)];
            for (strip, sums) in sums.chunks_mut(STRIP).enumerate() {
                add_rows(loops, grad, own, strip * STRIP, sums);
            }
        });
    }
    found
}

/// `sums[c] = Σ grad[position][column + c]` over the positions in order.
#[inline]
fn add_rows<T: Float>(
    loops: Loops<T>,
    grad: &Strided<T>,
    positions: &[u32],
    column: usize,
    sums: &mut [T::Wide],
) {
    assert!(column + sums.len() <= grad.width());
    if grad.step() == 1 {
        for (g, group) in positions.chunks(GROUP).enumerate() {
            let mut rows = [std::ptr::null(); GROUP];
            for (row, &at) in rows.iter_mut().zip(group) {
                *row = grad.at(at as usize).wrapping_add(column);
            }
            // SAFETY: positions in segments exist, and each has `width` elements next to each other.
            unsafe { (loops.add)(&rows[..group.len()], g == 0, sums.as_mut_ptr(), sums.len()) };
        }
        return;
    }
    sums.fill(T::Wide::ZERO);
    for &at in positions {
        let row = grad.at(at as usize);
        for (c, s) in sums.iter_mut().enumerate() {
            // SAFETY: as above, with stride `step`.
            *s += unsafe { *row.wrapping_offset((column + c) as isize * grad.step()) }.widen();
        }
    }
}

impl<T: Float> Sums<'_, T> {
    /// The sum of a segment, a strip of columns of it.
    #[inline]
    fn sum(&self, s: usize, column: usize, sums: &mut [T::Wide]) {
        let own = self.segments.starts[s] as usize..self.segments.starts[s + 1] as usize;
        if own.len() <= CHUNK {
            return add_rows(self.loops, self.grad, &self.segments.order[own], column, sums);
        }
        let first = self.long[self.long.partition_point(|l| (l[0] as usize) < s)][1] as usize;
        for chunk in 0..own.len().div_ceil(CHUNK) {
            let part = &self.partial[(first + chunk) * self.grad.width() + column..][..sums.len()];
            // SAFETY: both are as long.
            unsafe { (self.wide.add)(&[part.as_ptr()], chunk == 0, sums.as_mut_ptr(), sums.len()) };
        }
    }

    fn divisor(&self, s: usize) -> Option<T::Wide> {
        let count = self.segments.starts[s + 1] - self.segments.starts[s];
        (self.by_frequency && count > 1).then(|| <T::Wide as Float>::from_f64(count as f64))
    }

    /// Segments of a range of rows.
    pub fn within(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        let before = |row: usize| self.segments.rows.partition_point(|&r| (r as usize) < row);
        before(first)..before(first + count)
    }

    /// 2-norm of all sums. Squares are added in f64: eight lanes in the order of the columns, rows and blocks
    /// in order.
    pub fn norm(&self, blocks: &mut [f64]) -> f64 {
        let (segments, width) = (self.segments.rows.len(), self.grad.width());
        let share = share::<T::Wide>(width);
        let work = |s: usize| s + self.segments.starts[s] as usize;
        let used = &mut blocks[..work(segments).div_ceil(share)];
        self.pool.chunks(used, 1, |b, total| {
            let (mut lanes, mut sums) = ([0.0f64; 8], [T::Wide::ZERO; STRIP]);
            let from = partition(0..segments, |s| work(s) < b * share);
            for s in (from..segments).take_while(|&s| work(s) < (b + 1) * share) {
                let divisor = self.divisor(s);
                for column in (0..width).step_by(STRIP) {
                    let sums = &mut sums[..STRIP.min(width - column)];
                    self.sum(s, column, sums);
                    for (c, x) in sums.iter().enumerate() {
                        let x = divisor.map_or(*x, |d| *x / d).to_f64();
                        lanes[c % 8] += x * x;
                    }
                }
            }
            total[0] = lanes.iter().sum();
        });
        used.iter().sum::<f64>().sqrt()
    }

    /// Writes the result; counts into the report what does not fit. Returns how many rows were read.
    pub fn write(&self, out: Out<T>, how: Finish<T::Wide>, report: &mut EmbeddingGradReport) -> usize {
        let own = self.within(out.first, out.count);
        let (found, width) = (own.len(), self.grad.width());
        if width == 0 {
            return found;
        }
        let rows = if out.packed { found } else { out.count };
        let read = (self.segments.starts[own.end] - self.segments.starts[own.start]) as usize;
        let share = share::<T::Wide>(width);
        let tally = Tally { first: AtomicU64::new(u64::MAX), ..Tally::default() };
        self.pool.each((rows + read).div_ceil(share), |b| {
            self.block(out, how, own.clone(), rows, b * share..(b + 1) * share, &tally);
            fence();
        });
        report.overflowed = tally.overflowed.into_inner();
        report.nonfinite = tally.nonfinite.into_inner();
        let first = tally.first.into_inner();
        report.first = (first != u64::MAX).then(|| (first / width as u64, first % width as u64));
        found
    }

    /// The rows whose work (rows and positions before them) is in `part`.
    fn block(
        &self,
        out: Out<T>,
        how: Finish<T::Wide>,
        own: std::ops::Range<usize>,
        rows: usize,
        part: std::ops::Range<usize>,
        tally: &Tally,
    ) {
        // Row of the result of a segment; positions read before it.
        let mut block = Block { sums: [T::Wide::ZERO; STRIP], tally };
        let row = |s: usize| match out.packed {
            true => s - own.start,
            false => self.segments.rows[s] as usize - out.first,
        };
        let before = |s: usize| (self.segments.starts[s] - self.segments.starts[own.start]) as usize;
        let mut s = partition(own.clone(), |s| row(s) + before(s) < part.start);
        let after_last = if s > own.start { row(s - 1) + 1 } else { 0 };
        let mut next = after_last.max(part.start.saturating_sub(before(s)));
        while s < own.end && row(s) + before(s) < part.end {
            self.untouched(out, next, row(s), how.stream);
            if s + 1 < own.end {
                let ahead = self.grad.at(self.segments.order[self.segments.starts[s + 1] as usize] as usize);
                prefetch(ahead.cast(), AHEAD.min(self.grad.width() * size_of::<T>()));
            }
            self.row(out, how, s, row(s), &mut block);
            next = row(s) + 1;
            s += 1;
        }
        self.untouched(out, next, rows.min(part.end.saturating_sub(before(s))), how.stream);
    }

    /// Rows that nobody reads.
    fn untouched(&self, out: Out<T>, from: usize, to: usize, stream: bool) {
        let width = self.grad.width();
        if from >= to || out.into.get() == out.ptr.get() {
            return;
        }
        let (at, n) = (from * width, (to - from) * width);
        // SAFETY: the rows are the result's, this block's alone, and as many in `into`, which is another
        // tensor.
        unsafe {
            let ptr = out.ptr.get().add(at);
            if out.into.get().is_null() {
                (self.loops.zero)(ptr, n, stream);
            } else {
                std::ptr::copy_nonoverlapping(out.into.get().add(at), ptr, n);
            }
        }
    }

    /// One row that is read.
    fn row(&self, out: Out<T>, how: Finish<T::Wide>, s: usize, row: usize, block: &mut Block<T::Wide>) {
        let (width, divisor, into) = (self.grad.width(), self.divisor(s), out.into.get());
        let how = Finish { divisor: divisor.filter(|_| into.is_null()), ..how };
        for column in (0..width).step_by(STRIP) {
            let sums = &mut block.sums[..STRIP.min(width - column)];
            self.sum(s, column, sums);
            let at = row * width + column;
            if !into.is_null() {
                if let Some(d) = divisor {
                    sums.iter_mut().for_each(|s| *s = *s / d);
                }
                // SAFETY: `into` has the rows of the result.
                unsafe { (self.loops.add)(&[into.add(at)], false, sums.as_mut_ptr(), sums.len()) };
            }
            // SAFETY: the row is the result's, and this block's alone.
            let fits = unsafe { (self.loops.finish)(&how, sums.as_ptr(), out.ptr.get().add(at), sums.len()) };
            if !fits {
                block.tally.count::<T>(
                    &how,
                    sums,
                    self.segments.rows[s] as u64 * width as u64 + column as u64,
                );
            }
        }
    }
}

impl Tally {
    /// Counts what does not fit among sums whose first is element `start` of the table.
    fn count<T: Float>(&self, how: &Finish<T::Wide>, sums: &[T::Wide], start: u64) {
        let (mut counts, mut first) = ([0, 0], u64::MAX);
        for (c, &sum) in sums.iter().enumerate() {
            match how.one::<T>(sum).1 {
                Class::Fits => continue,
                Class::Overflows => counts[0] += 1,
                Class::NotFinite => counts[1] += 1,
            }
            first = first.min(start + c as u64);
        }
        self.overflowed.fetch_add(counts[0], Ordering::Relaxed);
        self.nonfinite.fetch_add(counts[1], Ordering::Relaxed);
        self.first.fetch_min(first, Ordering::Relaxed);
    }
}

/// The first of a range of which `before` no longer holds.
fn partition(range: std::ops::Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    let (mut lo, mut hi) = (range.start, range.end);
    while lo < hi {
        let mid = lo + (hi - lo) / 2;
        if before(mid) { lo = mid + 1 } else { hi = mid }
    }
    lo
}
