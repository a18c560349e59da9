//! How a product is computed: slabs of the right operand, packed once and shared; blocks of rows of the left
//! one.

use super::ahead::{Ahead, claim};
use super::parts::{Parts, part};
use super::tiers::{Kernels, Operand};
use super::tile::{MAX_COLS, MAX_ROWS, Tile};
use super::{GRAIN, Mat, MatMut, Size, Start, deep, same, skinny};
use crate::element::Float;
use crate::pool::{Pool, Shared};
use crate::workspace;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null_mut;

/// Panels up to which rows of the left operand are not packed.
const IN_PLACE: usize = 16;
/// Blocks of rows in registers, one after the other, that a kernel is called for: what it takes to begin is
/// little then.
pub(super) const TOGETHER: usize = 4;
/// Elements packed at a time.
const PACKED: usize = 1 << 15;
/// Rows of an operand packed at a time whose rows are summed over.
const DEEP: usize = 32;

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

/// What is computed at a time: part of the rows and columns of the output, and of `k`.
#[derive(Clone, Copy)]
struct Slab<W> {
    /// First row, rows.
    i: usize,
    m: usize,
    /// First column, columns.
    j: usize,
    n: usize,
    /// First place of `k`, and how many.
    p: usize,
    k: usize,
    /// The right operand, packed.
    right: Shared<W>,
    /// Sums of elements of the output, by row and column of the slab, that wait for further slabs; null if
    /// they wait in the output, or the slab has all of `k`.
    waiting: Shared<W>,
}

impl<T: Operand, O: Operand<Wide = T::Wide>> Product<T, O> {
    /// Computes the product on one thread.
    ///
    /// # Safety
    /// As `gemm`, for this product; `own` is a thread's workspace, and the parts allow it.
    pub unsafe fn alone(&self, own: &mut [T::Wide]) {
        let (Size { m, n, .. }, k) = (self.size, self.parts.k);
        if skinny::takes(self) {
            // SAFETY: the caller's promise.
            return unsafe { skinny::dots(self, 0..m, 0..n) };
        }
        let (right, own) = own.split_at_mut(self.parts.slab);
        let right = Shared(right.as_mut_ptr());
        let slab = Slab { i: 0, m, j: 0, n, p: 0, k, right, waiting: Shared(null_mut()) };
        // SAFETY: the caller's promise; the slab is this thread's own.
        unsafe {
            let panels = 0..n.div_ceil(self.kernels.cols);
            let part_k = self.parts.part_k.max(1);
            (0..k).step_by(part_k).for_each(|p| {
                self.pack(slab, p, 0..part_k.min(k - p), panels.clone());
            });
            let rows = self.parts.rows;
            (0..m)
                .step_by(rows)
                .for_each(|i| self.block(slab, i..m.min(i + rows), 0..n, own, Ahead::NONE, Ahead::NONE));
        }
    }

    /// Computes the product on all threads.
    ///
    /// # Safety
    /// As `gemm`, for this product; `workspace` is as large as the parts say, without the bias.
    pub unsafe fn together(&self, pool: &Pool, workspace: &mut [T::Wide]) {
        let (Size { m, n, .. }, k) = (self.size, self.parts.k);
        if skinny::takes(self) {
            // SAFETY: the caller's promise.
            return unsafe { skinny::together(self, pool) };
        }
        let parts = &self.parts;
        if let Some(deep) = &parts.deep {
            // SAFETY: the caller's promise.
            return unsafe { deep::together(self, deep, pool, workspace) };
        }
        let (right, rest) = workspace.split_at_mut(parts.slab);
        let (waiting, rest) = rest.split_at_mut(parts.waiting);
        let right = Shared(right.as_mut_ptr());
        let waiting = Shared(if waiting.is_empty() { null_mut() } else { waiting.as_mut_ptr() });
        // Rows come in chunks if their sums wait for further slabs.
        let slab_k = parts.slab_k;
        let chunk = if slab_k < k { parts.chunk } else { m };
        let slab = |(j, i, p): (usize, usize, usize)| Slab {
            i,
            m: chunk.min(m - i),
            j,
            n: parts.cols.min(n - j),
            p,
            k: slab_k.min(k - p),
            right,
            waiting,
        };
        let mut slabs = (0..n)
            .step_by(parts.cols)
            .flat_map(|j| (0..m).step_by(chunk).map(move |i| (j, i)))
            .flat_map(|(j, i)| (0..k.max(1)).step_by(slab_k.max(1)).map(move |p| (j, i, p)))
            .map(slab)
            .peekable();
        while let Some(slab) = slabs.next() {
            // SAFETY: pieces lie apart in the slab.
            pool.each(self.pieces(slab), |g| unsafe { self.piece(slab, g) });
            let next = slabs.peek().map_or(Ahead::NONE, |to| {
                Ahead::matrix(self.right(to.p, to.j), self.elements(to.p, to.k), to.n)
            });
            // SAFETY: all that the blocks read is packed.
            unsafe { self.blocks(slab, pool, rest, next) };
        }
    }

