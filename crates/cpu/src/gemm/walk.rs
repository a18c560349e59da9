//! The register tile for a left operand that is no matrix: rows start anywhere, and the sum walks runs of
//! each. A convolution multiplies an image in place with it. And how images get there: channels innermost, or
//! as they lie.

use super::Mat;
use super::lanes::{Converts, Lanes, MAX_LANES, MAX_TAKEN, PLACES, Packs};
use super::tile::MAX_ROWS;
use crate::element::Float;
use std::mem::MaybeUninit;

/// One block of the output: `c = a · b`, summed run after run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk<'a, E> {
    /// At least one, at most `Kernels::rows`.
    pub rows: &'a [Row],
    /// Left: where the row at place 0 begins, aligned or not, and bytes from one place to the next.
    pub a: *const E,
    pub place: usize,
    /// What is summed: at index `p < inner` of a run the row's element `left + p`, and row `right · pitch +
    /// p` of the right.
    pub runs: &'a [Run],
    pub inner: usize,
    pub pitch: usize,
    /// Right: rows of `Kernels::cols` elements.
    pub b: *const E,
    /// Columns wanted, at most `Kernels::cols`: whole vectors are computed.
    pub cols: usize,
    /// Output: the row at position `i` at `i · crs`, of the columns' vectors.
    pub c: *mut E,
    pub crs: usize,
    /// Adds to the output instead of writing it.
    pub add: bool,
}

/// A row of a [`Walk`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub place: usize,
    pub position: usize,
}

/// See [`Walk::runs`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub left: isize,
    pub right: usize,
}

