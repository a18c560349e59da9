//! Products with a small result and a long sum, as gradients of weights are: `k` is cut into groups that are
//! summed apart, by one thread each, and then added in order. All that a group's next step reads and writes
//! stays in the second-level cache, while what comes after is on its way.

use super::ahead::Ahead;
use super::blocks::{Product, TOGETHER};
use super::lanes::PLACES;
use super::parts::{even, limit, part};
use super::tile::Tile;
use super::{GRAIN, Operand, Size, Start};
use crate::element::Wide;
use crate::pool::{Pool, Shared};
use crate::workspace;
use std::ptr::null;

/// Rows and columns of the result that a thread sums at a time, the shorter side and the longer one: the
/// larger the block, the more often what is packed is used. And most elements of the whole result.
const SIDE: usize = limit(192, 24);
const LONG: usize = 2 * SIDE;
const RESULT: usize = limit(160 << 10, 4 << 10);
/// Least depth for each row or column of the result: with less the sums of the groups cost more than they
/// save.
const DEEP: usize = 2;
/// Most places of `k` packed at a time: with the block of the result and what comes next they fill most of
/// the second-level cache.
const CHUNK: usize = limit(140, 8);
/// Tasks that are enough for most numbers of threads, and most groups.
const TASKS: usize = 16;
const GROUPS: usize = 8;

/// How such a product is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deep {
    /// Rows and columns of a block of the result, in whole tiles.
    rows: usize,
    cols: usize,
    /// Blocks down and across.
    blocks: [usize; 2],
    /// Places of `k` packed at a time; groups.
    chunk: usize,
    groups: usize,
}

impl Deep {
    /// Of a result `m × n`, summed over `k` places, with tiles of `height × width`; none if there is a better
    /// way.
    pub fn new([m, n, k]: [usize; 3], [height, width]: [usize; 2]) -> Option<Deep> {
        let deep = m.min(n) >= 2 * width && m * n <= RESULT && k >= DEEP * m.max(n) && k >= 2 * CHUNK;
        if !deep {
            return None;
        }
        let [tall, wide] = if n <= SIDE { [LONG, SIDE] } else { [SIDE, LONG] };
        let (rows, cols) = (even(m, tall, height), even(n, wide, width));
        let blocks = [m.div_ceil(rows), n.div_ceil(cols)];
        let groups = (TASKS / (blocks[0] * blocks[1])).clamp(1, GROUPS);
        let depth = k.div_ceil(groups).next_multiple_of(PLACES);
        let chunk = even(depth, CHUNK, PLACES);
        Some(Deep { rows, cols, blocks, chunk, groups: k.div_ceil(depth) })
    }

    fn block(&self) -> usize {
        self.rows * self.cols
    }

    fn tasks(&self) -> usize {
        self.groups * self.blocks[0] * self.blocks[1]
    }

    /// Block and group of task `at`. All blocks of a group follow each other: a thread, whose tasks do as
    /// well, reads some of the rows that are summed over, all their columns, and these are the rows that it
    /// wrote.
    fn task(&self, at: usize) -> (usize, usize) {
        let blocks = self.blocks[0] * self.blocks[1];
        (at % blocks, at / blocks)
    }

    /// Where the sums of task `at` begin: those of a block's groups follow each other.
    fn place(&self, at: usize) -> usize {
        let (block, group) = self.task(at);
        (block * self.groups + group) * self.block()
    }

    /// Elements of the sums of all groups.
    pub fn sums(&self) -> usize {
        self.tasks() * self.block()
    }

    /// Elements that a thread packs.
    pub fn packed(&self) -> usize {
        (self.rows + self.cols) * self.chunk + 2 * super::MAX_LANES
    }
}

/// Computes the product on all threads.
///
/// # Safety
/// As `gemm`, for this product; `workspace` is as large as `deep` says.
pub(super) unsafe fn together<T: Operand, O: Operand<Wide = T::Wide>>(
    p: &Product<T, O>,
    deep: &Deep,
    pool: &Pool,
    workspace: &mut [T::Wide],
) {
    let (sums, own) = workspace.split_at_mut(deep.sums());
    let shared = Shared(sums.as_mut_ptr());
    let mut own = workspace::spread(own, deep.packed(), pool.threads());
    own.run(pool, deep.tasks(), |at, own| {
        // SAFETY: each task has sums of its own.
        unsafe { sum(p, deep, at, own, shared.get().add(deep.place(at))) };
    });
    let Size { m, n, .. } = p.size;
    let sums = &*sums;
    let piece = (GRAIN / 8 / (n * deep.groups)).max(1);
    pool.each(m.div_ceil(piece), |at| {
        for i in at * piece..m.min((at + 1) * piece) {
            // SAFETY: the rows of the result differ from task to task.
            unsafe { write(p, deep, sums, i) };
        }
    });
}

