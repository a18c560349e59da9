//! Kernels of convolutions as right operands, where those of a result follow each other in memory.
#![allow(clippy::needless_range_loop)]

use super::Mat;
use super::lanes::{MAX_LANES, Packs};
use crate::element::Float;

/// Elements of scratch memory that [`taps`] needs for kernels of so many elements.
pub(crate) fn room(taps: usize) -> usize {
    (taps + 1) * MAX_LANES * MAX_LANES
}

/// Packs the kernels of `n` results, the rows of a matrix: of channel after channel, `elements` of these,
/// `taps` elements. Tap `t` of place `p` of the channels ([`Packs`]) goes to `out[(t · places + p) · cols
/// ..]`, result after result, and zeros behind the last one. `cols` are whole vectors.
///
/// # Safety
/// The rows may be read, of neighbouring elements; `out` has room for `cols` elements of each tap and place,
/// `scratch` for [`room`]. They do not overlap.
#[inline(always)]
pub(super) unsafe fn taps<L: Packs<T>, T: Float<Wide = L::E>>(
    x: Mat<T>,
    n: usize,
    [elements, taps]: [usize; 2],
    out: *mut L::E,
    cols: usize,
    scratch: *mut L::E,
) {
    let (places, all) = (elements.div_ceil(L::TAKEN), elements * taps);
    // Of as many places as a vector has lanes, all elements as they follow each other: `TAKEN` of each result
    // a vector.
    for (o, first) in (0..cols).step_by(L::N).flat_map(|o| (0..places).step_by(L::N).map(move |p| (o, p))) {
        let (rows, here) = (L::N.min(n.saturating_sub(o)), L::N.min(places - first));
        let start = first * taps;
        let (whole, end) = (all / L::TAKEN, all.div_ceil(L::TAKEN).min(start + here * taps));
        let mut word = start;
        while word < end {
            let to = scratch.wrapping_add((word - start) * L::N);
            let mut square = [L::zero(); MAX_LANES];
            for j in 0..rows {
                // SAFETY: words of a row.
                square[j] = unsafe {
                    match word + L::N <= whole {
                        true => L::along(x, o + j, word),
                        false => L::along_few(x, o + j, word, whole - word),
                    }
                };
            }
            L::transpose(&mut square);
            for q in 0..L::N {
                // SAFETY: there is room for a square more than the places take.
                unsafe { square[q].store(to.wrapping_add(q * L::N)) };
            }
            // A last word of one element.
            if whole < end && end <= word + L::N {
                for j in 0..rows {
                    // SAFETY: an element of the row, and its place.
                    unsafe { *to.add((whole - word) * L::N + j) = L::one(x, o + j, whole, all) };
                }
            }
            word += L::N;
        }
        for t in 0..taps {
            let to = out.wrapping_add((t * places + first) * cols + o);
            let late = [t % 2 == 1, (t + taps) % 2 == 1];
            // Of pairs the last one may lack its second element.
            let pairs = if L::TAKEN == 1 { 0 } else { here.min(elements / 2 - first) };
            macro_rules! join {
                ($($early:literal $late:literal),*) => {
                    match late {
                        $([$early, $late] => for p in 0..pairs {
                            let (a, b) = (2 * p * taps + t, (2 * p + 1) * taps + t);
                            // SAFETY: words of these places, and where they go.
                            unsafe {
                                let a = L::load(scratch.add(a / 2 * L::N));
                                let b = L::load(scratch.add(b / 2 * L::N));
                                a.joined(b, $early, $late).store(to.add(p * cols));
                            }
                        },)*
                    }
                };
            }
            join!(false false, false true, true false, true true);
            for p in pairs..here {
                let word = if L::TAKEN == 1 { p * taps + t } else { (2 * p * taps + t) / 2 };
                // SAFETY: as above.
                unsafe {
                    let mut a = L::load(scratch.add(word * L::N));
                    if L::TAKEN == 2 {
                        a = a.joined(L::zero(), t % 2 == 1, false);
                    }
                    a.store(to.add(p * cols));
                }
            }
        }
    }
}
