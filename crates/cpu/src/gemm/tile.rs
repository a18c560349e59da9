//! The innermost kernels, generic over vectors: a block of the output in registers, and packing. Everything is
//! inlined into the functions of `tiers`: hence loops by index, for closures would be compiled apart, without
//! the instructions of the tier.
#![allow(clippy::needless_range_loop)]

use super::Mat;
use super::ahead::{Soon, ask, claim};
use super::lanes::{Converts, Lanes, MAX_LANES, PLACES, Packs};
use crate::element::{Float, Wide};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Most rows and columns of any block held in registers.
pub(crate) const MAX_ROWS: usize = 12;
pub(super) const MAX_COLS: usize = 2 * MAX_LANES;

/// Some rows of a few columns of the output: `c = start + a · b`, summed over `k` in order, a block in
/// registers at a time.
#[derive(Clone, Copy)]
pub(crate) struct Tile<E> {
    /// Rows, any number; columns, at most two vectors.
    pub rows: usize,
    pub cols: usize,
    pub k: usize,
    /// Left: in the block `t` of `Lanes::ROWS` rows, element `(i, p)` at `t·blocks + i·ars + p·acs`.
    pub a: *const E,
    pub ars: isize,
    pub acs: isize,
    pub blocks: isize,
    /// Right: row `p` of two whole vectors at `p·brs`, whatever `cols` is.
    pub b: *const E,
    pub brs: isize,
    /// Row `i` of what is added at `i·srs`; null for zeros. May be `c`.
    pub start: *const E,
    pub srs: isize,
    /// Output: row `i` at `i·crs`.
    pub c: *mut E,
    pub crs: isize,
    /// Memory that is asked for meanwhile.
    pub soon: Soon,
}

