//! The innermost kernels, generic over vectors: a block of the output in registers, packing, and products of few rows by
//! dot products. Everything is inlined into the functions of `tiers`: hence loops by index, for closures would be compiled
//! apart, without the instructions of the tier.
#![allow(clippy::needless_range_loop)]

use super::Mat;
use super::lanes::{Converts, Lanes, MAX_LANES};
use crate::element::{Float, Wide};

/// Most rows and columns of any block held in registers.
pub(crate) const MAX_ROWS: usize = 12;
pub(super) const MAX_COLS: usize = 2 * MAX_LANES;

/// One block of the output: `c = start + a · b`, summed over `k` in order.
#[derive(Clone, Copy)]
pub(crate) struct Tile<E> {
    /// Rows, at most `Lanes::ROWS`; columns, at most two vectors.
    pub rows: usize,
    pub cols: usize,
    pub k: usize,
    /// Left: element `(i, p)` at `i·ars + p·acs`.
    pub a: *const E,
    pub ars: isize,
    pub acs: isize,
    /// Right: row `p` of two whole vectors at `p·brs`, whatever `cols` is.
    pub b: *const E,
    pub brs: isize,
    /// Row `i` of what is added at `i·srs`; null for zeros. May be `c`.
    pub start: *const E,
    pub srs: isize,
    /// Output: row `i` at `i·crs`.
    pub c: *mut E,
    pub crs: isize,
}

/// Computes a tile.
///
/// # Safety
/// All elements named by it may be read or written; `c` overlaps nothing else but `start`, at the same elements.
#[inline(always)]
pub(super) unsafe fn tile<L: Lanes>(t: &Tile<L::E>) {
    // Packed panels have constant strides, which saves the additions of addresses.
    let packed = t.ars == 1 && t.acs == L::ROWS as isize;
    macro_rules! rows {
        ($($r:literal)*) => {
            match t.rows {
                $(
                    // SAFETY: the caller's promise.
                    $r if $r <= L::ROWS && packed && $r == L::ROWS => unsafe { rows::<L, $r, true>(t) },
                    // SAFETY: as above.
                    $r if $r <= L::ROWS => unsafe { rows::<L, $r, false>(t) },
                )*
                _ => unreachable!("tiles have 1 to {} rows", L::ROWS),
            }
        };
    }
    rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// # Safety
/// As [`tile`], with `t.rows == R`.
#[inline(always)]
unsafe fn rows<L: Lanes, const R: usize, const PACKED: bool>(t: &Tile<L::E>) {
    let (ars, acs) = if PACKED { (1, L::ROWS as isize) } else { (t.ars, t.acs) };
    let mut sums = [[L::zero(); 2]; R];
    let mut b = t.b;
    // Rows in threes: addresses reach a base plus one or two strides. Told what the bases have in common, the compiler
    // would add stride by stride, each addition waiting for the one before.
    let mut a = [t.a; THREES];
    for i in 1..R.div_ceil(3) {
        a[i] = t.a.wrapping_offset(3 * i as isize * ars);
        if !PACKED {
            a[i] = std::hint::black_box(a[i]);
        }
    }
    // By the time the sums are ready, so are the lines they go to.
    for i in 0..R {
        let c = t.c.wrapping_offset(i as isize * t.crs);
        L::prefetch(c);
        L::prefetch(c.wrapping_add(2 * L::N - 1));
    }
    for _ in 0..t.k {
        // SAFETY: row `p` of `b` and column `p` of `a` are the tile's.
        let right = unsafe { [L::load(b), L::load(b.add(L::N))] };
        for i in 0..R {
            // SAFETY: as above.
            let left = L::splat(unsafe { *a[i / 3].offset((i % 3) as isize * ars) });
            sums[i] = [sums[i][0].fma(left, right[0]), sums[i][1].fma(left, right[1])];
        }
        for i in 0..R.div_ceil(3) {
            a[i] = a[i].wrapping_offset(acs);
        }
        b = b.wrapping_offset(t.brs);
    }
    let (whole, adds) = (t.cols == 2 * L::N, !t.start.is_null());
    // One loop for each case: the sums then stay in registers.
    // SAFETY: rows of `c` and of `start`, of `cols` elements.
    unsafe {
        if whole && adds {
            for i in 0..R {
                let start = t.start.wrapping_offset(i as isize * t.srs);
                sums[i] = [L::load(start).add(sums[i][0]), L::load(start.add(L::N)).add(sums[i][1])];
            }
        }
        if whole {
            for i in 0..R {
                let c = t.c.wrapping_offset(i as isize * t.crs);
                sums[i][0].store(c);
                sums[i][1].store(c.add(L::N));
            }
            return;
        }
        for i in 0..R {
            let (c, start) =
                (t.c.wrapping_offset(i as isize * t.crs), t.start.wrapping_offset(i as isize * t.srs));
            let mut row = [L::E::ZERO; MAX_COLS];
            sums[i][0].store(row.as_mut_ptr());
            sums[i][1].store(row.as_mut_ptr().add(L::N));
            for j in 0..t.cols {
                *c.add(j) = if adds { *start.add(j) + row[j] } else { row[j] };
            }
        }
    }
}

/// Bases of the addresses of rows, each for three.
const THREES: usize = MAX_ROWS.div_ceil(3);

/// Packs the rows of a matrix, widened, into panels of `group` rows: in a panel, column after column. Rows missing in the
/// last panel are zeros. Panels begin `pitch · group` elements apart: more than `k` if other columns are packed apart from these.
/// A group is of whole vectors or smaller than one; `out` has room for whole panels and [`MAX_LANES`] elements more.
///
/// # Safety
/// The `rows × k` elements of `x` may be read, that many of `out` be written; they do not overlap.
#[inline(always)]
pub(super) unsafe fn pack<L: Converts<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k: usize,
    group: usize,
    pitch: usize,
    out: *mut L::E,
) {
    let full = rows / group * group;
    // SAFETY: the caller's promise, for whole panels and for what is left.
    unsafe {
        if x.rs == 1 {
            pack_rows::<L, T>(x, rows, k, group, pitch, out);
        } else if x.cs == 1 {
            pack_columns::<L, T>(x, full, k, group, pitch, out);
        } else {
            pack_any(x, 0, full, 0, k, group, out, pitch);
        }
        if full < rows {
            let (panel, rest) = (out.wrapping_add(full * pitch), rows - full);
            for p in 0..k {
                for i in rest..group {
                    *panel.add(p * group + i) = L::E::ZERO;
                }
            }
            pack_any(x, full, rows, 0, k, group, out, pitch);
        }
    }
}

