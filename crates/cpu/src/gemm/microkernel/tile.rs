//! The microkernel of matrix products: a register tile of MR × NR sums, generic over vectors. Each step along
//! `k` is an outer product of a column of the left micro-panel and a row of the right one.
#![allow(clippy::needless_range_loop)]

use crate::prefetch::{TilePrefetch, prefetch_l1, prefetch_write};
use crate::simd::{K_UNROLL, MAX_LANES, Simd, barrier};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Most of MR and NR of vectors of any instruction set.
pub(super) const MAX_ROWS: usize = 12;
pub(in crate::gemm) const MAX_COLS: usize = 2 * MAX_LANES;

/// Some rows of at most NR columns of the output: `c = start + a · b`, summed over `k` in order, a register
/// tile at a time.
#[derive(Clone, Copy)]
pub(crate) struct Tile<E> {
    /// Rows, any number; columns, at most two vectors.
    pub rows: usize,
    pub cols: usize,
    pub k: usize,
    /// Left: in the block `t` of MR rows, element `(i, p)` at `t·blocks + i·ars + p·acs`.
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
    /// Prefetched meanwhile.
    pub prefetch: TilePrefetch,
}

/// Computes a tile.
///
/// # Safety
/// All elements named by it may be read or written; `c` overlaps nothing else but `start`, at the same
/// elements.
#[inline(always)]
pub(super) unsafe fn tile<L: Simd>(t: &Tile<L::E>) {
    // Strides known at compile time save additions of addresses.
    let left = match (t.ars, t.acs) {
        _ if t.brs != 2 * L::N as isize => ANY,
        (1, acs) if acs == L::MR as isize => PACKED,
        (1, _) => ACROSS,
        (_, 1) => ALONG,
        _ => ANY,
    };
    // Few columns take one vector.
    let few = t.cols <= L::N;
    let (whole, rest) = (t.rows / L::MR, t.rows % L::MR);
    macro_rules! rows {
        ($($r:literal)*) => {
            match (L::MR, left) {
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
                $($r if $r < L::MR => unsafe { rows::<L, $r, 2, ANY>(t, whole..whole + 1) },)*
                _ => unreachable!("fewer rows than a block"),
            }
        };
    }
    rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// Layout of the left operand of a tile: any strides; packed; contiguous along `k`; contiguous along rows.
/// All but the first with a packed right operand.
const ANY: u8 = 0;
const PACKED: u8 = 1;
const ALONG: u8 = 2;
const ACROSS: u8 = 3;

/// Blocks of `R` rows and `C` vectors of columns.
///
/// # Safety
/// As [`tile`]; the blocks are the tile's, and strides are as `LEFT` says.
#[inline(always)]
unsafe fn rows<L: Simd, const R: usize, const C: usize, const LEFT: u8>(
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
unsafe fn one<L: Simd, const R: usize, const C: usize, const LEFT: u8>(t: &Tile<L::E>, block: usize) {
    let (ars, acs) = match LEFT {
        PACKED => (1, L::MR as isize),
        ACROSS => (1, t.acs),
        ALONG => (t.ars, 1),
        _ => (t.ars, t.acs),
    };
    let brs = if LEFT == ANY { t.brs } else { 2 * L::N as isize };
    let first = (block * L::MR) as isize;
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
    // By the time the sums are ready, so are the cache lines they go to.
    let size = size_of::<L::E>();
    prefetch_write(to.cast(), R, t.crs * size as isize, (t.cols.clamp(1, C * L::N) - 1) * size);
    macro_rules! step {
        ($p:expr) => {
            let right = b.wrapping_offset($p * brs);
            let mut rights = [L::zero(); C];
            for j in 0..C {
                // SAFETY: row `p` of `b` and column `p` of `a` are the tile's.
                rights[j] = unsafe { L::load(right.add(j * L::N)) };
            }
            if L::FMA_BY_LANE && matches!(LEFT, PACKED | ACROSS) {
                // SAFETY: as above; rows of `a` are contiguous.
                unsafe { L::fma_outer(&mut sums, a[0].offset($p * acs), rights) };
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
        const { assert!(K_UNROLL == 4) };
        let (mut part, mut steps) = (0, t.k / K_UNROLL);
        while steps > 0 {
            let (mut soon, pace, most) = t.prefetch.of(block, part, b);
            let now = steps.min(most);
            for _ in 0..now {
                if L::FMA_BY_LANE && LEFT == ALONG {
                    let mut rows = [a[0]; R];
                    for i in 0..R {
                        rows[i] = a[i / 3].wrapping_offset((i % 3) as isize * ars);
                    }
                    // SAFETY: contiguous k-groups of these rows, and of `b`.
                    unsafe { L::fma_unrolled(&mut sums, rows, b, brs) };
                    further!(4);
                } else if LEFT == ACROSS && R > 6 {
                    // Written in sequence, the compiler would read all four first, for which there are no
                    // registers.
                    for _ in 0..std::hint::black_box(K_UNROLL) {
                        step!(0);
                        further!(1);
                    }
                } else {
                    step!(0);
                    barrier();
                    step!(1);
                    barrier();
                    step!(2);
                    barrier();
                    step!(3);
                    further!(4);
                }
                prefetch_l1(soon);
                prefetch_l1(soon.wrapping_add(pace / 2));
                soon = soon.wrapping_add(pace);
            }
            (part, steps) = (part + 1, steps - now);
        }
        rest %= K_UNROLL;
    }
    for _ in 0..rest {
        step!(0);
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
        // Storing some lanes takes several instructions without masks. The loop over rows is not unrolled
        // then, and would keep its sums in memory from the beginning. So they go there now.
        let mut memory = MaybeUninit::<[[L::E; MAX_COLS]; R]>::uninit();
        let memory: *mut L::E = memory.as_mut_ptr().cast();
        if L::FMA_BY_LANE {
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
                let mut sum = match L::FMA_BY_LANE {
                    true => L::load(memory.add(i * MAX_COLS + j * L::N)),
                    false => sums[i][j],
                };
                if adds {
                    sum = L::load_partial(start.wrapping_add(j * L::N), few[j]).add(sum);
                }
                sum.store_partial(c.wrapping_add(j * L::N), few[j]);
            }
        }
    }
}

/// Bases of the addresses of rows, each for three.
const THREES: usize = MAX_ROWS.div_ceil(3);
