//! Goto's method: five loops around the microkernel (Goto and van de Geijn, *Anatomy of High-Performance
//! Matrix Multiplication*, 2008; names as in BLIS). A panel of the right operand is packed once and shared by
//! all threads. Each thread packs blocks of the left operand for itself, and the macrokernel runs the
//! microkernel over both. Sums of `k` beyond KC wait in the output, or in memory of the accumulator type.

use super::blocking::{TILES_PER_CALL, part};
use super::microkernel::{MAX_COLS, MAX_MR, Operand, Tile};
use super::product::Product;
use super::{GRAIN, Size, Start};
use crate::element::same;
use crate::matrix::MatMut;
use crate::pool::{Pool, Shared};
use crate::prefetch::{Prefetch, prefetch_write};
use crate::workspace;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null_mut;

/// Elements of a right operand packed by one task.
const PACK_ELEMENTS: usize = 1 << 15;
/// Rows of a right operand packed by one task, where rows are contiguous.
const PACK_ROWS: usize = 32;

/// A packed panel of the right operand, and the rows of the output that it is multiplied for.
#[derive(Clone, Copy)]
struct BPanel<W> {
    /// First row, rows.
    i: usize,
    m: usize,
    /// First column, columns.
    j: usize,
    n: usize,
    /// First k-group, and how many.
    p: usize,
    k: usize,
    /// The right operand, packed.
    right: Shared<W>,
    /// Partial sums of the output, by row and column of the panel, until further panels are added. Null if
    /// they wait in the output, or the panel has all of `k`.
    partial: Shared<W>,
}

impl<T: Operand, O: Operand<Wide = T::Wide>> Product<T, O> {
    /// Computes the product on one thread.
    ///
    /// # Safety
    /// As `gemm`, for this product; `own` is a thread's workspace, and the blocking allows it.
    pub unsafe fn goto_serial(&self, own: &mut [T::Wide]) {
        let (Size { m, n, .. }, k) = (self.size, self.blocking.k);
        let (right, own) = own.split_at_mut(self.blocking.b_panel);
        let right = Shared(right.as_mut_ptr());
        let b_panel = BPanel { i: 0, m, j: 0, n, p: 0, k, right, partial: Shared(null_mut()) };
        // SAFETY: the caller's promise; the panel is this thread's own.
        unsafe {
            let panels = 0..n.div_ceil(self.kernels.nr);
            let kc = self.blocking.kc.max(1);
            (0..k).step_by(kc).for_each(|p| {
                self.pack_b(b_panel, p, 0..kc.min(k - p), panels.clone());
            });
            let mc = self.blocking.mc;
            (0..m).step_by(mc).for_each(|i| {
                self.macrokernel(b_panel, i..m.min(i + mc), 0..n, own, Prefetch::NONE, Prefetch::NONE)
            });
        }
    }

    /// Computes the product on all threads.
    ///
    /// # Safety
    /// As `gemm`, for this product; `workspace` is as large as the blocking says, without the bias.
    pub unsafe fn goto_parallel(&self, pool: &Pool, workspace: &mut [T::Wide]) {
        let (Size { m, n, .. }, k) = (self.size, self.blocking.k);
        let blocking = &self.blocking;
        let (right, rest) = workspace.split_at_mut(blocking.b_panel);
        let (partial, rest) = rest.split_at_mut(blocking.partial);
        let right = Shared(right.as_mut_ptr());
        let partial = Shared(if partial.is_empty() { null_mut() } else { partial.as_mut_ptr() });
        // Rows come in chunks if their sums wait for further panels.
        let panel_k = blocking.panel_k;
        let chunk = if panel_k < k { blocking.chunk } else { m };
        let b_panel = |(j, i, p): (usize, usize, usize)| BPanel {
            i,
            m: chunk.min(m - i),
            j,
            n: blocking.nc.min(n - j),
            p,
            k: panel_k.min(k - p),
            right,
            partial,
        };
        let mut b_panels = (0..n)
            .step_by(blocking.nc)
            .flat_map(|j| (0..m).step_by(chunk).map(move |i| (j, i)))
            .flat_map(|(j, i)| (0..k.max(1)).step_by(panel_k.max(1)).map(move |p| (j, i, p)))
            .map(b_panel)
            .peekable();
        while let Some(b_panel) = b_panels.next() {
            // SAFETY: tasks write different parts of the panel.
            pool.each(self.pack_tasks(b_panel), |g| unsafe { self.pack_task(b_panel, g) });
            let next = b_panels.peek().map_or(Prefetch::NONE, |to| {
                Prefetch::matrix(self.right(to.p, to.j), self.elements(to.p, to.k), to.n)
            });
            // SAFETY: all that the blocks read is packed.
            unsafe { self.macrokernels(b_panel, pool, rest, next) };
        }
    }