/// Packs rows `i..end`, columns `p..k`, one element at a time; panels are `depth` columns deep.
///
/// # Safety
/// As [`pack`], for these elements.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn pack_any<T: Float>(
    x: Mat<T>,
    mut i: usize,
    end: usize,
    p: usize,
    k: usize,
    group: usize,
    out: *mut T::Wide,
    depth: usize,
) {
    while i < end {
        let row = i % group;
        let panel = out.wrapping_add((i - row) * depth + row);
        for p in p..k {
            // SAFETY: an element of the matrix and its place.
            unsafe { *panel.add(p * group) = (*x.at(i, p).ptr).widen() };
        }
        i += 1;
    }
}

/// Packs whole panels of rows that are neighbours in memory, a vector at a time.
///
/// # Safety
/// As [`pack`].
#[inline(always)]
unsafe fn pack_rows<L: Converts<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k: usize,
    group: usize,
    pitch: usize,
    out: *mut L::E,
) {
    // So many columns of so many rows at a time: few places are read and written at once, each along memory.
    const COLUMNS: usize = 8;
    const STRIP: usize = 192;
    const LINE: usize = 64;
    let strip = STRIP.max(group) / group * group;
    let whole = rows / group * group;
    for start in (0..whole).step_by(strip) {
        let rows_end = whole.min(start + strip);
        for first in (0..k).step_by(COLUMNS) {
            let end = k.min(first + COLUMNS);
            // The next columns, each a stretch of its own, come while these are written.
            for p in end..k.min(end + COLUMNS) {
                for i in (start..rows_end).step_by(LINE / size_of::<T>()) {
                    L::prefetch(x.at(i, p).ptr.cast());
                }
            }
            for i in (start..rows_end).step_by(group) {
                let mut from = x.at(i, first).ptr;
                let mut to = out.wrapping_add(i * pitch + first * group);
                if group.is_multiple_of(L::N) {
                    for _ in first..end {
                        for j in (0..group).step_by(L::N) {
                            // SAFETY: rows of this column, and their places.
                            unsafe { L::read(from.add(j)).store(to.add(j)) };
                        }
                        (from, to) = (from.wrapping_offset(x.cs), to.wrapping_add(group));
                    }
                    continue;
                }
                // The vector's lanes that are no rows of this panel are rows of the next one, and spill into the next
                // column of this panel, which is written later; the last column must not spill.
                let spills = if i + L::N <= rows { end.min(k - 1) } else { first };
                for _ in first..spills {
                    // SAFETY: as above.
                    unsafe { L::read(from).store(to) };
                    (from, to) = (from.wrapping_offset(x.cs), to.wrapping_add(group));
                }
                for _ in spills..end {
                    for j in 0..group {
                        // SAFETY: as above.
                        unsafe { *to.add(j) = (*from.add(j)).widen() };
                    }
                    (from, to) = (from.wrapping_offset(x.cs), to.wrapping_add(group));
                }
            }
        }
    }
}

