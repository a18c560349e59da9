//! Microkernels of direct depthwise convolution: lines of positions of one channel, convolved with its filter
//! or correlated with lines of gradients. Positions are the lanes. A few lines, or parts of one, stay in
//! registers while the taps go by, or a few taps while the positions do.

use crate::element::Wide;
use crate::simd::{MAX_LANES, Simd};

/// Vectors of results held in registers.
const HELD: usize = 8;

/// Sums over taps: position `p` of line `i` is `start + Σ weights[t] · inputs[rows[i] + taps[t] + p]`, in the
/// order of the taps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DepthwiseLines<'a, E> {
    pub inputs: *const E,
    /// Offsets at which the inputs of each line begin, and what each tap adds to them.
    pub rows: &'a [isize],
    pub taps: &'a [usize],
    pub weights: &'a [E],
    pub start: E,
    /// Positions of a line.
    pub width: usize,
    /// Places where lines are written, and elements from one to the next: whole vectors, the last of which
    /// has more than is meant.
    pub out: *mut E,
    pub pitch: usize,
}

/// Computes all lines.
///
/// # Safety
/// All elements named may be read or written, in vectors that begin at or before the last of a line; `out`
/// overlaps nothing else.
#[inline(always)]
pub(super) unsafe fn lines<L: Simd>(x: &DepthwiseLines<L::E>) {
    let vectors = x.width.div_ceil(L::N);
    if vectors == 0 || x.rows.is_empty() {
        return;
    }
    let each = vectors.div_ceil(vectors.div_ceil(HELD));
    for first in (0..vectors).step_by(each) {
        // SAFETY: the caller's promise.
        unsafe {
            match each.min(vectors - first) {
                1 => columns::<L, 8, 1>(x, first),
                2 => columns::<L, 4, 2>(x, first),
                3 => columns::<L, 3, 3>(x, first),
                4 => columns::<L, 2, 4>(x, first),
                5 => columns::<L, 1, 5>(x, first),
                6 => columns::<L, 1, 6>(x, first),
                7 => columns::<L, 1, 7>(x, first),
                _ => columns::<L, 1, HELD>(x, first),
            }
        }
    }
}

/// `V` vectors of each line, from vector `first` on: `R` lines at a time.
///
/// # Safety
/// As [`lines`].
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn columns<L: Simd, const R: usize, const V: usize>(x: &DepthwiseLines<L::E>, first: usize) {
    let taps = x.taps.len().min(x.weights.len());
    for line in (0..x.rows.len()).step_by(R) {
        // Lines past the last repeat the last one.
        let place = |i: usize| (line + i).min(x.rows.len() - 1);
        let mut rows = [x.inputs; R];
        for i in 0..R {
            rows[i] = x.inputs.wrapping_offset(x.rows[place(i)]).wrapping_add(first * L::N);
        }
        let mut sums = [[L::splat(x.start); V]; R];
        for t in 0..taps {
            let weight = L::splat(x.weights[t]);
            for i in 0..R {
                for v in 0..V {
                    // SAFETY: inputs of this line, which the caller vouches for.
                    let input = unsafe { L::load(rows[i].wrapping_add(x.taps[t] + v * L::N)) };
                    sums[i][v] = sums[i][v].fma(weight, input);
                }
            }
        }
        for i in 0..R {
            for v in 0..V {
                // SAFETY: a vector of a line.
                unsafe { sums[i][v].store(x.out.wrapping_add(place(i) * x.pitch + (first + v) * L::N)) };
            }
        }
    }
}

/// Sums over positions: for each tap and lane `l`,
/// `sums[t][l] += Σ gradients[i · pitch + p] · inputs[rows[i] + taps[t] + p]`, where
/// the positions `p < width` leave the remainder `l`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DepthwiseWeightSums<'a, E> {
    pub inputs: *const E,
    pub rows: &'a [isize],
    pub taps: &'a [usize],
    pub width: usize,
    /// Zeros follow each line, up to a whole vector.
    pub gradients: *const E,
    pub pitch: usize,
    /// A vector for each tap.
    pub sums: *mut E,
}

/// Taps summed at a time.
const TAPS: usize = 9;

/// Computes all sums.
///
/// # Safety
/// All elements named may be read or written, in vectors that begin at or before the last of a line; `sums`
/// overlaps nothing else.
#[inline(always)]
pub(super) unsafe fn weight_sums<L: Simd>(x: &DepthwiseWeightSums<L::E>) {
    if x.taps.is_empty() {
        return;
    }
    let each = x.taps.len().div_ceil(x.taps.len().div_ceil(TAPS));
    for (i, taps) in x.taps.chunks(each).enumerate() {
        let sums = x.sums.wrapping_add(i * each * L::N);
        // SAFETY: the caller's promise.
        unsafe {
            match taps.len() {
                1 => some::<L, 1>(x, taps, sums),
                2 => some::<L, 2>(x, taps, sums),
                3 => some::<L, 3>(x, taps, sums),
                4 => some::<L, 4>(x, taps, sums),
                5 => some::<L, 5>(x, taps, sums),
                6 => some::<L, 6>(x, taps, sums),
                7 => some::<L, 7>(x, taps, sums),
                8 => some::<L, 8>(x, taps, sums),
                _ => some::<L, TAPS>(x, taps, sums),
            }
        }
    }
}

/// Sums of `T` taps.
///
/// # Safety
/// As [`weight_sums`].
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn some<L: Simd, const T: usize>(x: &DepthwiseWeightSums<L::E>, taps: &[usize], to: *mut L::E) {
    let mut tap = [0; T];
    tap.copy_from_slice(taps);
    let mut sums = [L::zero(); T];
    let (whole, rest) = (x.width / L::N, x.width % L::N);
    // Elements after a line belong to others: multiplying them by zero would not hide an infinity.
    let mut mask = [L::E::ZERO; MAX_LANES];
    bytemuck::cast_slice_mut::<L::E, u8>(&mut mask[..rest]).fill(0xff);
    // SAFETY: the buffer holds any vector.
    let mask = unsafe { L::load(mask.as_ptr()) };
    for (i, &row) in x.rows.iter().enumerate() {
        let mut inputs = x.inputs.wrapping_offset(row);
        let mut gradients = x.gradients.wrapping_add(i * x.pitch);
        for _ in 0..whole {
            // SAFETY: vectors of a line.
            unsafe {
                let gradient = L::load(gradients);
                for t in 0..T {
                    sums[t] = sums[t].fma(gradient, L::load(inputs.wrapping_add(tap[t])));
                }
            }
            (inputs, gradients) = (inputs.wrapping_add(L::N), gradients.wrapping_add(L::N));
        }
        if rest > 0 {
            // SAFETY: as above, that begin in the line.
            unsafe {
                let gradient = L::load(gradients);
                for t in 0..T {
                    sums[t] = sums[t].fma(gradient, L::load(inputs.wrapping_add(tap[t])).masked(mask));
                }
            }
        }
    }
    for t in 0..T {
        let to = to.wrapping_add(t * L::N);
        // SAFETY: the sums of a tap.
        unsafe { L::load(to).add(sums[t]).store(to) };
    }
}
