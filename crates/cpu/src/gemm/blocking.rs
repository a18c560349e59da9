//! Blocking of a product: how its loops are cut, and the workspace this takes. The names are those of Goto
//! and van de Geijn (2008) and of BLIS (Van Zee and van de Geijn, 2015). KC, MC and NC are for the caches, MR
//! and NR for the registers.
//!
//! All sizes are functions of the product's sizes and the kernels alone, never of the number of threads. So
//! results have the same bits on any number of threads.

use super::Size;
use super::microkernel::{MAX_COLS, MAX_MR, Microkernels, Operand};
use crate::element::same;
use crate::simd::MAX_LANES;
use std::ops::Range;

/// KC: most of `k` summed in registers at once. A micro-panel of the left operand stays in the first-level
/// cache, one of the right operand comes from the second. Fewer parts cost less than micro-panels that both
/// stay in the first: the output is written once for each.
const KC: usize = limit(1024, 32);
/// Elements of a packed block of the left operand (MC × KC), for the second-level cache. With few columns the
/// next block is on its way there before this one is finished; with many it is reused for long.
const A_BLOCK: usize = limit(48 << 10, 4 << 10);
const A_BLOCK_WIDE: usize = limit(96 << 10, 8 << 10);
/// Elements of such a block for a matrix unit, which multiplies so fast that loads bound it: a row of tiles
/// is summed along all of KC, and written once.
const A_BLOCK_OF_UNIT: usize = limit(128 << 10, 4 << 10);
/// Columns from which on a block of the left operand is [`A_BLOCK_WIDE`].
const WIDE: usize = limit(768, 48);
/// Most of MC, the rows of such a block.
const MC: usize = 192;
/// Blocks of rows that a product is cut into if it has rows enough, for several threads.
const BLOCKS: usize = 8;
/// Rows that each of these has at least.
const LEAST_ROWS: usize = 24;
/// Elements of the packed panel of the right operand, for the third-level cache.
const B_PANEL: usize = limit(1 << 19, 1 << 12);
/// Elements of such a panel for a matrix unit: with all of `k`, partial sums stay in the second-level cache.
const B_PANEL_OF_UNIT: usize = limit(2 << 20, 1 << 12);
/// Most of NC, its columns.
const NC: usize = limit(1024, 64);
/// Rows of the output whose partial sums are kept while panel after panel along `k` is added to them.
const CHUNK_ROWS: usize = limit(1024, 96);
/// Elements of a right operand that a thread packs for itself.
const SERIAL_B: usize = 128 << 10;

/// Register tiles of one call of the microkernel, one below the other: so the cost of a call is small.
pub(super) const TILES_PER_CALL: usize = 4;

/// A limit, and a smaller one for unit tests, where small products are then cut into many parts as well.
pub(super) const fn limit(real: usize, tests: usize) -> usize {
    if cfg!(test) { tests } else { real }
}

/// The size of even parts of `n`, each at most `most` and a multiple of `of`, as `most` should be; at least
/// `of`.
pub(crate) fn even(n: usize, most: usize, of: usize) -> usize {
    n.div_ceil(n.div_ceil(most).max(1)).next_multiple_of(of).max(of)
}

/// Part `at` of the `count` parts of `n`. Parts differ by one multiple of `of` at most, so that threads with
/// equally many finish at the same time. None is larger than those of [`even`].
pub(super) fn part(n: usize, of: usize, count: usize, at: usize) -> Range<usize> {
    let start = |at: usize| n.min(at * n.div_ceil(of) / count * of);
    start(at)..start(at + 1)
}

/// KC of these kernels: so small that a block of the left operand has rows for a call of the microkernel.
fn most_kc<T: Operand>(kernels: &Microkernels<T>) -> usize {
    const { assert!(A_BLOCK_OF_UNIT >= TILES_PER_CALL * MAX_MR * MAX_LANES) };
    let most = KC.min(a_block(kernels, 0) / (TILES_PER_CALL * kernels.mr));
    most / kernels.panels.k_step * kernels.panels.k_step
}

/// Elements of a packed block of the left operand, for a product of `n` columns.
fn a_block<T: Operand>(kernels: &Microkernels<T>, n: usize) -> usize {
    match kernels.panels.of_unit() {
        true => A_BLOCK_OF_UNIT,
        false if n < WIDE => A_BLOCK,
        false => A_BLOCK_WIDE,
    }
}

/// Elements of a packed panel of the right operand.
fn b_panel<T: Operand>(kernels: &Microkernels<T>) -> usize {
    if kernels.panels.of_unit() { B_PANEL_OF_UNIT } else { B_PANEL }
}

