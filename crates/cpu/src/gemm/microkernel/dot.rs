//! Dot products of a few rows by a few others, along memory: no packing.
#![allow(clippy::needless_range_loop)]

use crate::element::Float;
use crate::simd::Convert;

/// Dot products of `rows` by `cols` rows (at most [`DOT_ROWS`] by [`DOT_COLS`]) of `k` neighbouring elements:
/// `a[i·ars ..]` and `b[j·brs ..]`, to `out[i · DOT_COLS + j]`. Each is summed in `N` parts, by position
/// modulo `N`.
///
/// # Safety
/// These elements may be read.
#[inline(always)]
pub(in crate::gemm) unsafe fn dot<L: Convert<T>, T: Float<Wide = L::E>>(
    d: &DotTile<T>,
    out: &mut [L::E; DOT_ROWS * DOT_COLS],
) {
    macro_rules! sizes {
        ($($r:literal $c:literal),*) => {
            match (d.rows, d.cols) {
                // SAFETY: the caller's promise.
                $(($r, $c) => unsafe { dots::<L, T, $r, $c>(d, out) },)*
                _ => unreachable!("at most {DOT_ROWS} × {DOT_COLS} dot products at a time"),
            }
        };
    }
    sizes!(1 1, 1 2, 1 3, 1 4, 2 1, 2 2, 2 3, 2 4, 3 1, 3 2, 3 3, 3 4);
}

pub(in crate::gemm) const DOT_ROWS: usize = 3;
pub(in crate::gemm) const DOT_COLS: usize = 4;

/// See [`dot`].
#[derive(Clone, Copy)]
pub(in crate::gemm) struct DotTile<T> {
    pub rows: usize,
    pub cols: usize,
    pub k: usize,
    pub a: *const T,
    pub ars: isize,
    pub b: *const T,
    pub brs: isize,
}

/// # Safety
/// As [`dot`], with `d.rows == R` and `d.cols == C`.
#[inline(always)]
unsafe fn dots<L: Convert<T>, T: Float<Wide = L::E>, const R: usize, const C: usize>(
    d: &DotTile<T>,
    out: &mut [L::E; DOT_ROWS * DOT_COLS],
) {
    let mut sums = [[L::zero(); C]; R];
    let mut p = 0;
    while p + L::N <= d.k {
        // Fewer rows than columns: so all operands and sums have registers.
        let mut left = [L::zero(); R];
        for i in 0..R {
            // SAFETY: `N` elements of a row.
            left[i] = unsafe { L::load_widen(d.a.offset(i as isize * d.ars).add(p)) };
        }
        for j in 0..C {
            // SAFETY: as above.
            let right = unsafe { L::load_widen(d.b.offset(j as isize * d.brs).add(p)) };
            for i in 0..R {
                sums[i][j] = sums[i][j].fma(left[i], right);
            }
        }
        p += L::N;
    }
    for i in 0..R {
        for j in 0..C {
            let mut sum = sums[i][j].reduce_sum();
            for p in p..d.k {
                // SAFETY: the rest of each row.
                let (x, y) = unsafe {
                    (*d.a.offset(i as isize * d.ars).add(p), *d.b.offset(j as isize * d.brs).add(p))
                };
                sum += x.widen() * y.widen();
            }
            out[i * DOT_COLS + j] = sum;
        }
    }
}
