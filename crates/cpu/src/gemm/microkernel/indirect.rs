//! The microkernel of indirect GEMM (Dukhan, *The Indirect Convolution Algorithm*, 2019). Rows of the left
//! operand start anywhere, and the sum goes over runs of contiguous elements, the same for all rows. A
//! convolution multiplies an image in place with it.

use super::tile::MAX_ROWS;
use crate::simd::{K_UNROLL, Simd};

/// A register tile of the output: `c = a · b`, summed run after run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndirectTile<'a, E> {
    /// At least one, at most MR.
    pub rows: &'a [IndirectRow],
    /// Left: address of a row whose `offset` is 0, aligned or not, and bytes of one step of `offset`.
    pub a: *const E,
    pub step: usize,
    /// The reduction: index `p < inner` of a run pairs the row's element `left + p` with row
    /// `right · pitch + p` of the right operand.
    pub runs: &'a [IndirectRun],
    pub inner: usize,
    pub pitch: usize,
    /// Right: rows of NR elements.
    pub b: *const E,
    /// Columns of the result, at most NR: whole vectors are computed.
    pub cols: usize,
    /// Output: the row at position `i` at `i · crs`, of the columns' vectors.
    pub c: *mut E,
    pub crs: usize,
    /// Adds to the output instead of writing it.
    pub add: bool,
}

/// A row of an [`IndirectTile`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndirectRow {
    /// First element of the row in the left operand, in steps of [`IndirectTile::step`].
    pub offset: usize,
    /// Row of the output.
    pub position: usize,
}

/// See [`IndirectTile::runs`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndirectRun {
    pub left: isize,
    pub right: usize,
}

/// Computes a tile.
///
/// # Safety
/// All elements named by it may be read or written; the outputs overlap nothing else.
#[inline(always)]
pub(super) unsafe fn indirect<L: Simd>(w: &IndirectTile<L::E>) {
    macro_rules! rows {
        ($($r:literal)*) => {
            match w.rows.len() {
                // SAFETY: the caller's promise.
                $($r if $r <= L::MR && w.cols <= L::N => unsafe { rows::<L, $r, 1>(w) },)*
                // SAFETY: as above.
                $($r if $r <= L::MR => unsafe { rows::<L, $r, 2>(w) },)*
                _ => unreachable!("tiles have 1 to {} rows", L::MR),
            }
        };
    }
    const { assert!(MAX_ROWS == 12) };
    rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// # Safety
/// As [`indirect`], with `R` rows and `C` vectors of columns.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn rows<L: Simd, const R: usize, const C: usize>(w: &IndirectTile<L::E>) {
    let places = &w.rows[..R];
    let mut a = [w.a; R];
    for i in 0..R {
        a[i] = w.a.wrapping_byte_add(places[i].offset * w.step);
    }
    let mut sums = [[L::zero(); C]; R];
    macro_rules! one {
        ($at:expr, $b:expr) => {
            // SAFETY: a row of `b`, and an element of each row of `a`.
            unsafe {
                // By index: what the compiler is sure to unroll, and so to keep in registers.
                let mut right = [L::zero(); C];
                for j in 0..C {
                    right[j] = L::load($b.add(j * L::N));
                }
                for i in 0..R {
                    let left = L::splat(a[i].offset($at).read_unaligned());
                    for j in 0..C {
                        sums[i][j] = sums[i][j].fma(left, right[j]);
                    }
                }
            }
        };
    }
    let width = 2 * L::N;
    for run in w.runs {
        let (mut at, mut b) = (run.left, w.b.wrapping_add(run.right * w.pitch * width));
        // Four at a time: fewer instructions besides the multiplications.
        for _ in 0..w.inner / K_UNROLL {
            const { assert!(K_UNROLL == 4) };
            if L::FMA_BY_LANE {
                let mut left = a;
                for i in 0..R {
                    left[i] = a[i].wrapping_offset(at);
                }
                // SAFETY: rows of `b`, and contiguous elements of each row of `a`.
                unsafe { L::fma_unrolled(&mut sums, left, b, width as isize) };
            } else {
                one!(at, b);
                one!(at + 1, b.wrapping_add(width));
                one!(at + 2, b.wrapping_add(2 * width));
                one!(at + 3, b.wrapping_add(3 * width));
            }
            (at, b) = (at + 4, b.wrapping_add(4 * width));
        }
        for _ in 0..w.inner % 4 {
            one!(at, b);
            (at, b) = (at + 1, b.wrapping_add(width));
        }
    }
    for i in 0..R {
        let c = w.c.wrapping_add(places[i].position * w.crs);
        for j in 0..C {
            let c = c.wrapping_add(j * L::N);
            // SAFETY: a vector of an output's row.
            unsafe {
                let old = if w.add { L::load(c) } else { L::zero() };
                old.add(sums[i][j]).store(c);
            }
        }
    }
}
