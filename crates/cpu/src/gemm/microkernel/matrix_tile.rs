//! The microkernels of products and of indirect GEMM on a matrix unit ([`MatrixUnit`]): 2 × 2 of its tiles
//! are the register tile. Both operands are VNNI-2 groups of bf16. Rows of the left one are contiguous along
//! `k` ([`super::LeftLayout::Along`]), and the right one is packed as for vectors.
//!
//! Tiles are read in place. If they have fewer rows or k-groups, other strides, or rows that begin anywhere,
//! they are copied first, with zeros for what is missing. Sums begin with what they are added to. So a sum
//! has the same bits wherever its tile is.
#![allow(clippy::needless_range_loop)]

use super::indirect::IndirectTile;
use super::tile::Tile;
use crate::prefetch::{TilePrefetch, prefetch_l1};
use crate::simd::matrix_unit::MatrixUnit;
use crate::simd::{K_UNROLL, MAX_LANES, Simd};
use std::mem::MaybeUninit;

/// Words of copied tiles: two left ones, and the adjacent right ones. Aligned to lines of the caches.
#[repr(align(64))]
struct Copied<const N: usize>(MaybeUninit<[f32; N]>);

impl<const N: usize> Copied<N> {
    #[inline(always)]
    fn new() -> Self {
        Copied(MaybeUninit::uninit())
    }

    #[inline(always)]
    fn ptr(&mut self) -> *mut f32 {
        (&raw mut self.0).cast()
    }
}

/// Words of two tiles of any unit.
const TWO: usize = 2 * MAX_LANES * MAX_LANES;

/// Bytes of so many words.
#[inline(always)]
const fn bytes(words: isize) -> isize {
    words * size_of::<f32>() as isize
}

/// Computes a tile of a product. `L` is a vector of as many words as a tile of the unit has in a row.
///
/// # Safety
/// As [`super::tile::tile`]; the processor has the unit.
#[inline(always)]
pub(super) unsafe fn tile<U: MatrixUnit, L: Simd<E = f32>>(t: &Tile<f32>) {
    const { assert!(U::SIDE == L::N) };
    // SAFETY: the caller's promise.
    let mut unit = unsafe { U::ready() };
    let mr = 2 * L::N;
    let mut block = 0;
    while block * mr < t.rows {
        let rows = mr.min(t.rows - block * mr);
        // SAFETY: as above; the block is the tile's.
        unsafe {
            match (rows > L::N, t.cols > L::N) {
                (true, true) => one::<U, L, 2, 2>(&mut unit, t, block, rows),
                (true, false) => one::<U, L, 2, 1>(&mut unit, t, block, rows),
                (false, true) => one::<U, L, 1, 2>(&mut unit, t, block, rows),
                (false, false) => one::<U, L, 1, 1>(&mut unit, t, block, rows),
            }
        }
        block += 1;
    }
}

/// One block of at most two tiles of rows, and `C` tiles of columns.
///
/// # Safety
/// As [`tile`], for this block.
#[inline(always)]
unsafe fn one<U: MatrixUnit, L: Simd<E = f32>, const R: usize, const C: usize>(
    unit: &mut U,
    t: &Tile<f32>,
    block: usize,
    rows: usize,
) {
    let (mut left, mut right) = (Copied::<TWO>::new(), Copied::<TWO>::new());
    let (left, right) = (left.ptr(), right.ptr());
    let at = t.a.wrapping_offset(block as isize * t.blocks);
    let mut soon = Soon::new(&t.prefetch, block, t.b);
    let first = (block * 2 * L::N) as isize;
    let (c, start) = (t.c.wrapping_offset(first * t.crs), t.start.wrapping_offset(first * t.srs));
    let whole = rows == R * L::N && t.cols == C * L::N;
    // Columns of each vector: all, some or none.
    let few = |j: usize| t.cols.saturating_sub(j * L::N).min(L::N);
    let mut sums = Sums::<C>(Copied::new());
    if t.start.is_null() {
        unit.zero();
    } else if whole {
        // SAFETY: whole tiles of what is added.
        unsafe { load::<U, L, R, C>(unit, start, t.srs) };
    } else {
        for i in 0..R * L::N {
            for j in 0..C {
                let from = start.wrapping_offset(i as isize * t.srs).wrapping_add(j * L::N);
                // SAFETY: the columns of a row.
                let x = if i < rows { unsafe { L::load_partial(from, few(j)) } } else { L::zero() };
                sums.set(i, j, x);
            }
        }
        sums.load_to::<U, L, R>(unit);
    }
    let mut p = 0;
    while p < t.k {
        let n = L::N.min(t.k - p);
        let mut a = [(at, 0); 2];
        for i in 0..R {
            let from = at.wrapping_offset((i * L::N) as isize * t.ars + p as isize * t.acs);
            let rows = L::N.min(rows - i * L::N);
            a[i] = if t.acs == 1 && rows == L::N && n == L::N {
                (from, bytes(t.ars))
            } else {
                let to = left.wrapping_add(i * L::N * L::N);
                // SAFETY: rows and k-groups of the tile, and capacity for them.
                unsafe { copy_left::<L>(from, [t.ars, t.acs], [rows, n], to) };
                (to.cast_const(), bytes(L::N as isize))
            };
        }
        let from = t.b.wrapping_offset(p as isize * t.brs);
        let b = if n == L::N {
            (from, bytes(t.brs))
        } else {
            // SAFETY: as above, of the right operand.
            unsafe { copy_right::<L, C>(from, t.brs, n, right, 0) };
            // SAFETY: as above.
            unsafe { zero_right::<L, C>(right, n) };
            (right.cast_const(), bytes(2 * L::N as isize))
        };
        // SAFETY: whole tiles, in place or copied.
        unsafe { unit.multiply::<R, C>(a, b) };
        soon.steps(L::N / K_UNROLL);
        p += L::N;
    }
    if whole {
        // SAFETY: whole tiles of the output.
        unsafe { store::<U, L, R, C>(unit, c, t.crs) };
        return;
    }
    sums.store_from::<U, L, R>(unit);
    for i in 0..rows {
        for j in 0..C {
            let to = c.wrapping_offset(i as isize * t.crs).wrapping_add(j * L::N);
            // SAFETY: the columns of a row of the output.
            unsafe { sums.get::<L>(i, j).store_partial(to, few(j)) };
        }
    }
}