/// Packs whole panels of rows whose columns are neighbours in memory: squares are transposed.
///
/// # Safety
/// As [`pack`]; `rows` are whole panels.
#[inline(always)]
unsafe fn pack_columns<L: Converts<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k: usize,
    group: usize,
    pitch: usize,
    out: *mut L::E,
) {
    let whole = k / L::N * L::N;
    let mut i = 0;
    while i < rows {
        let mut row = 0;
        while row < group {
            // A panel of fewer rows than lanes repeats its last one; what is stored of it spills into the next column, or
            // the next panel, which are written later, or the room at the end.
            let last = group - row - 1;
            let mut p = 0;
            while p < whole {
                let mut square = [L::zero(); MAX_LANES];
                for j in 0..L::N {
                    // SAFETY: `N` elements of a row.
                    square[j] = unsafe { L::read(x.at(i + row + j.min(last), p).ptr) };
                }
                L::transpose(&mut square);
                let to = out.wrapping_add(i * pitch + p * group + row);
                for q in 0..L::N {
                    // SAFETY: a column of the panel, or the spill.
                    unsafe { square[q].store(to.wrapping_add(q * group)) };
                }
                p += L::N;
            }
            row += L::N;
        }
        // SAFETY: the columns left.
        unsafe { pack_any(x, i, i + group, whole, k, group, out, pitch) };
        i += group;
    }
}

/// Writes `n` numbers, rounded to the type of the output.
///
/// # Safety
/// They may be read and written, and do not overlap.
#[inline(always)]
pub(super) unsafe fn narrow<L: Converts<T>, T: Float<Wide = L::E>>(from: *const L::E, n: usize, to: *mut T) {
    let mut i = 0;
    while i + L::N <= n {
        // SAFETY: `N` of the `n` numbers.
        unsafe { L::load(from.add(i)).write(to.add(i)) };
        i += L::N;
    }
    for i in i..n {
        // SAFETY: the others.
        unsafe { *to.add(i) = T::narrow(*from.add(i)) };
    }
}

/// Dot products of `rows` by `cols` rows (at most [`DOT_ROWS`] by [`DOT_COLS`]) of `k` neighbouring elements: `a[i·ars ..]`
/// and `b[j·brs ..]`, to `out[i · DOT_COLS + j]`. Each is summed in `N` parts, by position modulo `N`.
///
/// # Safety
/// These elements may be read.
#[inline(always)]
pub(super) unsafe fn dot<L: Converts<T>, T: Float<Wide = L::E>>(
    d: &Dot<T>,
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

pub(super) const DOT_ROWS: usize = 3;
pub(super) const DOT_COLS: usize = 4;

/// See [`dot`].
#[derive(Clone, Copy)]
pub(super) struct Dot<T> {
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
unsafe fn dots<L: Converts<T>, T: Float<Wide = L::E>, const R: usize, const C: usize>(
    d: &Dot<T>,
    out: &mut [L::E; DOT_ROWS * DOT_COLS],
) {
    let mut sums = [[L::zero(); C]; R];
    let mut p = 0;
    while p + L::N <= d.k {
        let mut right = [L::zero(); C];
        for j in 0..C {
            // SAFETY: `N` elements of a row.
            right[j] = unsafe { L::read(d.b.offset(j as isize * d.brs).add(p)) };
        }
        for i in 0..R {
            // SAFETY: as above.
            let left = unsafe { L::read(d.a.offset(i as isize * d.ars).add(p)) };
            for j in 0..C {
                sums[i][j] = sums[i][j].fma(left, right[j]);
            }
        }
        p += L::N;
    }
    for i in 0..R {
        for j in 0..C {
            let mut sum = sums[i][j].sum();
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