/// The blocking of a product, and its workspace in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocking {
    /// k-groups of the sum: all that follows counts `k` in these (see [`crate::simd::pack::Pack::K_GROUP`]).
    pub k: usize,
    /// NC: columns of a panel of the right operand, in whole micro-panels.
    pub nc: usize,
    /// Rows of the output that partial sums are kept for, in whole tiles but for the last one.
    pub chunk: usize,
    /// KC: the part of the sum that is held in registers.
    pub kc: usize,
    /// Rows of a panel of the right operand: several times KC.
    pub panel_k: usize,
    /// MC: rows of a block of the left operand.
    pub mc: usize,
    /// Shared workspace: the bias, in whole micro-panels.
    pub bias: usize,
    /// Shared workspace: the packed panel of the right operand.
    pub b_panel: usize,
    /// Shared workspace: partial sums of the output between two panels along `k`.
    pub partial: usize,
    /// Workspace of each thread: a packed block of the left operand.
    pub a_block: usize,
    /// Workspace of each thread: partial sums of a block of the output, within a panel.
    block_sums: usize,
    /// True if one thread may compute the product alone: the right operand is one panel, and small.
    pub serial: bool,
    /// Split-K, where the sum is long and the result small.
    pub split_k: Option<SplitK>,
}

impl Blocking {
    pub fn new<T: Operand, O: Operand<Wide = T::Wide>>(kernels: &Microkernels<T>, size: Size) -> Blocking {
        let (Size { m, n, .. }, k) = (size, size.k.div_ceil(kernels.panels.k_group));
        let kc = even(k, most_kc(kernels), kernels.panels.k_step).min(k);
        let nc = even(n, NC, kernels.nr);
        let chunk = even(m, CHUNK_ROWS, kernels.mr);
        let panel_k = (b_panel(kernels) / nc / kc.max(1)).max(1).saturating_mul(kc).min(k);
        let left = a_block(kernels, n);
        let fit = (left / kc.max(1)).min(MC);
        // No more rows than some whole calls of the microkernel take.
        let together = TILES_PER_CALL * kernels.mr;
        let fit = fit / together * together;
        let blocks = if m <= 2 * kernels.mr { 1 } else { m.div_ceil(fit) };
        // Enough for several threads, if each block is still worth the micro-panels that it loads.
        let blocks = blocks.max((m / LEAST_ROWS).min(BLOCKS));
        let mc = m.div_ceil(blocks).next_multiple_of(kernels.mr);
        let line = |n: usize| n.next_multiple_of(16);
        let rounds = !same::<O, T::Wide>();
        Blocking {
            k,
            nc,
            chunk,
            kc,
            panel_k,
            mc,
            bias: line(n.next_multiple_of(kernels.nr) + MAX_COLS),
            b_panel: line(nc * panel_k + MAX_LANES),
            partial: if rounds && panel_k < k { line(chunk * nc) } else { 0 },
            a_block: line(mc * kc + MAX_LANES),
            block_sums: if rounds && kc < k && panel_k >= k { line(mc * nc) } else { 0 },
            serial: nc >= n && panel_k >= k && nc * panel_k <= SERIAL_B,
            split_k: SplitK::new([m, n, k], [kernels.mr, kernels.nr], kernels.panels.k_step),
        }
    }

    /// The same without split-K.
    pub fn without_split_k(self) -> Blocking {
        Blocking { split_k: None, ..self }
    }

    /// Workspace that is enough for every product with at most `most.m` rows and a sum of at most `most.k`,
    /// with `most.n` columns, without split-K.
    pub fn upper_bound<T: Operand, O: Operand<Wide = T::Wide>>(
        kernels: &Microkernels<T>,
        most: Size,
    ) -> Blocking {
        let (Size { m, n, .. }, k) = (most, most.k.div_ceil(kernels.panels.k_group));
        let line = |n: usize| n.next_multiple_of(16);
        let rounds = !same::<O, T::Wide>();
        let kc = k.clamp(1, most_kc(kernels));
        let nc = even(n, NC, kernels.nr);
        let panel_k = (b_panel(kernels) / nc).max(kc).min(k);
        let left = a_block(kernels, n);
        // Blocks of one call's rows are as deep as KC; those of more rows were made to fit.
        let mc = MC.max(2 * kernels.mr).min(m.next_multiple_of(kernels.mr));
        let left = left.max(2 * kernels.mr * kc).min(mc * kc);
        let chunk = CHUNK_ROWS.min(m).next_multiple_of(kernels.mr);
        Blocking {
            k,
            nc,
            chunk,
            kc,
            panel_k,
            mc,
            bias: 0,
            b_panel: line(nc * panel_k + MAX_LANES),
            partial: if rounds && panel_k < k { line(chunk * nc) } else { 0 },
            a_block: line(left + MAX_LANES),
            block_sums: if rounds && kc < k { line(mc * nc) } else { 0 },
            serial: true,
            split_k: None,
        }
    }