/// Loads `R × C` tiles of sums from rows with a stride of `pitch` words.
///
/// # Safety
/// They may be read.
#[inline(always)]
unsafe fn load<U: MatrixUnit, L: Simd<E = f32>, const R: usize, const C: usize>(
    unit: &mut U,
    from: *const f32,
    pitch: isize,
) {
    for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        if i < R && j < C {
            let from = from.wrapping_offset((i * L::N) as isize * pitch).wrapping_add(j * L::N);
            // SAFETY: the caller's promise.
            unsafe { unit.load(i, j, from, bytes(pitch)) };
        }
    }
}

/// Stores `R × C` tiles of sums to rows with a stride of `pitch` words.
///
/// # Safety
/// They may be written.
#[inline(always)]
unsafe fn store<U: MatrixUnit, L: Simd<E = f32>, const R: usize, const C: usize>(
    unit: &U,
    to: *mut f32,
    pitch: isize,
) {
    for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        if i < R && j < C {
            let to = to.wrapping_offset((i * L::N) as isize * pitch).wrapping_add(j * L::N);
            // SAFETY: the caller's promise.
            unsafe { unit.store(i, j, to, bytes(pitch)) };
        }
    }
}

/// All sums of a unit in memory, of `C` tiles across.
struct Sums<const C: usize>(Copied<{ 2 * TWO }>);

impl<const C: usize> Sums<C> {
    /// Loads the sums of `R × C` tiles, all of which were set.
    #[inline(always)]
    fn load_to<U: MatrixUnit, L: Simd<E = f32>, const R: usize>(&mut self, unit: &mut U) {
        // SAFETY: the tiles were set.
        unsafe { load::<U, L, R, C>(unit, self.0.ptr(), (C * L::N) as isize) };
    }

    /// Stores the sums of `R × C` tiles.
    #[inline(always)]
    fn store_from<U: MatrixUnit, L: Simd<E = f32>, const R: usize>(&mut self, unit: &U) {
        // SAFETY: the buffer holds all tiles.
        unsafe { store::<U, L, R, C>(unit, self.0.ptr(), (C * L::N) as isize) };
    }

    /// Sums of row `i` in tile column `j`, which were stored.
    #[inline(always)]
    fn get<L: Simd<E = f32>>(&mut self, i: usize, j: usize) -> L {
        debug_assert!(i < 2 * L::N && j < C);
        // SAFETY: a vector of the tiles.
        unsafe { L::load(self.0.ptr().add((i * C + j) * L::N)) }
    }

    /// Sets these sums.
    #[inline(always)]
    fn set<L: Simd<E = f32>>(&mut self, i: usize, j: usize, x: L) {
        debug_assert!(i < 2 * L::N && j < C);
        // SAFETY: as above.
        unsafe { x.store(self.0.ptr().add((i * C + j) * L::N)) };
    }
}

