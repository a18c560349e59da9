//! The sizes of the parts that a product is cut into, and of its workspace: functions of the sizes alone.

use super::blocks::TOGETHER;
use super::deep::Deep;
use super::lanes::MAX_LANES;
use super::tiers::{Kernels, Operand};
use super::tile::{MAX_COLS, MAX_ROWS};
use super::{Size, same};
use std::ops::Range;

/// Most of `k` summed in registers at once: a panel of the left operand lies in the first-level cache, one of
/// the right operand comes from the second. Fewer parts cost less than panels that both lie in the first: the
/// output is written once for each.
const K_PART: usize = limit(1024, 32);
/// Elements of a block of the left operand, for the second-level cache: with few columns the next block is on
/// its way there before this one is done with, with many it is used for long.
const LEFT: usize = limit(48 << 10, 2 << 10);
const LEFT_LONG: usize = limit(96 << 10, 4 << 10);
const MANY: usize = limit(768, 48);
/// Most rows of such a block.
const LEFT_ROWS: usize = 192;
/// Blocks of rows that a product is cut into if it has rows enough: so many of each at least.
const BLOCKS: usize = 8;
const LEAST_ROWS: usize = 24;
/// Elements of a slab of the right operand, for the third-level cache, and its most columns.
const SLAB: usize = limit(1 << 19, 1 << 12);
const SLAB_COLS: usize = limit(1024, 64);
/// Rows of a chunk of the output, to which slabs of `k` are added one after the other while it is near.
const CHUNK: usize = limit(1024, 96);
/// Elements of a right operand that a thread packs for itself.
const ALONE: usize = 128 << 10;

/// Unit tests have limits of their own, so that small products are cut into many parts as well.
pub(super) const fn limit(real: usize, tests: usize) -> usize {
    if cfg!(test) { tests } else { real }
}

/// The size of even parts of `n`, each at most `most` and a multiple of `of`, as `most` should be; at least
/// `of`.
pub(crate) fn even(n: usize, most: usize, of: usize) -> usize {
    n.div_ceil(n.div_ceil(most).max(1)).next_multiple_of(of).max(of)
}

/// Part number `at` of `count` of `n`: they differ by a multiple of `of` at most, so that threads with as
/// many of them are done at the same time, and none is larger than those of [`even`].
pub(super) fn part(n: usize, of: usize, count: usize, at: usize) -> Range<usize> {
    let start = |at: usize| n.min(at * n.div_ceil(of) / count * of);
    start(at)..start(at + 1)
}

/// The parts of a product, and its workspace in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// Places of `k` in panels: what `k` counts in all that follows.
    pub k: usize,
    /// Columns of a slab, in whole panels; rows of a chunk, in whole panels but for the last one; what is
    /// summed at once.
    pub cols: usize,
    pub chunk: usize,
    pub part_k: usize,
    /// Rows of a slab of the right operand, in whole parts.
    pub slab_k: usize,
    /// Rows of a block.
    pub rows: usize,
    /// Workspace: the bias, in whole panels; a slab of the right operand; sums that wait for further slabs.
    pub bias: usize,
    pub slab: usize,
    pub waiting: usize,
    /// Workspace of each thread: rows packed; sums that wait for the rest of the slab.
    pub left: usize,
    sums: usize,
    /// Whether a thread may compute a product by itself: the right operand is one slab and small.
    pub alone: bool,
    /// How it is cut if the sum is long and the result small.
    pub deep: Option<Deep>,
}