/// Computes a tile.
///
/// # Safety
/// All elements named by it may be read or written; `c` overlaps nothing else but `start`, at the same
/// elements.
#[inline(always)]
pub(super) unsafe fn tile<L: Lanes>(t: &Tile<L::E>) {
    // Of whole blocks something is known that saves additions of addresses.
    let left = match (t.ars, t.acs) {
        _ if t.brs != 2 * L::N as isize => ANY,
        (1, acs) if acs == L::ROWS as isize => PACKED,
        (1, _) => ACROSS,
        (_, 1) => ALONG,
        _ => ANY,
    };
    // Few columns take one vector.
    let few = t.cols <= L::N;
    let (whole, rest) = (t.rows / L::ROWS, t.rows % L::ROWS);
    macro_rules! rows {
        ($($r:literal)*) => {
            match (L::ROWS, left) {
                _ if whole == 0 => {}
                $(
                    // SAFETY: the caller's promise.
                    ($r, PACKED) if few => unsafe { rows::<L, $r, 1, PACKED>(t, 0..whole) },
                    // SAFETY: as above.
                    ($r, PACKED) => unsafe { rows::<L, $r, 2, PACKED>(t, 0..whole) },
                    // SAFETY: as above.
                    ($r, ACROSS) if few => unsafe { rows::<L, $r, 1, ACROSS>(t, 0..whole) },
                    // SAFETY: as above.
                    ($r, ACROSS) => unsafe { rows::<L, $r, 2, ACROSS>(t, 0..whole) },
                    // SAFETY: as above.
                    ($r, ALONG) if few => unsafe { rows::<L, $r, 1, ALONG>(t, 0..whole) },
                    // SAFETY: as above.
                    ($r, ALONG) => unsafe { rows::<L, $r, 2, ALONG>(t, 0..whole) },
                    // SAFETY: as above.
                    ($r, _) => unsafe { rows::<L, $r, 2, ANY>(t, 0..whole) },
                )*
                _ => unreachable!("blocks have 1 to 12 rows"),
            }
            match rest {
                0 => {}
                // SAFETY: as above.
                $($r if $r < L::ROWS => unsafe { rows::<L, $r, 2, ANY>(t, whole..whole + 1) },)*
                _ => unreachable!("fewer rows than a block"),
            }
        };
    }
    rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// How the left operand of a tile lies: its strides are anything; it is packed; its columns are neighbours;
/// its rows are. All but the first with a packed right operand.
const ANY: u8 = 0;
const PACKED: u8 = 1;
const ALONG: u8 = 2;
const ACROSS: u8 = 3;

/// Blocks of `R` rows and `C` vectors of columns.
///
/// # Safety
/// As [`tile`]; the blocks are the tile's, and strides are as `LEFT` says.
#[inline(always)]
unsafe fn rows<L: Lanes, const R: usize, const C: usize, const LEFT: u8>(
    t: &Tile<L::E>,
    blocks: Range<usize>,
) {
    let mut block = blocks.start;
    while block < blocks.end {
        // SAFETY: the caller's promise.
        unsafe { one::<L, R, C, LEFT>(t, block) };
        block += 1;
    }
}

/// One of them.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
unsafe fn one<L: Lanes, const R: usize, const C: usize, const LEFT: u8>(t: &Tile<L::E>, block: usize) {
    let (ars, acs) = match LEFT {
        PACKED => (1, L::ROWS as isize),
        ACROSS => (1, t.acs),
        ALONG => (t.ars, 1),
        _ => (t.ars, t.acs),
    };
    let brs = if LEFT == ANY { t.brs } else { 2 * L::N as isize };
    let first = (block * L::ROWS) as isize;
    let (to, start) = (t.c.wrapping_offset(first * t.crs), t.start.wrapping_offset(first * t.srs));
    let mut sums = [[L::zero(); C]; R];
    let mut b = t.b;
    // Rows in threes: addresses reach a base plus one or two strides. Told what the bases have in common, the
    // compiler would add stride by stride, each addition waiting for the one before.
    let mut a = [t.a.wrapping_offset(block as isize * t.blocks); THREES];
    for i in 1..R.div_ceil(3) {
        a[i] = a[0].wrapping_offset(3 * i as isize * ars);
        if ars != 1 {
            a[i] = std::hint::black_box(a[i]);
        }
    }
    // By the time the sums are ready, so are the lines they go to.
    let size = size_of::<L::E>();
    claim(to.cast(), R, t.crs * size as isize, (t.cols.clamp(1, C * L::N) - 1) * size);
    macro_rules! place {
        ($p:expr) => {
            let right = b.wrapping_offset($p * brs);
            let mut rights = [L::zero(); C];
            for j in 0..C {
                // SAFETY: row `p` of `b` and column `p` of `a` are the tile's.
                rights[j] = unsafe { L::load(right.add(j * L::N)) };
            }
            if L::BY_LANE && matches!(LEFT, PACKED | ACROSS) {
                // SAFETY: as above; rows of `a` are neighbours.
                unsafe { L::outer(&mut sums, a[0].offset($p * acs), rights) };
            } else {
                for i in 0..R {
                    // SAFETY: as above.
                    let left = unsafe { *a[i / 3].offset((i % 3) as isize * ars).offset($p * acs) };
                    let left = L::splat(left);
                    for j in 0..C {
                        sums[i][j] = sums[i][j].fma(left, rights[j]);
                    }
                }
            }
        };
    }
    macro_rules! further {
        ($n:expr) => {
            for i in 0..R.div_ceil(3) {
                a[i] = a[i].wrapping_offset($n * acs);
            }
            b = b.wrapping_offset($n * brs);
        };
    }
    let mut rest = t.k;
    if LEFT != ANY {
        const { assert!(PLACES == 4) };
        let (mut part, mut steps) = (0, t.k / PLACES);
        while steps > 0 {
            let (mut soon, pace, most) = t.soon.of(block, part, b);
            let now = steps.min(most);
            for _ in 0..now {
                if L::BY_LANE && LEFT == ALONG {
                    let mut rows = [a[0]; R];
                    for i in 0..R {
                        rows[i] = a[i / 3].wrapping_offset((i % 3) as isize * ars);
                    }
                    // SAFETY: places of these rows, which are neighbours, and of `b`.
                    unsafe { L::inner(&mut sums, rows, b, brs) };
                    further!(4);
                } else if LEFT == ACROSS && R > 6 {
                    // Written one after the other, the compiler would read all four first, for which there
                    // are no registers.
                    for _ in 0..std::hint::black_box(PLACES) {
                        place!(0);
                        further!(1);
                    }
                } else {
                    place!(0);
                    apart();
                    place!(1);
                    apart();
                    place!(2);
                    apart();
                    place!(3);
                    further!(4);
                }
                ask(soon);
                ask(soon.wrapping_add(pace / 2));
                soon = soon.wrapping_add(pace);
            }
            (part, steps) = (part + 1, steps - now);
        }
        rest %= PLACES;
    }
    for _ in 0..rest {
        place!(0);
        further!(1);
    }
    let (whole, adds) = (t.cols == C * L::N, !t.start.is_null());
    // One loop for each case: the sums then stay in registers.
    // SAFETY: rows of `c` and of `start`, of `cols` elements.
    unsafe {
        if whole && adds {
            for i in 0..R {
                let start = start.wrapping_offset(i as isize * t.srs);
                for j in 0..C {
                    sums[i][j] = L::load(start.add(j * L::N)).add(sums[i][j]);
                }
            }
        }
        if whole {
            for i in 0..R {
                let c = to.wrapping_offset(i as isize * t.crs);
                for j in 0..C {
                    sums[i][j].store(c.add(j * L::N));
                }
            }
            return;
        }
        // Columns of each vector: all, some or none.
        let mut few = [0; C];
        for j in 0..C {
            few[j] = t.cols.saturating_sub(j * L::N).min(L::N);
        }
        // Storing some lanes takes several instructions without masks: the loop over rows is not unrolled then,
        // and would keep its sums in memory from the beginning. So they go there now.
        let mut memory = MaybeUninit::<[[L::E; MAX_COLS]; R]>::uninit();
        let memory: *mut L::E = memory.as_mut_ptr().cast();
        if L::BY_LANE {
            for i in 0..R {
                for j in 0..C {
                    sums[i][j].store(memory.add(i * MAX_COLS + j * L::N));
                }
            }
        }
        for i in 0..R {
            let c = to.wrapping_offset(i as isize * t.crs);
            let start = start.wrapping_offset(i as isize * t.srs);
            for j in 0..C {
                let mut sum = match L::BY_LANE {
                    true => L::load(memory.add(i * MAX_COLS + j * L::N)),
                    false => sums[i][j],
                };
                if adds {
                    sum = L::load_few(start.wrapping_add(j * L::N), few[j]).add(sum);
                }
                sum.store_few(c.wrapping_add(j * L::N), few[j]);
            }
        }
    }
}

/// Keeps the compiler from reading for the next place what registers have no room for while this one is
/// multiplied.
#[inline(always)]
pub(super) fn apart() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Bases of the addresses of rows, each for three.
const THREES: usize = MAX_ROWS.div_ceil(3);

/// Packs the rows of a matrix into panels of `group` rows: in a panel, place after place of `k` ([`Packs`]).
/// Rows missing in the last panel are zeros. Panels begin `pitch · group` elements apart: more than `k` has
/// places if other columns are packed apart from these. A group is of whole vectors or smaller than one;
/// `out` has room for whole panels and [`MAX_LANES`] elements more.
///
/// # Safety
/// The `rows × k` elements of `x` may be read, `rows` in whole panels by the places of `k` of `out` be
/// written; they do not overlap.
#[inline(always)]
pub(super) unsafe fn pack<L: Packs<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    k: usize,
    group: usize,
    pitch: usize,
    out: *mut L::E,
) {
    let full = rows / group * group;
    // Places that are filled by elements of the matrix, and all.
    let (whole, places) = (k / L::TAKEN, k.div_ceil(L::TAKEN));
    // SAFETY: the caller's promise, for what lies in whole vectors and for what is left.
    unsafe {
        // Places that are packed by vectors, of whole panels and of the last one.
        let done = match (x.rs, x.cs) {
            (1, _) => {
                pack_rows::<L, T>(x, rows, whole, group, pitch, out);
                [whole, 0]
            }
            (_, 1) => {
                // A vector for very few places is slower than one place after the other.
                let left = whole % L::N;
                let vectors = if 4 * left > L::N { whole } else { whole - left };
                pack_columns::<L, T>(x, rows, vectors, group, pitch, out);
                [vectors; 2]
            }
            _ => [0; 2],
        };
        pack_any::<L, T>(x, 0..full, done[0]..places, k, group, pitch, out);
        if full < rows {
            let (panel, rest) = (out.wrapping_add(full * pitch), rows - full);
            for p in done[1]..places {
                for i in rest..group {
                    *panel.add(p * group + i) = L::E::ZERO;
                }
            }
            pack_any::<L, T>(x, full..rows, done[1]..places, k, group, pitch, out);
        }
    }
}

