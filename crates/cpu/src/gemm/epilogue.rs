//! Epilogues: sums in the accumulator type become results. They round, sum partial results, and store those
//! of a convolution transposed: sums are position by position, results channel by channel.
#![allow(clippy::needless_range_loop)]

use super::pack::interleave;
use crate::element::{Float, same};
use crate::matrix::Mat;
use crate::simd::{Convert, MAX_LANES, Simd};

/// Adds up `rows` rows of `n` numbers with stride `pitch`, in order.
///
/// # Safety
/// They may be read, and `n` numbers be written to `to`; these do not overlap.
#[inline(always)]
pub(super) unsafe fn sum_rows<L: Simd>(
    from: *const L::E,
    pitch: usize,
    rows: usize,
    n: usize,
    to: *mut L::E,
) {
    let mut j = 0;
    while j < n {
        let mut sum = L::zero();
        // SAFETY: the caller's promise, for all lanes or those that are left.
        unsafe {
            if j + L::N <= n {
                for row in 0..rows {
                    sum = sum.add(L::load(from.add(row * pitch + j)));
                }
                sum.store(to.add(j));
            } else {
                for row in 0..rows {
                    sum = sum.add(L::load_partial(from.add(row * pitch + j), n - j));
                }
                sum.store_partial(to.add(j), n - j);
            }
        }
        j += L::N;
    }
}

/// Writes `n` numbers, rounded to the type of the output.
///
/// # Safety
/// They may be read and written, and do not overlap.
#[inline(always)]
pub(super) unsafe fn narrow<L: Convert<T>, T: Float<Wide = L::E>>(from: *const L::E, n: usize, to: *mut T) {
    let mut i = 0;
    while i + L::N <= n {
        // SAFETY: `N` of the `n` numbers.
        unsafe { L::load(from.add(i)).store_narrow(to.add(i)) };
        i += L::N;
    }
    for i in i..n {
        // SAFETY: the others.
        unsafe { *to.add(i) = T::narrow(*from.add(i)) };
    }
}

/// Stores a matrix transposed and rounded: element `i` of column `j` to `out[j · pitch + i]`. The columns of
/// a row are contiguous.
///
/// 16-bit results are rounded first and paired, two rows in 32 bits: so there is half as much to transpose.
///
/// # Safety
/// The `rows × cols` elements of `x` may be read, as many of `out` be written; they do not overlap.
#[inline(always)]
pub(super) unsafe fn store_transposed<L, T: Float<Wide = L::E>>(
    x: Mat<L::E>,
    rows: usize,
    cols: usize,
    out: *mut T,
    pitch: usize,
) where
    L: Convert<T> + Convert<<L as Simd>::E>,
{
    const { assert!(size_of::<T>() == size_of::<L::E>() || 2 * size_of::<T>() == size_of::<L::E>()) };
    debug_assert_eq!(x.cs, 1);
    // A vector of columns at a time: the stride of the result's columns is often a multiple of the page size.
    for j in (0..cols).step_by(L::N) {
        let few = L::N.min(cols - j);
        if same::<T, L::E>() {
            // SAFETY: the caller's promise; the types are the same.
            unsafe { interleave::<L, L::E>(x.at(0, j), rows, few, out.add(j * pitch).cast(), pitch) };
            continue;
        }
        for i in (0..rows).step_by(2 * L::N) {
            let n = (2 * L::N).min(rows - i);
            // SAFETY: a part of a row.
            let row = |r: usize| unsafe {
                let from = x.at(i + r, j).ptr;
                if few == L::N { L::load(from) } else { L::load_partial(from, few) }
            };
            let mut square = [L::zero(); MAX_LANES];
            for p in 0..L::N {
                if 2 * p < n {
                    // An odd row is alone: its pair is not stored.
                    square[p] = <L as Convert<T>>::narrow_pair(row(2 * p), row((2 * p + 1).min(n - 1)));
                }
            }
            L::transpose(&mut square);
            for q in 0..few {
                let to = out.wrapping_add((j + q) * pitch + i);
                // SAFETY: as many elements of a column, two in a lane.
                unsafe {
                    if n == 2 * L::N {
                        square[q].store(to.cast());
                        continue;
                    }
                    square[q].store_partial(to.cast(), n / 2);
                    if n % 2 == 1 {
                        *to.add(n - 1) = T::narrow(*x.at(i + n - 1, j + q).ptr);
                    }
                }
            }
        }
    }
}