impl Parts {
    pub fn new<T: Operand, O: Operand<Wide = T::Wide>>(kernels: &Kernels<T>, size: Size) -> Parts {
        let (Size { m, n, .. }, k) = (size, size.k.div_ceil(kernels.fast.taken));
        let part_k = even(k, K_PART, 1);
        let cols = even(n, SLAB_COLS, kernels.cols);
        let chunk = even(m, CHUNK, kernels.rows);
        let slab_k = (SLAB / cols / part_k.max(1)).max(1).saturating_mul(part_k).min(k);
        let left = if n < MANY { LEFT } else { LEFT_LONG };
        let fit = (left / part_k.max(1)).min(LEFT_ROWS);
        // At most so many rows as some whole calls of the kernel take.
        const { assert!(LEFT / K_PART >= TOGETHER * MAX_ROWS) };
        let together = TOGETHER * kernels.rows;
        let fit = fit / together * together;
        let blocks = if m <= 2 * kernels.rows { 1 } else { m.div_ceil(fit) };
        // Enough for several threads, if each is still worth the panel of the right operand that it brings
        // near.
        let blocks = blocks.max((m / LEAST_ROWS).min(BLOCKS));
        let rows = m.div_ceil(blocks).next_multiple_of(kernels.rows);
        let line = |n: usize| n.next_multiple_of(16);
        let rounds = !same::<O, T::Wide>();
        Parts {
            k,
            cols,
            chunk,
            part_k,
            slab_k,
            rows,
            bias: line(n.next_multiple_of(kernels.cols) + MAX_COLS),
            slab: line(cols * slab_k + MAX_LANES),
            waiting: if rounds && slab_k < k { line(chunk * cols) } else { 0 },
            left: line(rows * part_k + MAX_LANES),
            sums: if rounds && part_k < k && slab_k >= k { line(rows * cols) } else { 0 },
            alone: cols >= n && slab_k >= k && cols * slab_k <= ALONE,
            deep: Deep::new([m, n, k], [kernels.rows, kernels.cols]),
        }
    }

    /// The same, but never cut along the sum.
    pub fn of_whole_sums(self) -> Parts {
        Parts { deep: None, ..self }
    }

    /// At least what any product with at most `most.m` rows and a sum of at most `most.k` needs, with `most.n`
    /// columns; not cut along the sum.
    pub fn within<T: Operand, O: Operand<Wide = T::Wide>>(kernels: &Kernels<T>, most: Size) -> Parts {
        let (Size { m, n, .. }, k) = (most, most.k.div_ceil(kernels.fast.taken));
        let line = |n: usize| n.next_multiple_of(16);
        let rounds = !same::<O, T::Wide>();
        let part_k = k.clamp(1, K_PART);
        let cols = even(n, SLAB_COLS, kernels.cols);
        let slab_k = (SLAB / cols).max(part_k).min(k);
        let left = if n < MANY { LEFT } else { LEFT_LONG };
        // Blocks of one call's rows are as deep as a part may be; those of more rows were made to fit.
        let rows = LEFT_ROWS.max(2 * kernels.rows).min(m.next_multiple_of(kernels.rows));
        let left = left.max(2 * kernels.rows * part_k).min(rows * part_k);
        let chunk = CHUNK.min(m).next_multiple_of(kernels.rows);
        Parts {
            k,
            cols,
            chunk,
            part_k,
            slab_k,
            rows,
            bias: 0,
            slab: line(cols * slab_k + MAX_LANES),
            waiting: if rounds && slab_k < k { line(chunk * cols) } else { 0 },
            left: line(left + MAX_LANES),
            sums: if rounds && part_k < k { line(rows * cols) } else { 0 },
            alone: true,
            deep: None,
        }
    }

    /// Elements that a thread needs to compute any product by itself that it may.
    pub fn alone_room(&self) -> usize {
        self.slab.min((ALONE + MAX_LANES).next_multiple_of(16)) + self.own()
    }

    /// Elements that a thread works in.
    pub fn own(&self) -> usize {
        self.left + self.sums
    }

    /// Elements of the whole workspace.
    pub fn total(&self, threads: usize) -> usize {
        let own = self.own();
        let together = match self.deep {
            Some(deep) => deep.sums() + deep.packed() * threads,
            None => self.slab + self.waiting + own * threads,
        };
        self.bias + if self.alone { together.max(self.alone_room() * threads) } else { together }
    }
}