/// Packs some rows and places, one at a time.
///
/// # Safety
/// As [`pack`], for these elements.
#[inline(always)]
unsafe fn pack_any<L: Packs<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: Range<usize>,
    places: Range<usize>,
    k: usize,
    group: usize,
    pitch: usize,
    out: *mut L::E,
) {
    for i in rows {
        let row = i % group;
        let panel = out.wrapping_add((i - row) * pitch + row);
        for p in places.start..places.end {
            // SAFETY: elements of the matrix and their place.
            unsafe { *panel.add(p * group) = L::one(x, i, p, k) };
        }
    }
}

/// Packs whole panels of rows that are neighbours in memory, a vector at a time.
///
/// # Safety
/// As [`pack`], for the first `places` of `k`.
#[inline(always)]
unsafe fn pack_rows<L: Packs<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    places: usize,
    group: usize,
    pitch: usize,
    out: *mut L::E,
) {
    // So many places of so many rows at a time: few stretches are read and written at once, each along
    // memory.
    const PLACES: usize = 8;
    const STRIP: usize = 192;
    const LINE: usize = 64;
    let strip = STRIP.max(group) / group * group;
    let whole = rows / group * group;
    for start in (0..whole).step_by(strip) {
        let rows_end = whole.min(start + strip);
        for first in (0..places).step_by(PLACES) {
            let end = places.min(first + PLACES);
            // The next columns, each a stretch of its own, come while these are written.
            for p in end * L::TAKEN..places.min(end + PLACES) * L::TAKEN {
                for i in (start..rows_end).step_by(LINE / size_of::<T>()) {
                    ask(x.at(i, p).ptr.cast());
                }
            }
            for i in (start..rows_end).step_by(group) {
                let mut to = out.wrapping_add(i * pitch + first * group);
                let mut from = x.at(i, first * L::TAKEN);
                if group.is_multiple_of(L::N) {
                    for _ in first..end {
                        for j in (0..group).step_by(L::N) {
                            // SAFETY: rows of this place, and where they go.
                            unsafe { L::across(from, j, 0).store(to.add(j)) };
                        }
                        (from, to) = (from.at(0, L::TAKEN), to.wrapping_add(group));
                    }
                    continue;
                }
                // The vector's lanes that are no rows of this panel are rows of the next one, and spill into
                // the next place of this panel, which is written later; the last place must not spill.
                let within = i + L::N <= rows;
                let spills = if within { end.min(places - 1) } else { first };
                for _ in first..spills {
                    // SAFETY: as above.
                    unsafe { L::across(from, 0, 0).store(to) };
                    (from, to) = (from.at(0, L::TAKEN), to.wrapping_add(group));
                }
                // Behind the last row nothing is read: a vector ends with it, and a matrix of fewer rows is
                // read one by one.
                let before = L::N - group;
                for _ in spills..end {
                    // SAFETY: as above.
                    unsafe {
                        if within {
                            L::across(from, 0, 0).store_few(to, group);
                        } else if i >= before {
                            L::across(from.moved(-(before as isize)), 0, 0).last(group).store_few(to, group);
                        } else {
                            for j in 0..group {
                                *to.add(j) = L::one(from, j, 0, L::TAKEN);
                            }
                        }
                    }
                    (from, to) = (from.at(0, L::TAKEN), to.wrapping_add(group));
                }
            }
        }
    }
}

