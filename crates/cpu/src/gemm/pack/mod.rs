//! Packing of operands, as in Goto and van de Geijn, *Anatomy of High-Performance Matrix Multiplication*
//! (2008). Rows of the left operand go into micro-panels of MR rows, columns of the right one into
//! micro-panels of NR. In a micro-panel the elements of one step along `k` follow each other, so that the
//! microkernel reads memory in order. For matrix units the left operand's rows do ([`pack_along`]). Elements
//! of f16 are widened to f32; those of bf16 are either widened or interleaved in VNNI-2 groups
//! ([`Pack::K_GROUP`]).
#![allow(clippy::needless_range_loop)]

mod filters;
mod interleave;

pub(super) use filters::pack_filters;
pub(crate) use filters::scratch as filters_scratch;
pub(super) use interleave::{interleave, widen};

use crate::element::{Float, Wide};
use crate::matrix::Mat;
use crate::prefetch::prefetch_l1;
use crate::simd::MAX_LANES;
use crate::simd::pack::Pack;
use std::ops::Range;

/// Packs the rows of a matrix into micro-panels of `width` rows (MR or NR), k-group after k-group. Rows
/// missing in the last one are zeros. The stride of micro-panels is `pitch · width` elements: `pitch` exceeds
/// the k-groups of `k` if further columns are packed by another call. `width` is a multiple of a vector or
/// less than one; `out` can hold whole micro-panels and [`MAX_LANES`] elements more.
///
/// # Safety
/// The `rows × k` elements of `x` may be read, whole micro-panels of `out` be
/// written; they do not overlap.
#[inline(always)]
pub(super) unsafe fn pack<L: Pack<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k: usize,
    width: usize,
    pitch: usize,
    out: *mut L::E,
) {
    let full = rows / width * width;
    // k-groups that are filled by elements of the matrix, and all.
    let (whole, k_groups) = (k / L::K_GROUP, k.div_ceil(L::K_GROUP));
    // SAFETY: the caller's promise, for whole vectors and for the tail.
    unsafe {
        // k-groups that are packed by vectors, of whole micro-panels and of the last one.
        let done = match (x.rs, x.cs) {
            (1, _) => {
                pack_rows::<L, T>(x, rows, whole, width, pitch, out);
                [whole, 0]
            }
            (_, 1) => {
                // A vector for very few k-groups is slower than one k-group after the other.
                let left = whole % L::N;
                let vectors = if 4 * left > L::N { whole } else { whole - left };
                pack_columns::<L, T>(x, rows, vectors, width, pitch, out);
                [vectors; 2]
            }
            _ => [0; 2],
        };
        pack_any::<L, T>(x, 0..full, done[0]..k_groups, k, width, pitch, out);
        if full < rows {
            let (panel, rest) = (out.wrapping_add(full * pitch), rows - full);
            for p in done[1]..k_groups {
                for i in rest..width {
                    *panel.add(p * width + i) = L::E::ZERO;
                }
            }
            pack_any::<L, T>(x, full..rows, done[1]..k_groups, k, width, pitch, out);
        }
    }
}

/// Packs the rows of a matrix into micro-panels of `height` rows, the `pitch` k-groups of a row after those
/// of the one before: rows of a matrix unit's tile. Rows and k-groups that are missing stay as they are.
///
/// # Safety
/// As [`pack`].
#[inline(always)]
pub(super) unsafe fn pack_along<L: Pack<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k: usize,
    height: usize,
    pitch: usize,
    out: *mut L::E,
) {
    for i in (0..rows).step_by(height) {
        let (x, out) = (x.at(i, 0).transposed(), out.wrapping_add(i * pitch));
        // SAFETY: some of the rows, and their micro-panel.
        unsafe { interleave::<L, T>(x, k, height.min(rows - i), out, pitch) };
    }
}

/// Packs some rows and k-groups, one at a time.
///
/// # Safety
/// As [`pack`], for these elements.
#[inline(always)]
unsafe fn pack_any<L: Pack<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: Range<usize>,
    k_groups: Range<usize>,
    k: usize,
    width: usize,
    pitch: usize,
    out: *mut L::E,
) {
    for i in rows {
        let row = i % width;
        let panel = out.wrapping_add((i - row) * pitch + row);
        for p in k_groups.start..k_groups.end {
            // SAFETY: elements of the matrix and their k-group.
            unsafe { *panel.add(p * width) = L::single(x, i, p, k) };
        }
    }
}