    /// All blocks of a slab. `next` is what is packed next.
    ///
    /// # Safety
    /// The slab is packed; nobody else uses its part of the output meanwhile.
    unsafe fn blocks(&self, slab: Slab<T::Wide>, pool: &Pool, own: &mut [T::Wide], next: Ahead) {
        let (parts, width) = (&self.parts, self.kernels.cols);
        let panels = slab.n.div_ceil(width);
        // Rows are cut into blocks; if these are few, columns are cut as well.
        let mut blocks = slab.m.div_ceil(parts.rows);
        if blocks > 1 {
            // As many for each thread; more of them are smaller.
            blocks = blocks.next_multiple_of(pool.threads()).min(slab.m.div_ceil(self.kernels.rows));
        }
        let work = Size { m: slab.m, n: slab.n, k: self.size.k }.work();
        let pieces = (work / GRAIN).clamp(1, 8).div_ceil(blocks).min(panels);
        let piece = panels.div_ceil(pieces) * width;
        let pieces = slab.n.div_ceil(piece);
        let tasks = blocks * pieces;
        let of = |block: usize| {
            let part = part(slab.m, self.kernels.rows, blocks, block);
            slab.i + part.start..slab.i + part.end
        };
        let mut own = workspace::spread(own, parts.own(), pool.threads());
        own.run(pool, tasks, |g, own| {
            let (rows, j) = (of(g / pieces), g % pieces * piece);
            let cols = j..slab.n.min(j + piece);
            // The rows that this thread reads next, unless its share ends here.
            let left = match pieces == 1 && g + 1 < blocks {
                true => {
                    let depth = parts.part_k.min(slab.k);
                    let depth = self.elements(slab.p, depth);
                    let after = of(g + 1);
                    Ahead::matrix(self.left(after.start, slab.p), after.len(), depth)
                }
                false => Ahead::NONE,
            };
            // SAFETY: blocks differ in their rows or columns, and so in what they write.
            unsafe { self.block(slab, rows, cols, own, next.part(g, tasks), left) };
        });
    }

    /// The left operand from a row and a place of `k` on.
    pub fn left(&self, i: usize, p: usize) -> Mat<T> {
        self.a.at(i, p * self.kernels.fast.taken)
    }

    /// The right operand from a place of `k` and a column on.
    pub fn right(&self, p: usize, j: usize) -> Mat<T> {
        self.b.at(p * self.kernels.fast.taken, j)
    }

    /// How many of `k` lie in some places from place `p` on.
    pub fn elements(&self, p: usize, places: usize) -> usize {
        let taken = self.kernels.fast.taken;
        (places * taken).min(self.size.k - p * taken)
    }

    /// Whether whole panels of the right operand are read where they lie: too few rows would repay packing.
    fn right_in_place(&self) -> bool {
        same::<T, T::Wide>() && self.b.cs == 1 && self.size.m <= 2 * self.kernels.rows
    }

    /// Whether rows of the left operand are read where they lie: too few columns would repay packing. Pairs
    /// lie as panels have them if they are whole, and begin where a place may.
    fn left_in_place(&self) -> bool {
        let (taken, place) = (self.kernels.fast.taken, size_of::<T::Wide>());
        let whole = self.size.k.is_multiple_of(taken)
            && self.a.rs % taken as isize == 0
            && (self.a.ptr as usize).is_multiple_of(place);
        let lies = size_of::<T>() * taken == place && self.a.cs == 1 && whole;
        lies && self.size.n <= IN_PLACE * self.kernels.cols
    }