    /// All blocks of the output that a panel contributes to. `next` is packed next, and prefetched meanwhile.
    ///
    /// # Safety
    /// The panel is packed; nobody else uses its part of the output meanwhile.
    unsafe fn macrokernels(
        &self,
        b_panel: BPanel<T::Wide>,
        pool: &Pool,
        own: &mut [T::Wide],
        next: Prefetch,
    ) {
        let (blocking, nr) = (&self.blocking, self.kernels.nr);
        let panels = b_panel.n.div_ceil(nr);
        // Rows are cut into blocks; if these are few, columns are cut as well.
        let mut blocks = b_panel.m.div_ceil(blocking.mc);
        if blocks > 1 {
            // As many for each thread; more of them are smaller.
            blocks = blocks.next_multiple_of(pool.threads()).min(b_panel.m.div_ceil(self.kernels.mr));
        }
        let work = Size { m: b_panel.m, n: b_panel.n, k: self.size.k }.work();
        let pieces = (work / GRAIN).clamp(1, 8).div_ceil(blocks).min(panels);
        let piece = panels.div_ceil(pieces) * nr;
        let pieces = b_panel.n.div_ceil(piece);
        let tasks = blocks * pieces;
        let of = |block: usize| {
            let part = part(b_panel.m, self.kernels.mr, blocks, block);
            b_panel.i + part.start..b_panel.i + part.end
        };
        let mut own = workspace::spread(own, blocking.thread_workspace(), pool.threads());
        own.run(pool, tasks, |g, own| {
            let (rows, j) = (of(g / pieces), g % pieces * piece);
            let cols = j..b_panel.n.min(j + piece);
            // The rows that this thread reads next, unless its share ends here.
            let left = match pieces == 1 && g + 1 < blocks {
                true => {
                    let depth = blocking.kc.min(b_panel.k);
                    let depth = self.elements(b_panel.p, depth);
                    let after = of(g + 1);
                    Prefetch::matrix(self.left(after.start, b_panel.p), after.len(), depth)
                }
                false => Prefetch::NONE,
            };
            // SAFETY: blocks differ in their rows or columns, and so in what they write.
            unsafe { self.macrokernel(b_panel, rows, cols, own, next.part(g, tasks), left) };
        });
    }

    /// Tasks that pack a panel.
    fn pack_tasks(&self, b_panel: BPanel<T::Wide>) -> usize {
        if self.b.cs == 1 {
            return b_panel.k.div_ceil(PACK_ROWS);
        }
        b_panel.n.div_ceil(self.kernels.nr).div_ceil(self.panels_at_once())
            * b_panel.k.div_ceil(self.blocking.kc.max(1))
    }

    fn panels_at_once(&self) -> usize {
        (PACK_ELEMENTS / (self.kernels.nr * self.blocking.kc).max(1)).max(1)
    }

    /// One of them: some rows if rows are contiguous, some micro-panels of a part of `k` otherwise.
    ///
    /// # Safety
    /// The panel has the capacity; nobody uses this part of it meanwhile.
    unsafe fn pack_task(&self, b_panel: BPanel<T::Wide>, g: usize) {
        let panels = b_panel.n.div_ceil(self.kernels.nr);
        // SAFETY: the caller's promise.
        unsafe {
            if self.b.cs == 1 {
                self.pack_rows(b_panel, g, |p, within| self.pack_b(b_panel, p, within, 0..panels));
            } else {
                let some = self.panels_at_once();
                let groups = panels.div_ceil(some);
                let (p, g) = (g / groups * self.blocking.kc, g % groups);
                let depth = self.blocking.kc.min(b_panel.k - p);
                self.pack_b(b_panel, p, 0..depth, g * some..((g + 1) * some).min(panels));
            }
        }
    }