/// Packs whole micro-panels of rows that are contiguous in memory, a vector at a time.
///
/// # Safety
/// As [`pack`], for the first `k_groups` of `k`.
#[inline(always)]
unsafe fn pack_rows<L: Pack<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k_groups: usize,
    width: usize,
    pitch: usize,
    out: *mut L::E,
) {
    // So many k-groups of so many rows at a time: few streams are read and written at once.
    const STEPS: usize = 8;
    const STRIP: usize = 192;
    const LINE: usize = 64;
    let strip = STRIP.max(width) / width * width;
    let whole = rows / width * width;
    for start in (0..whole).step_by(strip) {
        let rows_end = whole.min(start + strip);
        for first in (0..k_groups).step_by(STEPS) {
            let end = k_groups.min(first + STEPS);
            // The next columns are prefetched while these are written.
            for p in end * L::K_GROUP..k_groups.min(end + STEPS) * L::K_GROUP {
                for i in (start..rows_end).step_by(LINE / size_of::<T>()) {
                    prefetch_l1(x.at(i, p).ptr.cast());
                }
            }
            for i in (start..rows_end).step_by(width) {
                let mut to = out.wrapping_add(i * pitch + first * width);
                let mut from = x.at(i, first * L::K_GROUP);
                if width.is_multiple_of(L::N) {
                    for _ in first..end {
                        for j in (0..width).step_by(L::N) {
                            // SAFETY: rows of this k-group, and where they go.
                            unsafe { L::rows(from, j, 0).store(to.add(j)) };
                        }
                        (from, to) = (from.at(0, L::K_GROUP), to.wrapping_add(width));
                    }
                    continue;
                }
                // The vector's lanes that are no rows of this panel are rows of the next one. They spill into
                // the next k-group of this panel, which is written later. The last k-group must not spill.
                let within = i + L::N <= rows;
                let spills = if within { end.min(k_groups - 1) } else { first };
                for _ in first..spills {
                    // SAFETY: as above.
                    unsafe { L::rows(from, 0, 0).store(to) };
                    (from, to) = (from.at(0, L::K_GROUP), to.wrapping_add(width));
                }
                // Nothing after the last row is read: a vector ends with it, and a matrix of fewer rows is
                // read one by one.
                let before = L::N - width;
                for _ in spills..end {
                    // SAFETY: as above.
                    unsafe {
                        if within {
                            L::rows(from, 0, 0).store_partial(to, width);
                        } else if i >= before {
                            L::rows(from.moved(-(before as isize)), 0, 0)
                                .last(width)
                                .store_partial(to, width);
                        } else {
                            for j in 0..width {
                                *to.add(j) = L::single(from, j, 0, L::K_GROUP);
                            }
                        }
                    }
                    (from, to) = (from.at(0, L::K_GROUP), to.wrapping_add(width));
                }
            }
        }
    }
}

/// Packs micro-panels of rows whose columns are contiguous in memory: squares of k-groups are transposed.
///
/// # Safety
/// As [`pack`], for the first `k_groups` of `k`.
#[inline(always)]
unsafe fn pack_columns<L: Pack<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k_groups: usize,
    width: usize,
    pitch: usize,
    out: *mut L::E,
) {
    let whole = k_groups / L::N * L::N;
    let mut i = 0;
    while i < rows {
        let here = width.min(rows - i);
        let mut row = 0;
        while row < width {
            // A panel of fewer rows than lanes repeats its last one or has zeros, and one that is not whole
            // has zeros. Its stores spill into the next k-group, or the next panel, which are written later,
            // or the padding at the end.
            let (last, some) = (width - row - 1, L::N.min(here.saturating_sub(row)));
            let to = out.wrapping_add(i * pitch + row);
            let mut p = 0;
            while p < whole {
                let mut square = [L::zero(); MAX_LANES];
                if here == width {
                    for j in 0..L::N {
                        // SAFETY: `N` k-groups of a row.
                        square[j] = unsafe { L::k_groups(x, i + row + j.min(last), p) };
                    }
                } else {
                    for j in 0..some {
                        // SAFETY: as above.
                        square[j] = unsafe { L::k_groups(x, i + row + j, p) };
                    }
                }
                L::transpose(&mut square);
                for q in 0..L::N {
                    // SAFETY: a k-group of the panel, or the spill.
                    unsafe { square[q].store(to.wrapping_add((p + q) * width)) };
                }
                p += L::N;
            }
            if whole < k_groups {
                let mut square = [L::zero(); MAX_LANES];
                for j in 0..some {
                    // SAFETY: the k-groups that are left.
                    square[j] = unsafe { L::k_groups_partial(x, i + row + j, whole, k_groups - whole) };
                }
                L::transpose(&mut square);
                for q in 0..k_groups - whole {
                    // SAFETY: as above.
                    unsafe { square[q].store(to.wrapping_add((whole + q) * width)) };
                }
            }
            row += L::N;
        }
        i += width;
    }
}
