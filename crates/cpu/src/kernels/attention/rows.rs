//! Rows of scores: what the loops between the products have in common, for vectors of each tier.

// Loops go by index over arrays: what the compiler is sure to unroll, and so to keep in registers.
#![allow(clippy::needless_range_loop)]

use super::LINE;
use crate::element::Wide;
use crate::kernels::vector::{LANES, Rows, Vector};
use crate::tier::Loop;
use headwater_core::random::Stream;

/// A slice of whole groups.
#[inline(always)]
pub(super) fn whole<W>(x: &[W]) -> &[[W; LANES]] {
    let (chunks, rest) = x.as_chunks();
    debug_assert!(rest.is_empty());
    chunks
}

#[inline(always)]
pub(super) fn whole_mut<W>(x: &mut [W]) -> &mut [[W; LANES]] {
    let (chunks, rest) = x.as_chunks_mut();
    debug_assert!(rest.is_empty());
    chunks
}

/// Whole groups of scores that all rows have which see so many. Up to there they are processed jointly,
/// because work on one does not depend on the others.
#[inline(always)]
pub(super) fn together<const ROWS: usize>(n: [usize; ROWS]) -> usize {
    let mut least = n[0];
    for r in 1..ROWS {
        least = least.min(n[r]);
    }
    least / LANES
}

/// Part `i` of a group of a row of scores.
#[inline(always)]
pub(super) fn score<V: Vector>(scores: &[V::E], row: usize, group: usize, i: usize) -> V {
    V::load(&whole(&scores[row * LINE..][..LINE])[group], i)
}

/// A group of bf16 in the place of floats of 32 bits, twice as many as they were.
#[inline(always)]
pub(super) fn halves_mut<W: Wide>(x: &mut [W], group: usize) -> &mut [u16; LANES] {
    &mut bytemuck::cast_slice_mut::<W, u16>(x).as_chunks_mut().0[group]
}

/// Numbers for the scores of some queries: those of the first one, and how far it is to the next one's.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a, W>(pub &'a [W], pub usize);

impl<'a, W> Lines<'a, W> {
    /// Scores of the first `n` keys, in whole groups.
    #[inline(always)]
    pub fn row(self, row: usize, n: usize) -> &'a [W] {
        &self.0[row * self.1..][..n.next_multiple_of(LANES)]
    }
}

/// `scores = scores · factor + added`.
#[inline(always)]
pub(super) fn add<V: Vector>(scores: &mut [V::E], factor: V::E, added: &[V::E]) {
    let factor = V::splat(factor);
    for (s, m) in whole_mut(scores).iter_mut().zip(whole(added)) {
        for i in 0..V::PARTS {
            V::load(s, i).mul(factor).add(V::load(m, i)).store(s, i);
        }
    }
}

/// `Σ a · b` of each pair of rows.
pub(super) struct Dots<'a, W, F> {
    /// Both rows of a number.
    pub rows: F,
    pub out: &'a mut [W],
}

impl<'x, W: Wide, F: Fn(usize) -> [&'x [W]; 2]> Rows<W> for Dots<'_, W, F> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        for (row, out) in self.out.iter_mut().enumerate() {
            let [a, b] = (self.rows)(row);
            let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
            let mut first = [W::ZERO; LANES];
            for i in 0..a_rest.len() {
                first[i] = a_rest[i] * b_rest[i];
            }
            let mut sums = [V::splat(W::ZERO); LANES];
            for i in 0..V::PARTS {
                sums[i] = V::load(&first, i);
            }
            for (a, b) in a.iter().zip(b) {
                for i in 0..V::PARTS {
                    sums[i] = sums[i].add(V::load(a, i).mul(V::load(b, i)));
                }
            }
            *out = V::total(sums);
        }
    }
}

/// `x · factor`.
pub(super) struct Times<'a, W> {
    pub x: &'a mut [W],
    pub factor: W,
}

impl<W: Wide> Rows<W> for Times<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        let (groups, rest) = self.x.as_chunks_mut::<LANES>();
        let factor = V::splat(self.factor);
        for x in groups {
            for i in 0..V::PARTS {
                V::load(x, i).mul(factor).store(x, i);
            }
        }
        for x in rest {
            *x *= self.factor;
        }
    }
}

/// Factors of dropout of consecutive weights: `scale` where the word's upper 24 bits are less than `below`,
/// else 0.
pub(super) struct Kept<'a, W> {
    pub stream: Stream,
    /// Index of the first weight.
    pub first: u64,
    pub below: u32,
    pub scale: W,
    pub out: &'a mut [W],
}

impl<W: Wide> Loop for Kept<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let mut at = self.first;
        let mut out = self.out;
        while !out.is_empty() {
            let skip = (at % 4) as usize;
            let words = self.stream.blocks::<8>((at / 4) as u32);
            let n = (32 - skip).min(out.len());
            let (now, later) = out.split_at_mut(n);
            for (o, &word) in now.iter_mut().zip(&words.as_flattened()[skip..]) {
                *o = if word >> 8 < self.below { self.scale } else { W::ZERO };
            }
            (out, at) = (later, at + n as u64);
        }
    }
}