    /// The k-groups of packing task `g`, [`PACK_ROWS`] at a time. Calls `f` with the part of KC k-groups they
    /// are in, by its first, and their range within it.
    fn pack_rows(&self, b_panel: BPanel<T::Wide>, g: usize, mut f: impl FnMut(usize, Range<usize>)) {
        let (mut at, end) = (g * PACK_ROWS, b_panel.k.min((g + 1) * PACK_ROWS));
        while at < end {
            let p = at / self.blocking.kc * self.blocking.kc;
            let to = end.min(p + self.blocking.kc);
            f(p, at - p..to - p);
            at = to;
        }
    }

    /// Packs micro-panels of the right operand, for the k-groups `within` of the part of `k` that begins at
    /// `p`.
    ///
    /// # Safety
    /// The panel has the capacity; nobody uses this part of it meanwhile.
    unsafe fn pack_b(&self, b_panel: BPanel<T::Wide>, p: usize, within: Range<usize>, panels: Range<usize>) {
        let width = self.kernels.nr;
        let padded = b_panel.n.next_multiple_of(width);
        // Columns read in place are not packed, except those that fill no micro-panel.
        let start = if self.right_in_place() { panels.end.min(b_panel.n / width) } else { panels.start };
        let from = start * width;
        let columns = (panels.end * width).min(b_panel.n) - from;
        let depth = self.blocking.kc.min(b_panel.k - p);
        let first = b_panel.p + p + within.start;
        let (x, k) = (self.right(first, b_panel.j + from).transposed(), self.elements(first, within.len()));
        let to = b_panel.right.get().wrapping_add(p * padded + from * depth + within.start * width);
        // SAFETY: columns of the right operand, and capacity for the micro-panels. Packing writes past one
        // only if its width is not a multiple of a vector, which NR is.
        unsafe { (self.kernels.panels.pack)(x, columns, k, width, depth, to) };
    }