/// Copies a left tile: `rows` rows and `n` k-groups, and zeros for the others.
///
/// # Safety
/// These may be read, and a tile be written.
#[inline(always)]
unsafe fn copy_left<L: Simd<E = f32>>(
    from: *const f32,
    [ars, acs]: [isize; 2],
    [rows, n]: [usize; 2],
    to: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if ars == 1 && acs != 1 {
            let mut square = [L::zero(); MAX_LANES];
            for p in 0..n {
                let from = from.wrapping_offset(p as isize * acs);
                square[p] = if rows == L::N { L::load(from) } else { L::load_partial(from, rows) };
            }
            L::transpose(&mut square);
            for i in 0..L::N {
                square[i].store(to.add(i * L::N));
            }
            return;
        }
        for i in 0..L::N {
            let (from, to) = (from.wrapping_offset(i as isize * ars), to.add(i * L::N));
            if i >= rows {
                L::zero().store(to);
            } else if acs == 1 {
                L::load_partial(from, n).store(to);
            } else {
                L::zero().store(to);
                for p in 0..n {
                    *to.add(p) = from.offset(p as isize * acs).read_unaligned();
                }
            }
        }
    }
}

/// Copies `n` rows of right tiles to their rows from `first` on.
///
/// # Safety
/// These rows of `C` vectors may be read, and tiles be written.
#[inline(always)]
unsafe fn copy_right<L: Simd<E = f32>, const C: usize>(
    from: *const f32,
    brs: isize,
    n: usize,
    to: *mut f32,
    first: usize,
) {
    for p in 0..n {
        for j in 0..C {
            let from = from.wrapping_offset(p as isize * brs).wrapping_add(j * L::N);
            // SAFETY: the caller's promise.
            unsafe { L::load(from).store(to.add((first + p) * 2 * L::N + j * L::N)) };
        }
    }
}

/// Makes zeros of the rows of right tiles from `first` on.
///
/// # Safety
/// The tiles may be written.
#[inline(always)]
unsafe fn zero_right<L: Simd<E = f32>, const C: usize>(to: *mut f32, first: usize) {
    for p in first..L::N {
        for j in 0..C {
            // SAFETY: the caller's promise.
            unsafe { L::zero().store(to.add(p * 2 * L::N + j * L::N)) };
        }
    }
}

/// Prefetches of a block, in steps.
struct Soon<'a> {
    of: &'a TilePrefetch,
    block: usize,
    part: usize,
    near: *const f32,
    /// See [`TilePrefetch::of`].
    now: (*const u8, usize, usize),
}

impl<'a> Soon<'a> {
    #[inline(always)]
    fn new(of: &'a TilePrefetch, block: usize, near: *const f32) -> Self {
        Soon { of, block, part: 0, near, now: of.of(block, 0, near) }
    }

    /// Prefetches the lines of `n` steps of [`K_UNROLL`] k-groups.
    #[inline(always)]
    fn steps(&mut self, n: usize) {
        for _ in 0..n {
            if self.now.2 == 0 {
                self.part += 1;
                self.now = self.of.of(self.block, self.part, self.near);
            }
            let (at, pace, left) = self.now;
            if pace == 0 {
                return;
            }
            prefetch_l1(at);
            prefetch_l1(at.wrapping_add(pace / 2));
            self.now = (at.wrapping_add(pace), pace, left - 1);
        }
    }
}

/// Computes a tile of an indirect product.
///
/// # Safety
/// As [`super::indirect::indirect`]; the processor has the unit.
#[inline(always)]
pub(super) unsafe fn indirect<U: MatrixUnit, L: Simd<E = f32>>(w: &IndirectTile<f32>) {
    const { assert!(U::SIDE == L::N) };
    // SAFETY: the caller's promise.
    unsafe {
        match (w.rows.len() > L::N, w.cols > L::N) {
            (true, true) => rows_anywhere::<U, L, 2, 2>(w),
            (true, false) => rows_anywhere::<U, L, 2, 1>(w),
            (false, true) => rows_anywhere::<U, L, 1, 2>(w),
            (false, false) => rows_anywhere::<U, L, 1, 1>(w),
        }
    }
}