/// Computes a tile.
///
/// # Safety
/// All elements named by it may be read or written; the outputs overlap nothing else.
#[inline(always)]
pub(super) unsafe fn walk<L: Lanes>(w: &Walk<L::E>) {
    macro_rules! rows {
        ($($r:literal)*) => {
            match w.rows.len() {
                // SAFETY: the caller's promise.
                $($r if $r <= L::ROWS && w.cols <= L::N => unsafe { rows::<L, $r, 1>(w) },)*
                // SAFETY: as above.
                $($r if $r <= L::ROWS => unsafe { rows::<L, $r, 2>(w) },)*
                _ => unreachable!("tiles have 1 to {} rows", L::ROWS),
            }
        };
    }
    const { assert!(MAX_ROWS == 12) };
    rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// # Safety
/// As [`walk`], with `R` rows and `C` vectors of columns.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn rows<L: Lanes, const R: usize, const C: usize>(w: &Walk<L::E>) {
    let places = &w.rows[..R];
    let mut a = [w.a; R];
    for i in 0..R {
        a[i] = w.a.wrapping_byte_add(places[i].place * w.place);
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
        for _ in 0..w.inner / PLACES {
            const { assert!(PLACES == 4) };
            if L::BY_LANE {
                let mut left = a;
                for i in 0..R {
                    left[i] = a[i].wrapping_offset(at);
                }
                // SAFETY: rows of `b`, and elements of each row of `a` that are neighbours.
                unsafe { L::inner(&mut sums, left, b, width as isize) };
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

/// Writes a matrix column after column, its rows in places ([`Packs`]): place `i` of column `p` to `out[p ·
/// pitch + i]`.
///
/// # Safety
/// The `rows × k` elements of `x` may be read, their places of `out` be written; they do not overlap.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(super) unsafe fn interleave<L: Packs<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k: usize,
    out: *mut L::E,
    pitch: usize,
) {
    // Places stand for what is summed over, which are the columns of what is packed otherwise.
    let t = x.transposed();
    let (whole, places) = (rows / L::TAKEN, rows.div_ceil(L::TAKEN));
    // SAFETY: elements of the matrix, and their place.
    let single = |i: usize, p: usize| unsafe { *out.add(p * pitch + i) = L::one(t, p, i, rows) };
    let (some, columns) = (whole / L::N * L::N, k / L::N * L::N);
    if x.rs == 1 {
        for p in 0..k {
            for i in (0..some).step_by(L::N) {
                // SAFETY: `N` places that follow each other, and where they go.
                unsafe { L::along(t, p, i).store(out.add(p * pitch + i)) };
            }
            (some..places).for_each(|i| single(i, p));
        }
    } else if x.cs == 1 {
        // `N` columns of a place, for which the caller vouches. Of an odd number of rows the last place has
        // one.
        macro_rules! row {
            ($i:expr, $p:expr) => {
                if $i < whole { L::across(t, $p, $i) } else { L::across_last(t, $p, $i) }
            };
        }
        if places == pitch && places <= 2 {
            for p in (0..columns).step_by(L::N) {
                let to = out.wrapping_add(p * places);
                // SAFETY: `N` columns; their places follow each other.
                unsafe {
                    let first = row!(0, p);
                    if places == 1 {
                        first.store(to);
                    } else {
                        let [low, high] = first.zip(row!(1, p));
                        low.store(to);
                        high.store(to.add(L::N));
                    }
                }
            }
        } else {
            // Some places of column after column: rows of a matrix often lie whole pages apart, where the
            // first-level cache does not hold the beginnings of many. Places that fill no vector come first:
            // what is stored behind them is written later.
            for i in [some].into_iter().filter(|&i| i < places).chain((0..some).step_by(L::N)) {
                let few = L::N.min(places - i);
                for p in (0..columns).step_by(L::N) {
                    let mut square = [L::zero(); MAX_LANES];
                    for j in 0..L::N {
                        // SAFETY: `N` columns.
                        square[j] = unsafe { row!((i + j).min(places - 1), p) };
                    }
                    L::transpose(&mut square);
                    let spills =
                        few == L::N || pitch == places && (p + L::N - 1) * places + i + L::N <= k * places;
                    for q in 0..L::N {
                        let to = out.wrapping_add((p + q) * pitch + i);
                        // SAFETY: places of a column, or of this and the following ones.
                        unsafe { if spills { square[q].store(to) } else { square[q].store_few(to, few) } }
                    }
                }
            }
        }
        // Columns that fill no vector, as the nine elements of a kernel: what is read behind them is the next
        // row, or behind the last ones a copy's end.
        let edge = if x.rs == k as isize && columns < k { some } else { 0 };
        let mut copy = [const { MaybeUninit::<T>::uninit() }; MAX_LANES * MAX_TAKEN * MAX_LANES];
        // Places from which on something is read behind the matrix, and what is copied of them: as it lies,
        // but for what is behind.
        let last = (rows * k).saturating_sub(columns + L::N) / k.max(1) + 1;
        let last = (last / L::TAKEN).min(edge);
        let end = t.at(columns, last * L::TAKEN);
        let copied = edge * L::TAKEN * k - (last * L::TAKEN * k + columns).min(edge * L::TAKEN * k);
        let edge = if copied + L::N <= copy.len() { edge } else { 0 };
        if edge > 0 {
            copy[copied..copied + L::N].fill(MaybeUninit::zeroed());
            // SAFETY: elements of the rows of these places, and room for them.
            unsafe { end.ptr.copy_to_nonoverlapping(copy.as_mut_ptr().cast::<T>(), copied) };
        }
        let end = Mat { ptr: copy.as_ptr().cast::<T>(), ..end };
        for i in (0..edge).step_by(L::N) {
            let mut square = [L::zero(); MAX_LANES];
            for j in 0..L::N {
                // SAFETY: as many elements lie behind the first of each row of a place; all bits are numbers.
                square[j] = unsafe {
                    match i + j < last {
                        true => L::across(t, columns, i + j),
                        false => L::across(end, 0, i + j - last),
                    }
                };
            }
            L::transpose(&mut square);
            for q in 0..k - columns {
                // SAFETY: `N` places of a column.
                unsafe { square[q].store(out.add((columns + q) * pitch + i)) };
            }
        }
        (columns..k).for_each(|p| (edge..places).for_each(|i| single(i, p)));
    } else {
        (0..k).for_each(|p| (0..places).for_each(|i| single(i, p)));
    }
}

/// Widens a matrix row by row: element `p` of row `i` to `out[i · pitch + p]`.
///
/// # Safety
/// The `rows × k` elements of `x` may be read, their places of `out` be written; they do not overlap.
#[inline(always)]
pub(super) unsafe fn widen<L: Converts<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k: usize,
    out: *mut L::E,
    pitch: usize,
) {
    let whole = if x.cs == 1 { k / L::N * L::N } else { 0 };
    for i in 0..rows {
        let out = out.wrapping_add(i * pitch);
        // SAFETY: elements of a row, and their places.
        unsafe {
            for p in (0..whole).step_by(L::N) {
                L::read(x.at(i, p).ptr).store(out.add(p));
            }
            for p in whole..k {
                *out.add(p) = (*x.at(i, p).ptr).widen();
            }
        }
    }
}