    /// A block of the output: some rows, and some columns of the panel. `right` and `left` are read next, of
    /// either operand, and prefetched meanwhile.
    ///
    /// # Safety
    /// The panel is packed; `own` is a thread's workspace; nobody else uses this block meanwhile.
    unsafe fn macrokernel(
        &self,
        b_panel: BPanel<T::Wide>,
        rows: Range<usize>,
        cols: Range<usize>,
        own: &mut [T::Wide],
        mut right: Prefetch,
        left: Prefetch,
    ) {
        let (mr, nr) = (self.kernels.mr, self.kernels.nr);
        let padded = b_panel.n.next_multiple_of(nr);
        let (packed, sums) = own.split_at_mut(self.blocking.a_block);
        let (left_in_place, right_in_place) = (self.left_in_place(), self.right_in_place());
        let direct = same::<O, T::Wide>();
        // Partial sums: element (0, 0) of this block's rows, all columns of the panel.
        let partial = if direct {
            let c = self.c.at(rows.start, b_panel.j);
            MatMut { ptr: c.ptr.cast::<T::Wide>(), rs: c.rs }
        } else if b_panel.partial.get().is_null() {
            MatMut { ptr: sums.as_mut_ptr(), rs: self.blocking.nc as isize }
        } else {
            let ptr = b_panel.partial.get().wrapping_add((rows.start - b_panel.i) * self.blocking.nc);
            MatMut { ptr, rs: self.blocking.nc as isize }
        };
        let kc = self.blocking.kc;
        let tiles = cols.len().div_ceil(nr) * rows.len().div_ceil(TILES_PER_CALL * mr);
        let b_runs = right.len().div_ceil(tiles * b_panel.k.div_ceil(kc.max(1)).max(1));
        let mut buffer = MaybeUninit::<[T::Wide; TILES_PER_CALL * MAX_MR * MAX_COLS]>::uninit();
        let mut p = 0;
        loop {
            let depth = kc.min(b_panel.k - p);
            let (first, last) = (b_panel.p + p == 0, b_panel.p + p + depth == self.blocking.k);
            let x = self.left(rows.start, b_panel.p + p);
            if !left_in_place {
                let (k, to) = (self.elements(b_panel.p + p, depth), packed.as_mut_ptr());
                // SAFETY: rows of the left operand, and capacity for them.
                unsafe { (self.kernels.panels.pack_left)(x, rows.len(), k, mr, depth, to) };
            }
            let further = b_panel.k - p - depth;
            let mut ahead = match further {
                0 => left,
                _ => {
                    let from = b_panel.p + p + depth;
                    let k = self.elements(from, kc.min(further));
                    Prefetch::matrix(self.left(rows.start, from), rows.len(), k)
                }
            };
            let a_runs = ahead.len().div_ceil(tiles);
            let mut odd = false;
            for j in cols.clone().step_by(nr) {
                let n = nr.min(cols.end - j);
                for i in (0..rows.len()).step_by(TILES_PER_CALL * mr) {
                    let m = (TILES_PER_CALL * mr).min(rows.len() - i);
                    let c = self.c.at(rows.start + i, b_panel.j + j);
                    let partial = partial.at(i, j);
                    let out = !direct && last;
                    let to = if out {
                        MatMut { ptr: buffer.as_mut_ptr().cast(), rs: nr as isize }
                    } else {
                        partial
                    };
                    let none = MatMut { ptr: null_mut(), rs: 0 };
                    let start = match self.start {
                        _ if !first => partial,
                        Start::Zero => none,
                        Start::Bias(v) => MatMut { ptr: v.at(0, b_panel.j + j).ptr.cast_mut(), rs: 0 },
                        Start::Output if direct => partial,
                        Start::Output => {
                            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                                // SAFETY: elements of the output, and of where the sums go.
                                unsafe { *to.at(i, j).ptr = (*c.at(i, j).ptr).widen() };
                            }
                            to
                        }
                    };
                    let panel = packed.as_ptr().wrapping_add(i * depth);
                    let (a, ars, acs, blocks) = if left_in_place {
                        let rs = x.rs / self.kernels.panels.k_group as isize;
                        (x.at(i, 0).ptr.cast(), rs, 1, mr as isize * rs)
                    } else {
                        let [ars, acs] = self.kernels.panels.left_strides(mr, depth);
                        (panel, ars, acs, (mr * depth) as isize)
                    };
                    odd = !odd;
                    let prefetch = match (odd, right.len()) {
                        (_, 0) => ahead.take(a_runs, m / mr, depth),
                        (true, _) => right.take(2 * b_runs, m / mr, depth),
                        (false, _) => ahead.take(2 * a_runs, m / mr, depth),
                    };
                    let panel = b_panel.right.get().wrapping_add(p * padded + j * depth).cast_const();
                    let (b, brs) = if right_in_place && n == nr {
                        (self.right(b_panel.p + p, b_panel.j + j).ptr.cast(), self.b.rs)
                    } else {
                        (panel, nr as isize)
                    };
                    let tile = Tile {
                        rows: m,
                        cols: n,
                        k: depth,
                        a,
                        ars,
                        acs,
                        blocks,
                        b,
                        brs,
                        start: start.ptr,
                        srs: start.rs,
                        c: to.ptr,
                        crs: to.rs,
                        prefetch,
                    };
                    if out {
                        // By the time the sums are rounded, the lines they go to are in the first-level
                        // cache.
                        let size = size_of::<O>();
                        prefetch_write(c.ptr.cast(), m, c.rs * size as isize, (n - 1) * size);
                    }
                    // SAFETY: micro-panels, packed or in place, and elements of the output or of the sums
                    // that wait for them.
                    unsafe { (self.kernels.panels.tile)(&tile) };
                    if out {
                        // SAFETY: rows of the buffer and of the output.
                        (0..m).for_each(|i| unsafe { (self.narrow)(to.at(i, 0).ptr, n, c.at(i, 0).ptr) });
                    }
                }
            }
            p += depth;
            if p >= b_panel.k {
                return;
            }
        }
    }
}