    /// Elements that a thread needs to compute alone any product that it may.
    pub fn serial_workspace(&self) -> usize {
        self.b_panel.min((SERIAL_B + MAX_LANES).next_multiple_of(16)) + self.thread_workspace()
    }

    /// Elements that a thread works in.
    pub fn thread_workspace(&self) -> usize {
        self.a_block + self.block_sums
    }

    /// Elements of the whole workspace.
    pub fn workspace(&self, threads: usize) -> usize {
        let own = self.thread_workspace();
        let together = match self.split_k {
            Some(split) => split.sums() + split.packed() * threads,
            None => self.b_panel + self.partial + own * threads,
        };
        self.bias + if self.serial { together.max(self.serial_workspace() * threads) } else { together }
    }
}

/// Shorter side of the block of the result that a task of split-K sums: the larger the block, the more often
/// packed operands are used.
const SIDE: usize = limit(192, 24);
/// Longer side.
const LONG: usize = 2 * SIDE;
/// Most elements of the whole result.
const RESULT: usize = limit(160 << 10, 4 << 10);
/// Least depth for each row or column of the result: with less, adding partial results costs more than
/// splitting saves.
const MIN_DEPTH: usize = 2;
/// Most k-groups packed at a time: with the block of the result and the next operands they fill most of the
/// second-level cache.
const SPLIT_CHUNK: usize = limit(140, 8);
/// Tasks that are enough for most numbers of threads.
const TASKS: usize = 16;
/// Most splits of `k`.
const SPLITS: usize = 8;

/// Blocking of split-K: `k` is cut into splits, whose partial results are summed by tasks of their own and
/// then added in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitK {
    /// Rows and columns of a block of the result, in whole tiles.
    pub rows: usize,
    pub cols: usize,
    /// Blocks down and across.
    pub blocks: [usize; 2],
    /// k-groups packed at a time.
    pub chunk: usize,
    /// Splits of `k`.
    pub splits: usize,
}

impl SplitK {
    /// For a result `m × n` summed over `k` k-groups, with register tiles of `mr × nr` that take `k_step`
    /// k-groups per step; `None` if another method is better.
    fn new([m, n, k]: [usize; 3], [mr, nr]: [usize; 2], k_step: usize) -> Option<SplitK> {
        let pays = m.min(n) >= 2 * nr && m * n <= RESULT && k >= MIN_DEPTH * m.max(n) && k >= 2 * SPLIT_CHUNK;
        if !pays {
            return None;
        }
        let [tall, wide] = if n <= SIDE { [LONG, SIDE] } else { [SIDE, LONG] };
        let (rows, cols) = (even(m, tall, mr), even(n, wide, nr));
        let blocks = [m.div_ceil(rows), n.div_ceil(cols)];
        let splits = (TASKS / (blocks[0] * blocks[1])).clamp(1, SPLITS);
        let depth = k.div_ceil(splits).next_multiple_of(k_step);
        let chunk = even(depth, SPLIT_CHUNK.max(k_step) / k_step * k_step, k_step);
        Some(SplitK { rows, cols, blocks, chunk, splits: k.div_ceil(depth) })
    }

    /// Elements of a block of the result.
    pub fn block(&self) -> usize {
        self.rows * self.cols
    }

    /// Blocks of all splits.
    pub fn tasks(&self) -> usize {
        self.splits * self.blocks[0] * self.blocks[1]
    }

    /// Block and split of task `at`. All blocks of a split follow each other, and so do the tasks of a
    /// thread. It reads whole rows of the operands, which are those that it wrote before.
    pub fn task(&self, at: usize) -> (usize, usize) {
        let blocks = self.blocks[0] * self.blocks[1];
        (at % blocks, at / blocks)
    }

    /// Offset of the partial result of task `at`: those of one block follow each other.
    pub fn offset(&self, at: usize) -> usize {
        let (block, split) = self.task(at);
        (block * self.splits + split) * self.block()
    }

    /// Elements of all partial results.
    pub fn sums(&self) -> usize {
        self.tasks() * self.block()
    }

    /// Elements that a thread packs.
    pub fn packed(&self) -> usize {
        (self.rows + self.cols) * self.chunk + 2 * MAX_LANES
    }
}