/// Packs panels of rows whose columns are neighbours in memory: squares of places, which are transposed.
///
/// # Safety
/// As [`pack`], for the first `places` of `k`.
#[inline(always)]
unsafe fn pack_columns<L: Packs<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    rows: usize,
    places: usize,
    group: usize,
    pitch: usize,
    out: *mut L::E,
) {
    let whole = places / L::N * L::N;
    let mut i = 0;
    while i < rows {
        let here = group.min(rows - i);
        let mut row = 0;
        while row < group {
            // A panel of fewer rows than lanes repeats its last one or has zeros, and one that is not whole
            // zeros; what is stored of it spills into the next place, or the next panel, which are written
            // later, or the room at the end.
            let (last, some) = (group - row - 1, L::N.min(here.saturating_sub(row)));
            let to = out.wrapping_add(i * pitch + row);
            let mut p = 0;
            while p < whole {
                let mut square = [L::zero(); MAX_LANES];
                if here == group {
                    for j in 0..L::N {
                        // SAFETY: `N` places of a row.
                        square[j] = unsafe { L::along(x, i + row + j.min(last), p) };
                    }
                } else {
                    for j in 0..some {
                        // SAFETY: as above.
                        square[j] = unsafe { L::along(x, i + row + j, p) };
                    }
                }
                L::transpose(&mut square);
                for q in 0..L::N {
                    // SAFETY: a place of the panel, or the spill.
                    unsafe { square[q].store(to.wrapping_add((p + q) * group)) };
                }
                p += L::N;
            }
            if whole < places {
                let mut square = [L::zero(); MAX_LANES];
                for j in 0..some {
                    // SAFETY: the places that are left.
                    square[j] = unsafe { L::along_few(x, i + row + j, whole, places - whole) };
                }
                L::transpose(&mut square);
                for q in 0..places - whole {
                    // SAFETY: as above.
                    unsafe { square[q].store(to.wrapping_add((whole + q) * group)) };
                }
            }
            row += L::N;
        }
        i += group;
    }
}

/// Adds up `rows` rows of `n` numbers, which begin `pitch` apart, in order.
///
/// # Safety
/// They may be read, and `n` numbers be written to `to`; these do not overlap.
#[inline(always)]
pub(super) unsafe fn total<L: Lanes>(from: *const L::E, pitch: usize, rows: usize, n: usize, to: *mut L::E) {
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
                    sum = sum.add(L::load_few(from.add(row * pitch + j), n - j));
                }
                sum.store_few(to.add(j), n - j);
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
