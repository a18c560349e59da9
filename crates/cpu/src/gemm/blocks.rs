//! How a product is cut: slabs of the right operand, packed once and shared; blocks of rows of the left one.

use super::lanes::MAX_LANES;
use super::tiers::{Kernels, Operand};
use super::tile::{MAX_COLS, MAX_ROWS, Tile};
use super::{GRAIN, Mat, MatMut, Size, Start, same, skinny};
use crate::element::{Float, Wide};
use crate::pool::{Pool, Shared};
use crate::tier::Tier;
use std::ops::Range;
use std::ptr::null_mut;

/// Most of `k` summed in registers at once: a panel of each operand lies in the first-level cache.
const K_PART: usize = 256;
/// Elements of a block of the left operand, for the second-level cache.
const LEFT: usize = 40 << 10;
/// Most rows of such a block.
const LEFT_ROWS: usize = 192;
/// Blocks of rows that a product is cut into if it has rows enough: so many of each at least.
const BLOCKS: usize = 8;
const LEAST_ROWS: usize = 24;
/// Elements of a slab of the right operand, for the third-level cache, and its most columns.
const SLAB: usize = 2 << 20;
const SLAB_COLS: usize = 1024;
/// Panels up to which rows of the left operand are not packed.
const IN_PLACE: usize = 16;
/// Rows of the left operand up to which a right one is not packed whose rows are so many elements apart at most.
const FEW_ROWS: usize = 256;
const NEAR: usize = 1024;
/// Elements of a right operand that a thread packs for itself.
const ALONE: usize = 128 << 10;

/// The sizes of the parts of a product and of its workspace, in elements. A function of the sizes alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// Columns of a slab, in whole panels; its rows; rows summed at once.
    cols: usize,
    slab_k: usize,
    part_k: usize,
    /// Rows of a block.
    rows: usize,
    /// Workspace: the bias, in whole panels; a slab; sums that wait for further slabs.
    pub bias: usize,
    slab: usize,
    waiting: usize,
    /// Workspace of each thread: rows packed; sums that wait for the rest of the slab.
    left: usize,
    sums: usize,
    /// Whether a thread may compute a product by itself: the right operand is one slab and small.
    pub alone: bool,
}

impl Parts {
    pub fn new<T: Operand, O: Operand<Wide = T::Wide>>(tier: Tier, size: Size) -> Parts {
        let kernels = T::kernels(tier);
        let Size { m, n, k } = size;
        let even = |n: usize, most: usize| n.div_ceil(n.div_ceil(most).max(1));
        let part_k = even(k, K_PART);
        let cols = even(n, SLAB_COLS).next_multiple_of(kernels.cols).max(kernels.cols);
        let slab_k = (SLAB / cols / part_k.max(1)).max(1).saturating_mul(part_k).min(k);
        let fit = (LEFT / part_k.max(1)).min(LEFT_ROWS) / kernels.rows * kernels.rows;
        // An even number of blocks: they are as many for each of two threads.
        let fit = fit.max(kernels.rows);
        let blocks = if m <= 2 * kernels.rows { 1 } else { m.div_ceil(fit).next_multiple_of(2) };
        // Enough for several threads, if each is still worth the panel of the right operand that it brings near.
        let blocks = blocks.max((m / LEAST_ROWS).min(BLOCKS));
        let rows = m.div_ceil(blocks).next_multiple_of(kernels.rows);
        let line = |n: usize| n.next_multiple_of(16);
        let rounds = !same::<O, T::Wide>();
        Parts {
            cols,
            slab_k,
            part_k,
            rows,
            bias: line(n.next_multiple_of(kernels.cols) + MAX_COLS),
            slab: line(cols * slab_k + MAX_LANES),
            waiting: if rounds && slab_k < k { line(m * cols) } else { 0 },
            left: line(rows * part_k + MAX_LANES),
            sums: if rounds && part_k < slab_k { line(rows * cols) } else { 0 },
            alone: cols >= n && slab_k >= k && cols * slab_k <= ALONE,
        }
    }

    /// Elements of the whole workspace.
    pub fn total(&self, threads: usize) -> usize {
        let own = self.left + self.sums;
        self.bias
            + if self.alone { (self.slab + own) * threads } else { self.slab + self.waiting + own * threads }
    }
}

/// One product of a batch.
pub(super) struct Product<T: Float, O: Float> {
    pub kernels: &'static Kernels<T>,
    pub narrow: unsafe fn(*const T::Wide, usize, *mut O),
    pub parts: Parts,
    pub size: Size,
    pub a: Mat<T>,
    pub b: Mat<T>,
    pub c: MatMut<O>,
    /// The bias widened, with whole panels to be read.
    pub start: Start<T::Wide>,
}

/// Part of the columns and of `k`: the slab packed at the time.
#[derive(Clone, Copy)]
struct Slab<W> {
    /// First column, columns.
    j: usize,
    n: usize,
    /// First of `k`, and how many.
    p: usize,
    k: usize,
    at: Shared<W>,
    /// Sums of elements of the output, by row and column of the slab, that wait for further slabs; null if they wait in the
    /// output.
    waiting: Shared<W>,
}