/// Sums a group of a block of the result, to rows of `deep.cols` elements.
///
/// # Safety
/// As [`together`]; `to` has room for a block, which nobody else uses meanwhile.
unsafe fn sum<T: Operand, O: Operand<Wide = T::Wide>>(
    p: &Product<T, O>,
    deep: &Deep,
    at: usize,
    own: &mut [T::Wide],
    to: *mut T::Wide,
) {
    let panels = &p.kernels.fast;
    let (height, width) = (p.kernels.rows, p.kernels.cols);
    let (left, right) = own.split_at_mut(deep.rows * deep.chunk + super::MAX_LANES);
    // Where a task's block begins, its size, and its part of `k`.
    let task = |at: usize| {
        let (block, group) = deep.task(at);
        let (i, j) = (block / deep.blocks[1] * deep.rows, block % deep.blocks[1] * deep.cols);
        let size = [deep.rows.min(p.size.m - i), deep.cols.min(p.size.n - j)];
        let k = part(p.parts.k, PLACES, deep.groups, group);
        ([i, j], size, k)
    };
    // The operands of some places of a task, soon to be read.
    let soon = |[i, j]: [usize; 2], [m, n]: [usize; 2], at: usize, places: usize| {
        let k = p.elements(at, places);
        [Ahead::matrix(p.left(i, at), m, k), Ahead::matrix(p.right(at, j), k, n)]
    };
    let ([i, j], [m, n], k) = task(at);
    for first in k.clone().step_by(deep.chunk) {
        let places = deep.chunk.min(k.end - first);
        let elements = p.elements(first, places);
        // SAFETY: rows and columns of the operands, and room for them.
        unsafe {
            (panels.pack)(p.left(i, first), m, elements, height, places, left.as_mut_ptr());
            let columns = p.right(first, j).transposed();
            (panels.pack)(columns, n, elements, width, places, right.as_mut_ptr());
        }
        let next = first + places;
        let mut ahead = if next < k.end {
            soon([i, j], [m, n], next, deep.chunk.min(k.end - next))
        } else if at + 1 < deep.tasks() {
            let (place, size, k) = task(at + 1);
            soon(place, size, k.start, deep.chunk.min(k.len()))
        } else {
            [Ahead::NONE; 2]
        };
        let together = TOGETHER * height;
        let tiles = m.div_ceil(together) * n.div_ceil(width);
        let stretches = (ahead[0].len() + ahead[1].len()).div_ceil(tiles);
        for column in (0..n).step_by(width) {
            for row in (0..m).step_by(together) {
                let rows = together.min(m - row);
                let wanted = if ahead[0].len() > 0 { &mut ahead[0] } else { &mut ahead[1] };
                let c = to.wrapping_add(row * deep.cols + column);
                let tile = Tile {
                    rows,
                    // Whole panels: the last columns are zeros.
                    cols: width,
                    k: places,
                    a: left[row * places..].as_ptr(),
                    ars: 1,
                    acs: height as isize,
                    blocks: (height * places) as isize,
                    b: right[column * places..].as_ptr(),
                    brs: width as isize,
                    start: if first == k.start { null() } else { c },
                    srs: deep.cols as isize,
                    c,
                    crs: deep.cols as isize,
                    soon: wanted.take(stretches, rows / height, places),
                };
                // SAFETY: packed panels, and sums of this task.
                unsafe { (panels.tile)(&tile) };
            }
        }
    }
}

/// Adds the sums of the groups for row `i` of the result, and writes it.
///
/// # Safety
/// As [`together`], for this row.
unsafe fn write<T: Operand, O: Operand<Wide = T::Wide>>(
    p: &Product<T, O>,
    deep: &Deep,
    sums: &[T::Wide],
    i: usize,
) {
    /// Columns added at a time.
    const SOME: usize = limit(64, 16);
    // In steps that end where a block of columns does.
    let starts = (0..p.size.n).step_by(deep.cols).flat_map(|block| {
        (block..p.size.n.min(block + deep.cols)).step_by(SOME).map(move |first| (block / deep.cols, first))
    });
    for (across, first) in starts {
        let (block, column) = (i / deep.rows * deep.blocks[1] + across, first - across * deep.cols);
        let n = SOME.min(deep.cols - column).min(p.size.n - first);
        let mut total = [T::Wide::ZERO; SOME];
        let at = block * deep.groups * deep.block() + i % deep.rows * deep.cols + column;
        let groups = sums[at..][..(deep.groups - 1) * deep.block() + n].as_ptr();
        // SAFETY: the groups' sums for these columns.
        unsafe { (p.kernels.total)(groups, deep.block(), deep.groups, n, total.as_mut_ptr()) };
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