    /// How many pieces the right operand of a slab is packed in.
    fn pieces(&self, slab: Slab<T::Wide>) -> usize {
        if self.b.cs == 1 {
            return slab.k.div_ceil(DEEP);
        }
        slab.n.div_ceil(self.kernels.cols).div_ceil(self.panels_at_once())
            * slab.k.div_ceil(self.parts.part_k.max(1))
    }

    fn panels_at_once(&self) -> usize {
        (PACKED / (self.kernels.cols * self.parts.part_k).max(1)).max(1)
    }

    /// Packs such a piece: some rows if they lie along memory, some columns of a part otherwise.
    ///
    /// # Safety
    /// The slab has room; nobody uses this piece of it meanwhile.
    unsafe fn piece(&self, slab: Slab<T::Wide>, g: usize) {
        let panels = slab.n.div_ceil(self.kernels.cols);
        // SAFETY: the caller's promise.
        unsafe {
            if self.b.cs == 1 {
                self.deep(slab, g, |p, within| self.pack(slab, p, within, 0..panels));
            } else {
                let some = self.panels_at_once();
                let groups = panels.div_ceil(some);
                let (p, g) = (g / groups * self.parts.part_k, g % groups);
                let depth = self.parts.part_k.min(slab.k - p);
                self.pack(slab, p, 0..depth, g * some..((g + 1) * some).min(panels));
            }
        }
    }

    /// Piece `g` of those that take [`DEEP`] places of `k` of a slab each, by the parts of it: where the part
    /// begins, and what of it.
    fn deep(&self, slab: Slab<T::Wide>, g: usize, mut f: impl FnMut(usize, Range<usize>)) {
        let (mut at, end) = (g * DEEP, slab.k.min((g + 1) * DEEP));
        while at < end {
            let p = at / self.parts.part_k * self.parts.part_k;
            let to = end.min(p + self.parts.part_k);
            f(p, at - p..to - p);
            at = to;
        }
    }

    /// Packs panels of the right operand into a slab, for some places of a part of its `k`, which begins at
    /// `p`: panel after panel.
    ///
    /// # Safety
    /// The slab has room; nobody uses this piece of it meanwhile.
    unsafe fn pack(&self, slab: Slab<T::Wide>, p: usize, within: Range<usize>, panels: Range<usize>) {
        let width = self.kernels.cols;
        let padded = slab.n.next_multiple_of(width);
        // Of columns that are read where they are, only those that fill no panel are packed.
        let start = if self.right_in_place() { panels.end.min(slab.n / width) } else { panels.start };
        let from = start * width;
        let columns = (panels.end * width).min(slab.n) - from;
        let depth = self.parts.part_k.min(slab.k - p);
        let first = slab.p + p + within.start;
        let (x, k) = (self.right(first, slab.j + from).transposed(), self.elements(first, within.len()));
        let to = slab.right.get().wrapping_add(p * padded + from * depth + within.start * width);
        // SAFETY: columns of the right operand; the panels' room in the slab. Packing spills into the
        // following panels only if its groups are no multiple of a vector, which two vectors are.
        unsafe { (self.kernels.fast.pack)(x, columns, k, width, depth, to) };
    }

