//! Rows of scores: the loops between the products, written to vectorise and compiled for each tier.

// Loops go by index over arrays: what the compiler is sure to turn into vectors.
#![allow(clippy::needless_range_loop)]

use crate::element::{self, Wide};
use crate::tier::Loop;
use headwater_core::random::Stream;

/// Lanes of sums and maxima. The same in every tier, so that all give the same bits.
const LANES: usize = 16;

/// A slice of whole lanes.
#[inline(always)]
fn whole<W>(x: &[W]) -> &[[W; LANES]] {
    let (chunks, rest) = x.as_chunks();
    debug_assert!(rest.is_empty());
    chunks
}

#[inline(always)]
fn whole_mut<W>(x: &mut [W]) -> &mut [[W; LANES]] {
    let (chunks, rest) = x.as_chunks_mut();
    debug_assert!(rest.is_empty());
    chunks
}

/// Writes zeros behind the first `n`.
#[inline(always)]
fn end<W: Wide>(line: &mut [W], n: usize) {
    if let Some((last, others)) = whole_mut(line).split_last_mut() {
        let before = others.len() * LANES;
        for j in 0..LANES {
            last[j] = if before + j < n { last[j] } else { W::ZERO };
        }
    }
}

/// `scores = scores · factor + added`.
#[inline(always)]
fn add<W: Wide>(scores: &mut [W], factor: W, added: &[W]) {
    for (s, m) in whole_mut(scores).iter_mut().zip(whole(added)) {
        let m = *m;
        for j in 0..LANES {
            s[j] = s[j] * factor + m[j];
        }
    }
}

/// `scores = scores · factor`, −∞ behind the first `n`, and the largest of them; what is not a number does not count.
#[inline(always)]
fn largest<W: Wide>(scores: &mut [W], n: usize, factor: W) -> W {
    let mut lanes = [W::NEG_INFINITY; LANES];
    let Some((last, others)) = whole_mut(scores).split_last_mut() else { return W::NEG_INFINITY };
    let before = others.len() * LANES;
    for s in others {
        for j in 0..LANES {
            s[j] *= factor;
            lanes[j] = if s[j] > lanes[j] { s[j] } else { lanes[j] };
        }
    }
    for j in 0..LANES {
        last[j] = if before + j < n { last[j] * factor } else { W::NEG_INFINITY };
        lanes[j] = if last[j] > lanes[j] { last[j] } else { lanes[j] };
    }
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for j in 0..n {
            lanes[j] = if lanes[j + n] > lanes[j] { lanes[j + n] } else { lanes[j] };
        }
    }
    lanes[0]
}

/// The online softmax of one query over one block of keys. Slices are of whole lanes, more than `n` by less than one.
pub(super) struct Softmax<'a, W> {
    /// Products of query and keys; becomes the weights, not yet divided by their sum.
    pub scores: &'a mut [W],
    /// Keys that the query sees.
    pub n: usize,
    pub factor: W,
    /// Mask.
    pub added: Option<&'a [W]>,
    /// Factors of dropout.
    pub kept: Option<&'a [W]>,
    /// Largest score so far, and the sum of the weights.
    pub state: (W, W),
    /// The query's sum of values so far, of any length.
    pub out: &'a mut [W],
    /// Whether nothing came before.
    pub first: bool,
}

