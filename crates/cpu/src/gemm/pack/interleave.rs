//! Transposition into k-groups, and widening row by row. A convolution needs the former to turn channel-first
//! images (NCHW) into channel-last ones (NHWC) with bf16 in VNNI-2 groups.

use crate::element::Float;
use crate::matrix::Mat;
use crate::simd::pack::Pack;
use crate::simd::{Convert, MAX_K_GROUP, MAX_LANES};
use std::mem::MaybeUninit;

/// Transposes a matrix whose rows are summed over: k-group `i` of column `p` goes to `out[p · pitch + i]`.
///
/// # Safety
/// The `rows × k` elements of `x` may be read, the k-groups of `out` be written; they do not overlap.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(in crate::gemm) unsafe fn interleave<L: Pack<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k: usize,
    out: *mut L::E,
    pitch: usize,
) {
    if rows == 0 {
        return;
    }
    // The vectors' methods take `k` along columns.
    let t = x.transposed();
    let (whole, k_groups) = (rows / L::K_GROUP, rows.div_ceil(L::K_GROUP));
    // SAFETY: elements of the matrix, and their k-group.
    let single = |i: usize, p: usize| unsafe { *out.add(p * pitch + i) = L::single(t, p, i, rows) };
    let (some, columns) = (whole / L::N * L::N, k / L::N * L::N);
    if x.rs == 1 {
        for p in 0..k {
            for i in (0..some).step_by(L::N) {
                // SAFETY: `N` k-groups that follow each other, and where they go.
                unsafe { L::k_groups(t, p, i).store(out.add(p * pitch + i)) };
            }
            (some..k_groups).for_each(|i| single(i, p));
        }
    } else if x.cs == 1 {
        // `N` columns of a k-group, for which the caller vouches. Of an odd number of rows the last k-group
        // has one.
        macro_rules! row {
            ($i:expr, $p:expr) => {
                if $i < whole { L::rows(t, $p, $i) } else { L::rows_tail(t, $p, $i) }
            };
        }
        if k_groups == pitch && k_groups <= 2 {
            for p in (0..columns).step_by(L::N) {
                let to = out.wrapping_add(p * k_groups);
                // SAFETY: `N` columns; their k-groups follow each other.
                unsafe {
                    let first = row!(0, p);
                    if k_groups == 1 {
                        first.store(to);
                    } else {
                        let [low, high] = first.zip(row!(1, p));
                        low.store(to);
                        high.store(to.add(L::N));
                    }
                }
            }
        } else {
            // Some k-groups of column after column. The stride of a matrix's rows is often a multiple of the
            // page size, and the first-level cache does not hold the beginnings of many. Those that fill no
            // vector come first: what is stored after them is overwritten later.
            for i in [some].into_iter().filter(|&i| i < k_groups).chain((0..some).step_by(L::N)) {
                let few = L::N.min(k_groups - i);
                for p in (0..columns).step_by(L::N) {
                    let mut square = [L::zero(); MAX_LANES];
                    for j in 0..L::N {
                        // SAFETY: `N` columns.
                        square[j] = unsafe { row!((i + j).min(k_groups - 1), p) };
                    }
                    L::transpose(&mut square);
                    let spills = few == L::N
                        || pitch == k_groups && (p + L::N - 1) * k_groups + i + L::N <= k * k_groups;
                    for q in 0..L::N {
                        let to = out.wrapping_add((p + q) * pitch + i);
                        // SAFETY: k-groups of a column, or of this and the following ones.
                        unsafe { if spills { square[q].store(to) } else { square[q].store_partial(to, few) } }
                    }
                }
            }
        }
        // Columns that fill no vector, as the nine elements of a kernel. Reads past them reach the next row,
        // or for the last ones the end of a copy.
        let edge = if x.rs == k as isize && columns < k { some } else { 0 };
        let mut copy = [const { MaybeUninit::<T>::uninit() }; MAX_LANES * MAX_K_GROUP * MAX_LANES];
        // k-groups whose vectors would be read beyond the matrix are read from a copy of it.
        let last = (rows * k).saturating_sub(columns + L::N) / k.max(1) + 1;
        let last = (last / L::K_GROUP).min(edge);
        let end = t.at(columns, last * L::K_GROUP);
        let copied = edge * L::K_GROUP * k - (last * L::K_GROUP * k + columns).min(edge * L::K_GROUP * k);
        let edge = if copied + L::N <= copy.len() { edge } else { 0 };
        if edge > 0 {
            copy[copied..copied + L::N].fill(MaybeUninit::zeroed());
            // SAFETY: elements of the rows of these k-groups, and capacity for them.
            unsafe { end.ptr.copy_to_nonoverlapping(copy.as_mut_ptr().cast::<T>(), copied) };
        }
        let end = Mat { ptr: copy.as_ptr().cast::<T>(), ..end };
        for i in (0..edge).step_by(L::N) {
            let mut square = [L::zero(); MAX_LANES];
            for j in 0..L::N {
                // SAFETY: as many elements follow the first of each row of a k-group; all bits are numbers.
                square[j] = unsafe {
                    match i + j < last {
                        true => L::rows(t, columns, i + j),
                        false => L::rows(end, 0, i + j - last),
                    }
                };
            }
            L::transpose(&mut square);
            for q in 0..k - columns {
                // SAFETY: `N` k-groups of a column.
                unsafe { square[q].store(out.add((columns + q) * pitch + i)) };
            }
        }
        (columns..k).for_each(|p| (edge..k_groups).for_each(|i| single(i, p)));
    } else {
        (0..k).for_each(|p| (0..k_groups).for_each(|i| single(i, p)));
    }
}

/// Widens a matrix row by row: element `p` of row `i` to `out[i · pitch + p]`.
///
/// # Safety
/// The `rows × k` elements of `x` may be read, as many of `out` be written; they do not overlap.
#[inline(always)]
pub(in crate::gemm) unsafe fn widen<L: Convert<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k: usize,
    out: *mut L::E,
    pitch: usize,
) {
    let whole = if x.cs == 1 { k / L::N * L::N } else { 0 };
    for i in 0..rows {
        let out = out.wrapping_add(i * pitch);
        // SAFETY: elements of a row of each.
        unsafe {
            for p in (0..whole).step_by(L::N) {
                L::load_widen(x.at(i, p).ptr).store(out.add(p));
            }
            for p in whole..k {
                *out.add(p) = (*x.at(i, p).ptr).widen();
            }
        }
    }
}
