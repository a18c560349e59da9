//! Filters of convolutions as right operands, from ATen's layout: output channel, input channel, tap.
#![allow(clippy::needless_range_loop)]

use crate::element::Float;
use crate::matrix::Mat;
use crate::simd::MAX_LANES;
use crate::simd::pack::Pack;

/// Elements of scratch memory that [`pack_filters`] needs for filters of so many taps.
pub(crate) fn scratch(taps: usize) -> usize {
    (taps + 1) * MAX_LANES * MAX_LANES
}

/// Packs the filters of `n` output channels, the rows of a matrix: `elements` input channels of `taps` taps
/// each. Tap `t` of k-group `p` of the input channels goes to `out[(t · k_groups + p) · cols ..]`, output
/// channels consecutively, then zeros. `cols` is a multiple of a vector.
///
/// # Safety
/// The rows may be read, of contiguous elements; `out` can hold `cols` elements of each tap and k-group,
/// `work` for [`scratch`]. They do not overlap.
#[inline(always)]
pub(in crate::gemm) unsafe fn pack_filters<L: Pack<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    n: usize,
    [elements, taps]: [usize; 2],
    out: *mut L::E,
    cols: usize,
    work: *mut L::E,
) {
    let (k_groups, all) = (elements.div_ceil(L::K_GROUP), elements * taps);
    // As many k-groups as a vector has lanes, all their elements in the order of memory: a vector holds
    // `K_GROUP` of each result.
    for (o, first) in (0..cols).step_by(L::N).flat_map(|o| (0..k_groups).step_by(L::N).map(move |p| (o, p))) {
        let (rows, here) = (L::N.min(n.saturating_sub(o)), L::N.min(k_groups - first));
        let start = first * taps;
        let (whole, end) = (all / L::K_GROUP, all.div_ceil(L::K_GROUP).min(start + here * taps));
        let mut word = start;
        while word < end {
            let to = work.wrapping_add((word - start) * L::N);
            let mut square = [L::zero(); MAX_LANES];
            for j in 0..rows {
                // SAFETY: words of a row.
                square[j] = unsafe {
                    match word + L::N <= whole {
                        true => L::k_groups(x, o + j, word),
                        false => L::k_groups_partial(x, o + j, word, whole - word),
                    }
                };
            }
            L::transpose(&mut square);
            for q in 0..L::N {
                // SAFETY: there is capacity for a square more than the k-groups take.
                unsafe { square[q].store(to.wrapping_add(q * L::N)) };
            }
            // A last word of one element.
            if whole < end && end <= word + L::N {
                for j in 0..rows {
                    // SAFETY: an element of the row, and its k-group.
                    unsafe { *to.add((whole - word) * L::N + j) = L::single(x, o + j, whole, all) };
                }
            }
            word += L::N;
        }
        for t in 0..taps {
            let to = out.wrapping_add((t * k_groups + first) * cols + o);
            let late = [t % 2 == 1, (t + taps) % 2 == 1];
            // The last pair may lack its second element.
            let pairs = if L::K_GROUP == 1 { 0 } else { here.min(elements / 2 - first) };
            macro_rules! join {
                ($($early:literal $late:literal),*) => {
                    match late {
                        $([$early, $late] => for p in 0..pairs {
                            let (a, b) = (2 * p * taps + t, (2 * p + 1) * taps + t);
                            // SAFETY: words of these k-groups, and where they go.
                            unsafe {
                                let a = L::load(work.add(a / 2 * L::N));
                                let b = L::load(work.add(b / 2 * L::N));
                                a.merge(b, $early, $late).store(to.add(p * cols));
                            }
                        },)*
                    }
                };
            }
            join!(false false, false true, true false, true true);
            for p in pairs..here {
                let word = if L::K_GROUP == 1 { p * taps + t } else { (2 * p * taps + t) / 2 };
                // SAFETY: as above.
                unsafe {
                    let mut a = L::load(work.add(word * L::N));
                    if L::K_GROUP == 2 {
                        a = a.merge(L::zero(), t % 2 == 1, false);
                    }
                    a.store(to.add(p * cols));
                }
            }
        }
    }
}