impl<W: Wide> Loop for Softmax<'_, W> {
    /// Largest score and sum of the weights with this block.
    type Out = (W, W);

    #[inline(always)]
    fn run(self) -> (W, W) {
        let (before, total) = self.state;
        let mut factor = self.factor;
        if let Some(added) = self.added {
            add(self.scores, factor, added);
            factor = W::ONE;
        }
        let here = largest(self.scores, self.n, factor);
        let largest = if here > before { here } else { before };
        // Where no key is seen, the weights are 0, unless a score is not a number.
        let shift = if largest == W::NEG_INFINITY { W::ZERO } else { largest };
        let mut lanes = [W::ZERO; LANES];
        for s in whole_mut(self.scores) {
            for j in 0..LANES {
                s[j] = (s[j] - shift).weight();
                lanes[j] += s[j];
            }
        }
        if let Some(kept) = self.kept {
            let (scores, kept) = (whole_mut(self.scores), whole(kept));
            for i in 0..scores.len() {
                let (s, k) = (&mut scores[i], &kept[i]);
                for j in 0..LANES {
                    s[j] *= k[j];
                }
            }
        }
        if self.first {
            return (largest, element::total(lanes, LANES));
        }
        let fade = (before - shift).exp();
        if fade != W::ONE {
            Times { x: self.out, factor: fade }.run();
        }
        (largest, total * fade + element::total(lanes, LANES))
    }
}

/// The gradient of the scores of one query with one block of keys. Slices as in [`Softmax`].
pub(super) struct Slopes<'a, W> {
    /// Products of query and keys; becomes the weights, dropout included.
    pub scores: &'a mut [W],
    /// Products of the output's gradient and the values; becomes the scores' gradient times `times`.
    pub slopes: &'a mut [W],
    pub n: usize,
    pub factor: W,
    pub times: W,
    pub added: Option<&'a [W]>,
    pub kept: Option<&'a [W]>,
    /// Logarithm of the sum of the weights.
    pub log: W,
    /// Product of the output's gradient and the output.
    pub through: W,
}

impl<W: Wide> Loop for Slopes<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Slopes { mut factor, times, through, .. } = self;
        if let Some(added) = self.added {
            add(self.scores, factor, added);
            factor = W::ONE;
        }
        // A query without keys has weights of 0.
        let log = if self.log == W::NEG_INFINITY { -W::NEG_INFINITY } else { self.log };
        let (scores, slopes) = (whole_mut(self.scores), whole_mut(self.slopes));
        match self.kept.map(whole) {
            None => {
                for i in 0..scores.len() {
                    let (s, d) = (&mut scores[i], &mut slopes[i]);
                    for j in 0..LANES {
                        s[j] = (s[j] * factor - log).weight();
                        d[j] = s[j] * (d[j] - through) * times;
                    }
                }
            }
            Some(kept) => {
                for i in 0..scores.len() {
                    let (s, d, k) = (&mut scores[i], &mut slopes[i], &kept[i]);
                    for j in 0..LANES {
                        let weight = (s[j] * factor - log).weight();
                        d[j] = weight * (k[j] * d[j] - through) * times;
                        s[j] = weight * k[j];
                    }
                }
            }
        }
        // Of keys that are not seen there is nothing, whatever the query's numbers are.
        end(self.scores, self.n);
        end(self.slopes, self.n);
    }
}

/// `Σ a · b`.
pub(super) struct Dot<'a, W> {
    pub a: &'a [W],
    pub b: &'a [W],
}

impl<W: Wide> Loop for Dot<'_, W> {
    type Out = W;

    #[inline(always)]
    fn run(self) -> W {
        let mut lanes = [W::ZERO; LANES];
        let ((a, a_rest), (b, b_rest)) = (self.a.as_chunks::<LANES>(), self.b.as_chunks::<LANES>());
        for i in 0..a_rest.len() {
            lanes[i] = a_rest[i] * b_rest[i];
        }
        for i in 0..a.len() {
            let (x, y) = (&a[i], &b[i]);
            for j in 0..LANES {
                lanes[j] += x[j] * y[j];
            }
        }
        element::total(lanes, LANES)
    }
}

/// `x · factor`.
pub(super) struct Times<'a, W> {
    pub x: &'a mut [W],
    pub factor: W,
}

impl<W: Wide> Loop for Times<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for x in self.x {
            *x *= self.factor;
        }
    }
}

/// Factors of dropout of consecutive weights: `scale` where the word's upper 24 bits are less than `below`, else 0.
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
