//! The cut of a step into tasks, and the operands of its products.

use crate::gemm::{Microkernels, Operand, Tile, even};
use crate::kernels::vector::LANES;
use crate::matrix::Mat;
use crate::pool::{Pool, Shared};
use crate::prefetch::TilePrefetch;
use crate::simd::MAX_LANES;
use crate::tier::Tier;
use headwater_core::ops::recurrent::layer::Layer;
use std::ops::Range;

/// Most samples of a task: with a strip of columns of every gate they fit into the first-level cache. Whole
/// register tiles of vectors.
const SAMPLES: usize = 24;
const TILES: usize = 12;
/// Multiplications worth a task, and most tasks that columns are cut into.
const GRAIN: usize = 1 << 17;
const GROUPS: usize = 16;

/// The tasks of a step, and the layout of the operands of its products.
///
/// A product sums over `segments` segments, each as long as the state is wide: over the state itself, or over
/// its gates' gradients. The right operand is packed in panels, segment after segment; rows of the left one
/// have the stride [`Cut::pitch`].
pub(super) struct Cut<T: Operand> {
    kernels: &'static Microkernels<T>,
    batch: usize,
    hidden: usize,
    segments: usize,
    /// Places of a segment.
    places: usize,
    /// Samples of a task.
    samples: usize,
    /// Columns of one computation, and those of a task: whole strips.
    pub strip: usize,
    columns: usize,
}

/// Part of a step.
pub(super) struct Task {
    /// Samples.
    pub samples: Range<usize>,
    /// Columns of the state.
    pub columns: Range<usize>,
}

impl<T: Operand> Cut<T> {
    /// The cut of a layer whose step has `matrices` products that sum over `segments` segments.
    pub fn new(layer: &Layer, tier: Tier, matrices: usize, segments: usize) -> Self {
        let kernels = T::kernels(tier);
        let strip = kernels.nr.max(LANES);
        let samples = even(layer.batch.max(1), SAMPLES, TILES);
        let strips = layer.hidden.div_ceil(strip);
        let work = samples.saturating_mul(strip * matrices * segments).saturating_mul(layer.hidden);
        let least = GRAIN.div_ceil(work).max(strips.div_ceil(GROUPS)).min(strips);
        Cut {
            kernels,
            batch: layer.batch,
            hidden: layer.hidden,
            segments,
            places: layer.hidden.div_ceil(kernels.panels.k_group),
            samples,
            strip,
            columns: even(strips, least, 1) * strip,
        }
    }

    /// Width of the state in whole strips.
    pub fn padded(&self) -> usize {
        self.hidden.next_multiple_of(self.strip)
    }

    /// Tasks of a step.
    pub fn tasks(&self) -> usize {
        self.batch.div_ceil(self.samples) * self.hidden.div_ceil(self.columns)
    }

    /// A task. Those of the same columns follow each other, so that a thread has few columns.
    pub fn task(&self, i: usize) -> Task {
        let blocks = self.batch.div_ceil(self.samples);
        let (sample, column) = (i % blocks * self.samples, i / blocks * self.columns);
        Task {
            samples: sample..self.batch.min(sample + self.samples),
            columns: column..self.hidden.min(column + self.columns),
        }
    }

    /// Elements of a block of scratch memory: a task's samples by a strip.
    pub fn block(&self) -> usize {
        self.samples * self.strip
    }

    /// Elements from one row of a left operand to the next. A line more than it needs: rows that begin in the
    /// same sets of the first-level cache would displace each other.
    pub fn pitch(&self) -> usize {
        (self.places * self.segments).next_multiple_of(16) + 16
    }

    /// Elements of a left operand of all samples.
    pub fn left(&self) -> usize {
        self.batch * self.pitch()
    }

    /// Elements of a right operand.
    pub fn right(&self) -> usize {
        self.padded() * self.places * self.segments + MAX_LANES
    }

