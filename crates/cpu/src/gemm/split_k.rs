//! Split-K: products with a small result and a long sum, as gradients of weights are. `k` is cut into splits,
//! whose partial results tasks of their own sum and which are then added in order ([`SplitK`]). What a task's
//! next step reads and writes stays in the second-level cache, while the operands of the step after it are
//! prefetched.

use super::blocking::{SplitK, TILES_PER_CALL, limit, part};
use super::microkernel::{Operand, Tile};
use super::product::Product;
use super::{GRAIN, Size, Start};
use crate::element::Wide;
use crate::pool::{Pool, Shared};
use crate::prefetch::Prefetch;
use crate::simd::MAX_LANES;
use crate::workspace;
use std::ptr::null;

/// Computes the product on all threads.
///
/// # Safety
/// As `gemm`, for this product; `workspace` is as large as `split` says.
pub(super) unsafe fn parallel<T: Operand, O: Operand<Wide = T::Wide>>(
    p: &Product<T, O>,
    split: &SplitK,
    pool: &Pool,
    workspace: &mut [T::Wide],
) {
    let (sums, own) = workspace.split_at_mut(split.sums());
    let shared = Shared(sums.as_mut_ptr());
    let mut own = workspace::spread(own, split.packed(), pool.threads());
    own.run(pool, split.tasks(), |at, own| {
        // SAFETY: each task has sums of its own.
        unsafe { sum(p, split, at, own, shared.get().add(split.offset(at))) };
    });
    let Size { m, n, .. } = p.size;
    let sums = &*sums;
    let piece = (GRAIN / 8 / (n * split.splits)).max(1);
    pool.each(m.div_ceil(piece), |at| {
        for i in at * piece..m.min((at + 1) * piece) {
            // SAFETY: the rows of the result differ from task to task.
            unsafe { write(p, split, sums, i) };
        }
    });
}

/// Sums the partial result of a task, to rows of `split.cols` elements.
///
/// # Safety
/// As [`parallel`]; `to` can hold a block, which nobody else uses meanwhile.
unsafe fn sum<T: Operand, O: Operand<Wide = T::Wide>>(
    p: &Product<T, O>,
    split: &SplitK,
    at: usize,
    own: &mut [T::Wide],
    to: *mut T::Wide,
) {
    let panels = &p.kernels.panels;
    let (height, width) = (p.kernels.mr, p.kernels.nr);
    let (left, right) = own.split_at_mut(split.rows * split.chunk + MAX_LANES);
    // First row and column of a task's block, its size, and its part of `k`.
    let task = |at: usize| {
        let (block, part_of_k) = split.task(at);
        let (i, j) = (block / split.blocks[1] * split.rows, block % split.blocks[1] * split.cols);
        let size = [split.rows.min(p.size.m - i), split.cols.min(p.size.n - j)];
        let k = part(p.blocking.k, panels.k_step, split.splits, part_of_k);
        ([i, j], size, k)
    };
    // The operands of some k-groups of a task, to be prefetched.
    let soon = |[i, j]: [usize; 2], [m, n]: [usize; 2], at: usize, k_groups: usize| {
        let k = p.elements(at, k_groups);
        [Prefetch::matrix(p.left(i, at), m, k), Prefetch::matrix(p.right(at, j), k, n)]
    };
    let ([i, j], [m, n], k) = task(at);
    for first in k.clone().step_by(split.chunk) {
        let k_groups = split.chunk.min(k.end - first);
        let elements = p.elements(first, k_groups);
        // SAFETY: rows and columns of the operands, and capacity for them.
        unsafe {
            (panels.pack_left)(p.left(i, first), m, elements, height, k_groups, left.as_mut_ptr());
            let columns = p.right(first, j).transposed();
            (panels.pack)(columns, n, elements, width, k_groups, right.as_mut_ptr());
        }
        let next = first + k_groups;
        let mut ahead = if next < k.end {
            soon([i, j], [m, n], next, split.chunk.min(k.end - next))
        } else if at + 1 < split.tasks() {
            let (from, size, k) = task(at + 1);
            soon(from, size, k.start, split.chunk.min(k.len()))
        } else {
            [Prefetch::NONE; 2]
        };
        let [ars, acs] = panels.left_strides(height, k_groups);
        let together = TILES_PER_CALL * height;
        let tiles = m.div_ceil(together) * n.div_ceil(width);
        let stretches = (ahead[0].len() + ahead[1].len()).div_ceil(tiles);
        for column in (0..n).step_by(width) {
            for row in (0..m).step_by(together) {
                let rows = together.min(m - row);
                let wanted = if ahead[0].len() > 0 { &mut ahead[0] } else { &mut ahead[1] };
                let c = to.wrapping_add(row * split.cols + column);
                let tile = Tile {
                    rows,
                    // Whole panels: the last columns are zeros.
                    cols: width,
                    k: k_groups,
                    a: left[row * k_groups..].as_ptr(),
                    ars,
                    acs,
                    blocks: (height * k_groups) as isize,
                    b: right[column * k_groups..].as_ptr(),
                    brs: width as isize,
                    start: if first == k.start { null() } else { c },
                    srs: split.cols as isize,
                    c,
                    crs: split.cols as isize,
                    prefetch: wanted.take(stretches, rows / height, k_groups),
                };
                // SAFETY: packed panels, and sums of this task.
                unsafe { (panels.tile)(&tile) };
            }
        }
    }
}

/// Adds the partial results of row `i`, and writes it.
///
/// # Safety
/// As [`parallel`], for this row.
unsafe fn write<T: Operand, O: Operand<Wide = T::Wide>>(
    p: &Product<T, O>,
    split: &SplitK,
    sums: &[T::Wide],
    i: usize,
) {
    /// Columns added at a time.
    const SOME: usize = limit(64, 16);
    // In steps that end where a block of columns does.
    let starts = (0..p.size.n).step_by(split.cols).flat_map(|block| {
        (block..p.size.n.min(block + split.cols)).step_by(SOME).map(move |first| (block / split.cols, first))
    });
    for (across, first) in starts {
        let (block, column) = (i / split.rows * split.blocks[1] + across, first - across * split.cols);
        let n = SOME.min(split.cols - column).min(p.size.n - first);
        let mut total = [T::Wide::ZERO; SOME];
        let at = block * split.splits * split.block() + i % split.rows * split.cols + column;
        let partial = sums[at..][..(split.splits - 1) * split.block() + n].as_ptr();
        // SAFETY: the partial results of these columns.
        unsafe { (p.kernels.sum_rows)(partial, split.block(), split.splits, n, total.as_mut_ptr()) };
        let c = p.c.at(i, first).ptr;
        for (j, t) in total[..n].iter_mut().enumerate() {
            match p.start {
                Start::Zero => {}
                // SAFETY: an element of the result.
                Start::Output => *t += unsafe { *c.add(j) }.widen(),
                // SAFETY: an element of the bias.
                Start::Bias(v) => *t += unsafe { *v.at(0, first + j).ptr },
            }
        }
        // SAFETY: elements of the result that follow each other.
        unsafe { (p.narrow)(total.as_ptr(), n, c) };
    }
}