impl<T: Operand, O: Operand<Wide = T::Wide>> Product<T, O> {
    /// Computes the product on one thread.
    ///
    /// # Safety
    /// As `gemm`, for this product; `own` is a thread's workspace, and the parts allow it.
    pub unsafe fn alone(&self, own: &mut [T::Wide]) {
        let Size { m, n, k } = self.size;
        if skinny::takes(self) {
            // SAFETY: the caller's promise.
            return unsafe { skinny::dots(self, 0..m, 0..n) };
        }
        let (at, own) = own.split_at_mut(self.parts.slab);
        let slab = Slab { j: 0, n, p: 0, k, at: Shared(at.as_mut_ptr()), waiting: Shared(null_mut()) };
        // SAFETY: the caller's promise; the slab is this thread's own.
        unsafe {
            let parts = k.div_ceil(self.parts.part_k.max(1));
            (0..parts).for_each(|part| self.pack(slab, part, 0..n.div_ceil(self.kernels.cols)));
            let rows = self.parts.rows;
            (0..m).step_by(rows).for_each(|i| self.block(slab, i..m.min(i + rows), 0..n, own));
        }
    }

    /// Computes the product on all threads.
    ///
    /// # Safety
    /// As `gemm`, for this product; `workspace` is as large as the parts say, without the bias.
    pub unsafe fn together(&self, pool: &Pool, workspace: &mut [T::Wide]) {
        let Size { m, n, k } = self.size;
        if skinny::takes(self) {
            // SAFETY: the caller's promise.
            return unsafe { skinny::together(self, pool) };
        }
        let (parts, width) = (&self.parts, self.kernels.cols);
        let (at, rest) = workspace.split_at_mut(parts.slab);
        let (waiting, rest) = rest.split_at_mut(parts.waiting);
        let at = Shared(at.as_mut_ptr());
        let waiting = Shared(if waiting.is_empty() { null_mut() } else { waiting.as_mut_ptr() });
        for j in (0..n).step_by(parts.cols) {
            let columns = parts.cols.min(n - j);
            let panels = columns.div_ceil(width);
            // Rows are cut into blocks; if these are few, columns are cut as well.
            let blocks = m.div_ceil(parts.rows);
            let work = Size { n: columns, ..self.size }.work();
            let pieces = (work / GRAIN).clamp(1, 8).div_ceil(blocks).min(panels);
            let piece = panels.div_ceil(pieces) * width;
            let pieces = columns.div_ceil(piece);
            for p in (0..k.max(1)).step_by(parts.slab_k.max(1)) {
                let slab = Slab { j, n: columns, p, k: parts.slab_k.min(k - p), at, waiting };
                let some = (PACKED / (width * parts.part_k).max(1)).clamp(1, panels);
                let groups = panels.div_ceil(some);
                // SAFETY: the panels of each part lie apart in the slab.
                pool.each(groups * slab.k.div_ceil(parts.part_k.max(1)), |g| unsafe {
                    let (part, g) = (g / groups, g % groups);
                    self.pack(slab, part, g * some..((g + 1) * some).min(panels));
                });
                pool.each_with(blocks * pieces, rest, |g, own| {
                    let (i, from) = (g / pieces * parts.rows, g % pieces * piece);
                    let (rows, cols) = (i..m.min(i + parts.rows), from..columns.min(from + piece));
                    // SAFETY: blocks differ in their rows or columns, and so in what they write.
                    unsafe { self.block(slab, rows, cols, own) };
                });
            }
        }
    }

    /// Whether whole panels of the right operand are read where they lie: too few rows would repay packing.
    fn right_in_place(&self) -> bool {
        let near = self.b.rs.unsigned_abs() <= NEAR && self.size.m <= FEW_ROWS;
        same::<T, T::Wide>() && self.b.cs == 1 && (near || self.size.m <= 2 * self.kernels.rows)
    }

    /// Whether rows of the left operand are read where they lie: too few columns would repay packing.
    fn left_in_place(&self) -> bool {
        same::<T, T::Wide>() && self.a.cs == 1 && self.size.n <= IN_PLACE * self.kernels.cols
    }

    /// Packs panels of the right operand into a slab, for one part of its `k`: panel after panel.
    ///
    /// # Safety
    /// The slab has room; nobody uses these panels meanwhile.
    unsafe fn pack(&self, slab: Slab<T::Wide>, part: usize, panels: Range<usize>) {
        let width = self.kernels.cols;
        let padded = slab.n.next_multiple_of(width);
        // Of columns that are read where they are, only those that fill no panel are packed.
        let start = if self.right_in_place() { panels.end.min(slab.n / width) } else { panels.start };
        let from = start * width;
        let columns = (panels.end * width).min(slab.n) - from;
        let p = part * self.parts.part_k;
        let depth = self.parts.part_k.min(slab.k - p);
        let x = self.b.at(slab.p + p, slab.j + from).transposed();
        let to = slab.at.get().wrapping_add(p * padded + from * depth);
        // SAFETY: columns of the right operand; the panels' room in the slab. Packing spills into the following panels only
        // if its groups are no multiple of a vector, which two vectors are.
        unsafe { (self.kernels.pack)(x, columns, depth, width, to) };
    }