    /// A block of the output: some rows, and some columns of the slab. `right` and `left` are what is read
    /// next, of either operand.
    ///
    /// # Safety
    /// The slab is packed; `own` is a thread's workspace; nobody else uses this block meanwhile.
    unsafe fn block(
        &self,
        slab: Slab<T::Wide>,
        rows: Range<usize>,
        cols: Range<usize>,
        own: &mut [T::Wide],
        mut right: Ahead,
        left: Ahead,
    ) {
        let (height, width) = (self.kernels.rows, self.kernels.cols);
        let padded = slab.n.next_multiple_of(width);
        let (packed, sums) = own.split_at_mut(self.parts.left);
        let (left_in_place, right_in_place) = (self.left_in_place(), self.right_in_place());
        let direct = same::<O, T::Wide>();
        // Where sums wait for the rest of `k`: element (0, 0) of this block's rows, all columns of the slab.
        let wait = if direct {
            let c = self.c.at(rows.start, slab.j);
            MatMut { ptr: c.ptr.cast::<T::Wide>(), rs: c.rs }
        } else if slab.waiting.get().is_null() {
            MatMut { ptr: sums.as_mut_ptr(), rs: self.parts.cols as isize }
        } else {
            let ptr = slab.waiting.get().wrapping_add((rows.start - slab.i) * self.parts.cols);
            MatMut { ptr, rs: self.parts.cols as isize }
        };
        let part_k = self.parts.part_k;
        let tiles = cols.len().div_ceil(width) * rows.len().div_ceil(TOGETHER * height);
        let rights = right.len().div_ceil(tiles * slab.k.div_ceil(part_k.max(1)).max(1));
        let mut buffer = MaybeUninit::<[T::Wide; TOGETHER * MAX_ROWS * MAX_COLS]>::uninit();
        let mut p = 0;
        loop {
            let depth = part_k.min(slab.k - p);
            let (first, last) = (slab.p + p == 0, slab.p + p + depth == self.parts.k);
            let x = self.left(rows.start, slab.p + p);
            if !left_in_place {
                let (k, to) = (self.elements(slab.p + p, depth), packed.as_mut_ptr());
                // SAFETY: rows of the left operand, and room for them.
                unsafe { (self.kernels.fast.pack)(x, rows.len(), k, height, depth, to) };
            }
            let further = slab.k - p - depth;
            let mut ahead = match further {
                0 => left,
                _ => {
                    let from = slab.p + p + depth;
                    let k = self.elements(from, part_k.min(further));
                    Ahead::matrix(self.left(rows.start, from), rows.len(), k)
                }
            };
            let lefts = ahead.len().div_ceil(tiles);
            let mut turn = false;
            for j in cols.clone().step_by(width) {
                let n = width.min(cols.end - j);
                for i in (0..rows.len()).step_by(TOGETHER * height) {
                    let m = (TOGETHER * height).min(rows.len() - i);
                    let c = self.c.at(rows.start + i, slab.j + j);
                    let waiting = wait.at(i, j);
                    let out = !direct && last;
                    let to = if out {
                        MatMut { ptr: buffer.as_mut_ptr().cast(), rs: width as isize }
                    } else {
                        waiting
                    };
                    let none = MatMut { ptr: null_mut(), rs: 0 };
                    let start = match self.start {
                        _ if !first => waiting,
                        Start::Zero => none,
                        Start::Bias(v) => MatMut { ptr: v.at(0, slab.j + j).ptr.cast_mut(), rs: 0 },
                        Start::Output if direct => waiting,
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
                        let rs = x.rs / self.kernels.fast.taken as isize;
                        (x.at(i, 0).ptr.cast(), rs, 1, height as isize * rs)
                    } else {
                        (panel, 1, height as isize, (height * depth) as isize)
                    };
                    turn = !turn;
                    let soon = match (turn, right.len()) {
                        (_, 0) => ahead.take(lefts, m / height, depth),
                        (true, _) => right.take(2 * rights, m / height, depth),
                        (false, _) => ahead.take(2 * lefts, m / height, depth),
                    };
                    let panel = slab.right.get().wrapping_add(p * padded + j * depth).cast_const();
                    let (b, brs) = if right_in_place && n == width {
                        (self.right(slab.p + p, slab.j + j).ptr.cast(), self.b.rs)
                    } else {
                        (panel, width as isize)
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
                        soon,
                    };
                    if out {
                        // By the time the sums are rounded, the lines they go to are near.
                        let size = size_of::<O>();
                        claim(c.ptr.cast(), m, c.rs * size as isize, (n - 1) * size);
                    }
                    // SAFETY: panels, packed or as they lie, and elements of the output or of the sums that
                    // wait for them.
                    unsafe { (self.kernels.fast.tile)(&tile) };
                    if out {
                        // SAFETY: rows of the buffer and of the output.
                        (0..m).for_each(|i| unsafe { (self.narrow)(to.at(i, 0).ptr, n, c.at(i, 0).ptr) });
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