/// # Safety
/// As [`indirect`], with at most `R` tiles of rows and `C` of columns.
#[inline(always)]
unsafe fn rows_anywhere<U: MatrixUnit, L: Simd<E = f32>, const R: usize, const C: usize>(
    w: &IndirectTile<f32>,
) {
    // SAFETY: the caller's promise.
    let mut unit = unsafe { U::ready() };
    let (rows, width) = (w.rows.len(), 2 * L::N);
    assert!(rows <= width);
    let start = |i: usize| w.a.wrapping_byte_add(w.rows[i].offset * w.step);
    // Bytes from row to row, where a tile's rows are evenly spaced.
    let mut even = [None; R];
    for i in 0..R {
        let rows = &w.rows[i * L::N..rows.min((i + 1) * L::N)];
        let pace = |a: usize, b: usize| b.wrapping_sub(a) as isize;
        if rows.len() == L::N {
            let first = pace(rows[0].offset, rows[1].offset);
            if rows.windows(2).all(|two| pace(two[0].offset, two[1].offset) == first) {
                even[i] = Some(first * w.step as isize);
            }
        }
    }
    let (mut left, mut right) = (Copied::<TWO>::new(), Copied::<TWO>::new());
    // k-groups that end runs wait here until they fill a tile: as many columns of `ends` and rows of `right`.
    let (mut ends, mut filled) = (Copied::<TWO>::new(), 0);
    let (left, right, ends) = (left.ptr(), right.ptr(), ends.ptr());
    let of = |i: usize| i * L::N..rows.min((i + 1) * L::N);
    let line = bytes(L::N as isize);
    if rows < R * L::N {
        // SAFETY: the buffer holds both tiles.
        unsafe { [left, ends].iter().for_each(|to| to.write_bytes(0, R * L::N * L::N)) };
    }
    let position = |i: usize| w.rows[i].position;
    let follow = rows == R * L::N && (1..rows).all(|i| position(i) == position(0) + i);
    let row = |i: usize| w.c.wrapping_add(position(i) * w.crs);
    let mut sums = Sums::<C>(Copied::new());
    if !w.add {
        unit.zero();
    } else if follow {
        // SAFETY: rows of the output, which follow each other.
        unsafe { load::<U, L, R, C>(&mut unit, row(0), w.crs as isize) };
    } else {
        for i in 0..R * L::N {
            for j in 0..C {
                // SAFETY: a vector of a row of the output.
                let x = if i < rows { unsafe { L::load(row(i).add(j * L::N)) } } else { L::zero() };
                sums.set(i, j, x);
            }
        }
        sums.load_to::<U, L, R>(&mut unit);
    }
    for run in w.runs {
        let (mut at, mut b) = (run.left, w.b.wrapping_add(run.right * w.pitch * width));
        for _ in 0..w.inner / L::N {
            let mut a = [(w.a, line); 2];
            for i in 0..R {
                a[i] = match even[i] {
                    Some(pace) => (start(i * L::N).wrapping_offset(at), pace),
                    None => {
                        let to = left.wrapping_add(i * L::N * L::N);
                        for (row, at_row) in of(i).enumerate() {
                            // SAFETY: k-groups of this row of the left operand, and capacity for them.
                            unsafe { L::load(start(at_row).wrapping_offset(at)).store(to.add(row * L::N)) };
                        }
                        (to.cast_const(), line)
                    }
                };
            }
            // SAFETY: whole tiles, in place or copied.
            unsafe { unit.multiply::<R, C>(a, (b, bytes(width as isize))) };
            (at, b) = (at + L::N as isize, b.wrapping_add(L::N * width));
        }
        let mut rest = w.inner % L::N;
        while rest > 0 {
            let n = rest.min(L::N - filled);
            // SAFETY: k-groups of each row and rows of the right operand, and capacity for them.
            unsafe {
                for row in 0..rows {
                    let to = ends.add(row * L::N + filled);
                    L::load_partial(start(row).wrapping_offset(at), n).store_partial(to, n);
                }
                copy_right::<L, C>(b, width as isize, n, right, filled);
            }
            (at, b) = (at + n as isize, b.wrapping_add(n * width));
            (rest, filled) = (rest - n, filled + n);
            if filled == L::N {
                let a = [0, 1].map(|i| (ends.wrapping_add(i * L::N * L::N).cast_const(), line));
                // SAFETY: filled tiles.
                unsafe { unit.multiply::<R, C>(a, (right.cast_const(), bytes(width as isize))) };
                filled = 0;
            }
        }
    }
    if filled > 0 {
        let a = [0, 1].map(|i| (ends.wrapping_add(i * L::N * L::N).cast_const(), line));
        // SAFETY: zeros fill the tiles, which the buffer holds.
        unsafe {
            for row in 0..rows {
                let to = ends.add(row * L::N + filled);
                L::zero().store_partial(to, L::N - filled);
            }
            zero_right::<L, C>(right, filled);
            unit.multiply::<R, C>(a, (right.cast_const(), bytes(width as isize)));
        }
    }
    if follow {
        // SAFETY: rows of the output, which follow each other.
        unsafe { store::<U, L, R, C>(&unit, row(0), w.crs as isize) };
        return;
    }
    sums.store_from::<U, L, R>(&unit);
    for i in 0..rows {
        for j in 0..C {
            // SAFETY: a vector of a row of the output.
            unsafe { sums.get::<L>(i, j).store(row(i).add(j * L::N)) };
        }
    }
}