    /// A block of the output: some rows, and some columns of the slab.
    ///
    /// # Safety
    /// The slab is packed; `own` is a thread's workspace; nobody else uses this block meanwhile.
    unsafe fn block(&self, slab: Slab<T::Wide>, rows: Range<usize>, cols: Range<usize>, own: &mut [T::Wide]) {
        let (height, width) = (self.kernels.rows, self.kernels.cols);
        let padded = slab.n.next_multiple_of(width);
        let (left, sums) = own.split_at_mut(self.parts.left);
        let (left_in_place, right_in_place) = (self.left_in_place(), self.right_in_place());
        let direct = same::<O, T::Wide>() && self.c.cs == 1;
        // Where sums wait for the rest of `k`: element (0, 0) of this block's rows, all columns of the slab.
        let wait = if direct {
            let c = self.c.at(rows.start, slab.j);
            MatMut { ptr: c.ptr.cast::<T::Wide>(), rs: c.rs, cs: 1 }
        } else if slab.waiting.get().is_null() {
            MatMut { ptr: sums.as_mut_ptr(), rs: self.parts.cols as isize, cs: 1 }
        } else {
            let ptr = slab.waiting.get().wrapping_add(rows.start * self.parts.cols);
            MatMut { ptr, rs: self.parts.cols as isize, cs: 1 }
        };
        let mut buffer = [T::Wide::ZERO; MAX_ROWS * MAX_COLS];
        let mut p = 0;
        loop {
            let depth = self.parts.part_k.min(slab.k - p);
            let (first, last) = (slab.p + p == 0, slab.p + p + depth == self.size.k);
            let x = self.a.at(rows.start, slab.p + p);
            if !left_in_place {
                // SAFETY: rows of the left operand, and room for them.
                unsafe { (self.kernels.pack)(x, rows.len(), depth, height, left.as_mut_ptr()) };
            }
            for j in cols.clone().step_by(width) {
                let n = width.min(cols.end - j);
                for i in (0..rows.len()).step_by(height) {
                    let m = height.min(rows.len() - i);
                    let c = self.c.at(rows.start + i, slab.j + j);
                    let waiting = wait.at(i, j);
                    let out = !direct && last;
                    let to = if out {
                        MatMut { ptr: buffer.as_mut_ptr(), rs: width as isize, cs: 1 }
                    } else {
                        waiting
                    };
                    let none = MatMut { ptr: null_mut(), rs: 0, cs: 1 };
                    let start = match self.start {
                        _ if !first => waiting,
                        Start::Zero => none,
                        Start::Bias(v) => MatMut { ptr: v.at(0, slab.j + j).ptr.cast_mut(), rs: 0, cs: 1 },
                        Start::Output if direct => waiting,
                        Start::Output => {
                            // SAFETY: elements of the output, and of where the sums go.
                            each(m, n, |i, j| unsafe { *to.at(i, j).ptr = (*c.at(i, j).ptr).widen() });
                            to
                        }
                    };
                    let packed = left.as_ptr().wrapping_add(i * depth);
                    let (a, ars, acs) = if left_in_place {
                        (x.at(i, 0).ptr.cast(), x.rs, x.cs)
                    } else {
                        (packed, 1, height as isize)
                    };
                    let packed = slab.at.get().wrapping_add(p * padded + j * depth).cast_const();
                    let (b, brs) = if right_in_place && n == width {
                        (self.b.at(slab.p + p, slab.j + j).ptr.cast(), self.b.rs)
                    } else {
                        (packed, width as isize)
                    };
                    let tile = Tile {
                        rows: m,
                        cols: n,
                        k: depth,
                        a,
                        ars,
                        acs,
                        b,
                        brs,
                        start: start.ptr,
                        srs: start.rs,
                        c: to.ptr,
                        crs: to.rs,
                    };
                    // SAFETY: panels, packed or as they lie, and elements of the output or of the sums that wait for them.
                    unsafe { (self.kernels.tile)(&tile) };
                    if out && self.c.cs == 1 {
                        // SAFETY: rows of the buffer and of the output.
                        (0..m).for_each(|i| unsafe { (self.narrow)(to.at(i, 0).ptr, n, c.at(i, 0).ptr) });
                    } else if out {
                        // SAFETY: as above.
                        each(m, n, |i, j| unsafe { *c.at(i, j).ptr = O::narrow(*to.at(i, j).ptr) });
                    }
                }
            }
            p += depth;
            if p >= slab.k {
                return;
            }
        }
    }
}

/// Elements packed at a time.
const PACKED: usize = 1 << 15;

fn each(m: usize, n: usize, mut f: impl FnMut(usize, usize)) {
    (0..m).for_each(|i| (0..n).for_each(|j| f(i, j)));
}