    /// Packs right operands consecutively. `source` is a segment of one of them, transposed: rows are the
    /// product's columns.
    ///
    /// # Safety
    /// The `hidden × hidden` elements of each source may be read; `out` can hold [`Cut::right`] elements a
    /// matrix.
    pub unsafe fn pack(
        &self,
        pool: &Pool,
        matrices: usize,
        source: impl Fn(usize, usize) -> Mat<T> + Sync,
        out: &mut [T::Wide],
    ) {
        assert!(out.len() >= matrices * self.right());
        let cols = self.kernels.nr;
        let panels = self.hidden.div_ceil(cols);
        let to = Shared(out.as_mut_ptr());
        pool.each(matrices * self.segments * panels, |i| {
            let (matrix, segment, panel) =
                (i / panels / self.segments, i / panels % self.segments, i % panels);
            let x = source(matrix, segment);
            let x = x.moved((panel * cols) as isize * x.rs);
            let rows = cols.min(self.hidden - panel * cols);
            let within = (panel * self.segments + segment) * self.places * cols;
            let out = to.get().wrapping_add(matrix * self.right() + within);
            // SAFETY: rows of the source; each panel of each segment has its own part of the buffer. Panels
            // are whole vectors, which do not spill.
            unsafe { (self.kernels.panels.pack)(x, rows, self.hidden, cols, self.places, out) };
        });
    }

    /// Puts rows of numbers that were stored into the rows of a left operand, from `column` of `segment` on.
    ///
    /// # Safety
    /// The `rows × n` elements of `x` may be read, their places of `left` be written; `column` is even.
    pub unsafe fn stage(
        &self,
        x: Mat<T>,
        (rows, n): (usize, usize),
        left: *mut T::Wide,
        (row, segment, column): (usize, usize, usize),
    ) {
        let place = segment * self.places + column / self.kernels.panels.k_group;
        let out = left.wrapping_add(row * self.pitch() + place);
        // SAFETY: the caller's promise; a place beyond the last column is filled with zeros.
        unsafe { (self.kernels.panels.interleave)(x.transposed(), n, rows, out, self.pitch()) };
    }

    /// The product of rows of a left operand, from `row` on, with a strip of a right one from `column` on. If
    /// `add`, it is added to what `out` holds, `strip` columns a row.
    ///
    /// # Safety
    /// The operands were staged and packed. Nobody else uses `out`.
    pub unsafe fn product(
        &self,
        left: *const T::Wide,
        (row, rows): (usize, usize),
        right: *const T::Wide,
        column: usize,
        out: &mut [T::Wide],
        add: bool,
    ) {
        assert!(rows * self.strip <= out.len());
        let (cols, pitch) = (self.kernels.nr, self.pitch());
        let a = left.wrapping_add(row * pitch);
        for within in (0..self.strip.min(self.hidden - column)).step_by(cols) {
            let panel = right.wrapping_add((column + within) * self.segments * self.places);
            let c = out[within..].as_mut_ptr();
            for segment in 0..self.segments {
                let tile = Tile {
                    rows,
                    cols,
                    k: self.places,
                    a: a.wrapping_add(segment * self.places),
                    ars: pitch as isize,
                    acs: 1,
                    blocks: (self.kernels.mr * pitch) as isize,
                    b: panel.wrapping_add(segment * self.places * cols),
                    brs: cols as isize,
                    start: if add || segment > 0 { c } else { std::ptr::null() },
                    srs: self.strip as isize,
                    c,
                    crs: self.strip as isize,
                    prefetch: TilePrefetch::NONE,
                };
                // SAFETY: rows of the left operand, whole panels of the right one, and rows of `out`, of
                // which a strip holds all columns.
                unsafe { (self.kernels.panels.tile)(&tile) };
            }
        }
    }

    /// Widens rows of `n` columns into a block.
    ///
    /// # Safety
    /// The `rows × n` elements of `x` may be read.
    pub unsafe fn widen(&self, x: Mat<T>, (rows, n): (usize, usize), out: &mut [T::Wide]) {
        assert!(n <= self.strip && rows * self.strip <= out.len());
        // SAFETY: the caller's promise; the block has rows of a strip.
        unsafe { (self.kernels.widen)(x, rows, n, out.as_mut_ptr(), self.strip) };
    }

    /// Rounds rows of a block.
    ///
    /// # Safety
    /// The `rows × n` elements that `x` names may be written, by nobody else meanwhile.
    pub unsafe fn narrow(&self, block: &[T::Wide], (rows, n): (usize, usize), x: Mat<T>) {
        for (i, row) in block.chunks_exact(self.strip).take(rows).enumerate() {
            let to = x.moved(i as isize * x.rs).ptr.cast_mut();
            // SAFETY: the caller's promise.
            unsafe { (self.kernels.narrow)(row[..n].as_ptr(), n, to) };
        }
    }
}
