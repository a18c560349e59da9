//! Results transposed on their way out, as where sums lie position by position and results channel by
//! channel.
#![allow(clippy::needless_range_loop)]

use super::lanes::{Converts, Lanes, MAX_LANES};
use super::{Mat, same, walk};
use crate::element::Float;

/// Writes a matrix column after column, rounded: element `i` of column `j` to `out[j · pitch + i]`. The
/// columns of a row are neighbours.
///
/// Numbers of half the width are rounded first, two rows together in the place of one: so there is half as
/// much to transpose.
///
/// # Safety
/// The `rows × cols` elements of `x` may be read, their places of `out` be written; they do not overlap.
#[inline(always)]
pub(super) unsafe fn turn<L, T: Float<Wide = L::E>>(
    x: Mat<L::E>,
    rows: usize,
    cols: usize,
    out: *mut T,
    pitch: usize,
) where
    L: Converts<T> + Converts<<L as Lanes>::E>,
{
    const { assert!(size_of::<T>() == size_of::<L::E>() || 2 * size_of::<T>() == size_of::<L::E>()) };
    debug_assert_eq!(x.cs, 1);
    // A vector of columns at a time: they often lie whole pages apart.
    for j in (0..cols).step_by(L::N) {
        let few = L::N.min(cols - j);
        if same::<T, L::E>() {
            // SAFETY: the caller's promise; the types are the same.
            unsafe { walk::interleave::<L, L::E>(x.at(0, j), rows, few, out.add(j * pitch).cast(), pitch) };
            continue;
        }
        for i in (0..rows).step_by(2 * L::N) {
            let n = (2 * L::N).min(rows - i);
            // SAFETY: a part of a row.
            let row = |r: usize| unsafe {
                let from = x.at(i + r, j).ptr;
                if few == L::N { L::load(from) } else { L::load_few(from, few) }
            };
            let mut square = [L::zero(); MAX_LANES];
            for p in 0..L::N {
                if 2 * p < n {
                    // An odd row is alone: its pair is not stored.
                    square[p] = <L as Converts<T>>::pair(row(2 * p), row((2 * p + 1).min(n - 1)));
                }
            }
            L::transpose(&mut square);
            for q in 0..few {
                let to = out.wrapping_add((j + q) * pitch + i);
                // SAFETY: as many places of a column, two in a lane.
                unsafe {
                    if n == 2 * L::N {
                        square[q].store(to.cast());
                        continue;
                    }
                    square[q].store_few(to.cast(), n / 2);
                    if n % 2 == 1 {
                        *to.add(n - 1) = T::narrow(*x.at(i + n - 1, j + q).ptr);
                    }
                }
            }
        }
    }
}

/// The bits of two numbers of half the width, the first one's lower, as one of the whole width.
#[inline(always)]
pub(super) fn pair<T: Float>(low: T::Wide, high: T::Wide) -> T::Wide {
    let mut bits = [T::narrow(low), T::narrow(high)];
    if cfg!(target_endian = "big") {
        bits.reverse();
    }
    bytemuck::cast(bits)
}
