//! Products of blocks, and their operands packed.

use super::FourMut;
use crate::element::same;
use crate::gemm::{Microkernels, Operand, PanelKernels, Tile};
use crate::matrix::{Mat, MatMut};
use crate::prefetch::{Prefetch, TilePrefetch};
use std::ops::Range;

/// Elements of a right operand `[k, n]` packed into panels.
pub(super) fn packed<T: Operand>(kernels: &Microkernels<T>, k: usize, n: usize) -> usize {
    n.next_multiple_of(kernels.nr) * k + crate::simd::MAX_LANES
}

/// Rows that blocks of queries are multiples of: those of a register tile, or of some.
pub(super) fn tile_rows<T: Operand>(kernels: &Microkernels<T>) -> usize {
    const TILES: usize = 12;
    TILES.max(kernels.mr)
}

/// Packs a right operand `[k, n]` as `panels` expect it.
///
/// # Safety
/// As [`PanelKernels::pack`]: its elements may be read.
pub(super) unsafe fn pack<T: Operand>(
    panels: &PanelKernels<T>,
    x: Mat<T>,
    k: usize,
    n: usize,
    out: &mut [T::Wide],
) {
    let (cols, pitch) = (2 * panels.lanes, k.div_ceil(panels.k_group));
    debug_assert!(n.next_multiple_of(cols) * pitch + crate::simd::MAX_LANES <= out.len());
    // SAFETY: the caller's promise; the buffer was sized for it.
    unsafe { (panels.pack)(x.transposed(), n, k, cols, pitch, out.as_mut_ptr()) }
}

/// The first `rows` rows of a left operand of `k` columns as `panels` expect it, copied if need be.
///
/// # Safety
/// Its elements may be read.
pub(super) unsafe fn left<T: Operand>(
    panels: &PanelKernels<T>,
    x: Mat<T>,
    rows: usize,
    k: usize,
    out: &mut [T::Wide],
) -> Mat<T::Wide> {
    if copies::<T>() {
        // Row by row is column by column of the transposed. SAFETY: the caller's promise; the buffer is as
        // large.
        unsafe {
            (panels.interleave)(
                x.transposed(),
                k,
                rows,
                out[..rows * k].as_mut_ptr(),
                k.div_ceil(panels.k_group),
            )
        };
        Mat { ptr: out.as_ptr(), rs: k.div_ceil(panels.k_group) as isize, cs: 1 }
    } else {
        Mat { ptr: x.ptr.cast(), rs: x.rs, cs: x.cs }
    }
}

/// True if left operands are copied first.
pub(super) fn copies<T: Operand>() -> bool {
    !same::<T, T::Wide>()
}

/// Elements [`left`] needs.
pub(super) fn copied<T: Operand>(rows: usize, k: usize) -> usize {
    if copies::<T>() { rows * k } else { 0 }
}

/// The place where rows of a result are summed, from one on. It is in the result, or in memory that is
/// rounded to it later, in rows of `n`.
pub(super) fn sums<T: Operand>(
    result: &FourMut<T>,
    [sample, head, row]: [usize; 3],
    own: &mut [T::Wide],
    n: usize,
) -> MatMut<T::Wide> {
    if copies::<T>() {
        MatMut { ptr: own.as_mut_ptr(), rs: n as isize }
    } else {
        MatMut { ptr: result.row(sample, head, row).cast(), rs: result.strides[2] }
    }
}

/// Memory that a task reads or writes soon, prefetched while it multiplies: the first, second, … matrix, as
/// long as there are any.
pub(super) struct Upcoming<F> {
    of: F,
    next: usize,
    now: Prefetch,
    quota: usize,
}

impl<F: Fn(usize) -> Option<Prefetch>> Upcoming<F> {
    /// To be prefetched during so many tiles.
    pub fn new(tiles: usize, of: F) -> Self {
        let stretches: usize = (0..).map_while(&of).map(|a| a.len()).sum();
        Upcoming { of, next: 0, now: Prefetch::NONE, quota: stretches.div_ceil(tiles.max(1)) }
    }

    /// The requests of a tile of so many whole blocks, summed over `k`.
    #[inline(always)]
    fn take(&mut self, blocks: usize, k: usize) -> TilePrefetch {
        while self.now.len() == 0 {
            let Some(now) = (self.of)(self.next) else { return TilePrefetch::NONE };
            (self.now, self.next) = (now, self.next + 1);
        }
        self.now.take(self.quota, blocks, k)
    }
}

/// A product of a block: `c [m, n] = a [m, k] · b`, or added to `c`. For the rows `i` and columns `j` of a
/// register tile, only the part `span(i, j)` of the places of `k` is summed. Nothing is done where it is
/// empty.
pub(super) struct Product<'a, T: Operand> {
    pub kernels: &'a Microkernels<T>,
    pub panels: &'a PanelKernels<T>,
    pub m: usize,
    pub n: usize,
    /// Places.
    pub k: usize,
    pub a: Mat<T::Wide>,
    /// Packed panels.
    pub b: &'a [T::Wide],
    pub c: MatMut<T::Wide>,
    pub add: bool,
}

impl<T: Operand> Product<'_, T> {
    /// # Safety
    /// The elements named by `a` may be read, those by `c` written; `b` was packed for `k` and `n`; spans are
    /// in `0..k`.
    #[inline(always)]
    pub unsafe fn run<F: Fn(usize) -> Option<Prefetch>>(
        &self,
        prefetch: &mut Upcoming<F>,
        span: impl Fn(Range<usize>, Range<usize>) -> Range<usize>,
    ) {
        let (rows, cols) = (self.kernels.mr, self.kernels.nr);
        for j in (0..self.n).step_by(cols) {
            let panel = self.b[j * self.k..].as_ptr();
            let n = cols.min(self.n - j);
            let mut i = 0;
            while i < self.m {
                let block = |i: usize| {
                    let m = rows.min(self.m - i);
                    (m, span(i..i + m, j..j + n))
                };
                // Blocks of the same span are merged.
                let (first, (mut m, k)) = (i, block(i));
                i += m;
                while i < self.m {
                    let (more, other) = block(i);
                    if other != k {
                        break;
                    }
                    (m, i) = (m + more, i + more);
                }
                if k.is_empty() {
                    continue;
                }
                let i = first;
                let c = self.c.ptr.wrapping_offset(i as isize * self.c.rs + j as isize);
                let tile = Tile {
                    rows: m,
                    cols: n,
                    k: k.len(),
                    a: self.a.moved(i as isize * self.a.rs + k.start as isize * self.a.cs).ptr,
                    ars: self.a.rs,
                    acs: self.a.cs,
                    blocks: rows as isize * self.a.rs,
                    b: panel.wrapping_add(k.start * cols),
                    brs: cols as isize,
                    start: if self.add { c } else { std::ptr::null() },
                    srs: self.c.rs,
                    c,
                    crs: self.c.rs,
                    prefetch: prefetch.take(m / rows, k.len()),
                };
                // SAFETY: the tile's elements are some of those that the caller vouches for.
                unsafe { (self.panels.tile)(&tile) };
            }
        }
    }
}
