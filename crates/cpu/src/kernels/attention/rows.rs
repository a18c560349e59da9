//! Rows of scores: the loops between the products, for vectors of each tier.

// Loops go by index over arrays: what the compiler is sure to unroll, and so to keep in registers.
#![allow(clippy::needless_range_loop)]

use super::vector::{LANES, Rows, Vector};
use crate::element::{Float, Wide};
use crate::rows::real::bf16_bits;
use crate::tier::Loop;
use headwater_core::random::Stream;

/// A slice of whole groups.
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

/// Writes `rest` behind the first `n` of a group.
#[inline(always)]
fn end<V: Vector>(group: &mut [V::E; LANES], n: usize, rest: V::E) {
    let (n, rest) = (V::splat(V::E::from_f64(n as f64)), V::splat(rest));
    for i in 0..V::PARTS {
        let x = V::load(group, i);
        V::numbers(i).less(n, x, rest).store(group, i);
    }
}

/// `scores = scores · factor + added`.
#[inline(always)]
fn add<V: Vector>(scores: &mut [V::E], factor: V::E, added: &[V::E]) {
    let factor = V::splat(factor);
    for (s, m) in whole_mut(scores).iter_mut().zip(whole(added)) {
        for i in 0..V::PARTS {
            V::load(s, i).mul(factor).add(V::load(m, i)).store(s, i);
        }
    }
}

/// `x = x · y`.
#[inline(always)]
fn times<V: Vector>(x: &mut [V::E], y: &[V::E]) {
    for (x, y) in whole_mut(x).iter_mut().zip(whole(y)) {
        for i in 0..V::PARTS {
            V::load(x, i).mul(V::load(y, i)).store(x, i);
        }
    }
}

/// `scores = scores · factor`, −∞ behind the first `n`, and the largest of them; what is not a number does not count.
#[inline(always)]
fn largest<V: Vector>(scores: &mut [V::E], n: usize, factor: V::E) -> V::E {
    let factor = V::splat(factor);
    let mut most = [V::splat(V::E::NEG_INFINITY); LANES];
    let Some((last, others)) = whole_mut(scores).split_last_mut() else { return V::E::NEG_INFINITY };
    let n = n - others.len() * LANES;
    for s in others {
        for i in 0..V::PARTS {
            let x = V::load(s, i).mul(factor);
            x.store(s, i);
            most[i] = x.larger(most[i]);
        }
    }
    for i in 0..V::PARTS {
        V::load(last, i).mul(factor).store(last, i);
    }
    end::<V>(last, n, V::E::NEG_INFINITY);
    for i in 0..V::PARTS {
        most[i] = V::load(last, i).larger(most[i]);
    }
    V::largest(most)
}

/// The online softmax of one query over one block of keys. Slices are of whole groups, more than `n` by less than one.
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

impl<W: Wide> Rows<W> for Softmax<'_, W> {
    /// Largest score and sum of the weights with this block.
    type Out = (W, W);

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) -> (W, W) {
        let (before, total) = self.state;
        let mut factor = self.factor;
        if let Some(added) = self.added {
            add::<V>(self.scores, factor, added);
            factor = W::ONE;
        }
        let here = largest::<V>(self.scores, self.n, factor);
        let largest = if here > before { here } else { before };
        // Where no key is seen, the weights are 0, unless a score is not a number.
        let shift = if largest == W::NEG_INFINITY { W::ZERO } else { largest };
        let mut sums = [V::splat(W::ZERO); LANES];
        let less = V::splat(shift);
        for s in whole_mut(self.scores) {
            for i in 0..V::PARTS {
                let x = V::load(s, i).sub(less).exp_nonpos();
                x.store(s, i);
                sums[i] = sums[i].add(x);
            }
        }
        if let Some(kept) = self.kept {
            times::<V>(self.scores, kept);
        }
        let sum = V::total(sums);
        if self.first {
            return (largest, sum);
        }
        let fade = (before - shift).exp();
        if fade != W::ONE {
            Times { x: self.out, factor: fade }.run::<V>();
        }
        (largest, total * fade + sum)
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

impl<W: Wide> Rows<W> for Slopes<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        let mut factor = self.factor;
        if let Some(added) = self.added {
            add::<V>(self.scores, factor, added);
            factor = W::ONE;
        }
        // A query without keys has weights of 0.
        let log = if self.log == W::NEG_INFINITY { -W::NEG_INFINITY } else { self.log };
        let (factor, log) = (V::splat(factor), V::splat(log));
        let (through, by) = (V::splat(self.through), V::splat(self.times));
        let (scores, slopes) = (whole_mut(self.scores), whole_mut(self.slopes));
        match self.kept.map(whole) {
            None => {
                for (s, d) in scores.iter_mut().zip(slopes.iter_mut()) {
                    for i in 0..V::PARTS {
                        let weight = V::load(s, i).mul(factor).sub(log).exp_nonpos();
                        weight.store(s, i);
                        weight.mul(V::load(d, i).sub(through)).mul(by).store(d, i);
                    }
                }
            }
            Some(kept) => {
                for ((s, d), k) in scores.iter_mut().zip(slopes.iter_mut()).zip(kept) {
                    for i in 0..V::PARTS {
                        let weight = V::load(s, i).mul(factor).sub(log).exp_nonpos();
                        let k = V::load(k, i);
                        weight.mul(k).store(s, i);
                        weight.mul(k.mul(V::load(d, i)).sub(through)).mul(by).store(d, i);
                    }
                }
            }
        }
        // Of keys that are not seen there is nothing, whatever the query's numbers are.
        for line in [scores, slopes] {
            if let Some((last, others)) = line.split_last_mut() {
                end::<V>(last, self.n - others.len() * LANES, W::ZERO);
            }
        }
    }
}

/// `Σ a · b`.
pub(super) struct Dot<'a, W> {
    pub a: &'a [W],
    pub b: &'a [W],
}

impl<W: Wide> Rows<W> for Dot<'_, W> {
    type Out = W;

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) -> W {
        let ((a, a_rest), (b, b_rest)) = (self.a.as_chunks::<LANES>(), self.b.as_chunks::<LANES>());
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
        V::total(sums)
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

/// Weights and slopes of two queries rounded to bf16, for products that sum pairs: `weights` become pairs of both queries'
/// weights, and of both their slopes; each query's `slopes` pairs of neighbours, in the first half of their row.
pub(super) struct Paired<'a, W> {
    pub weights: (&'a mut [W], &'a mut [W]),
    pub slopes: (&'a mut [W], &'a mut [W]),
    /// Columns, in whole groups.
    pub n: usize,
}

impl<W: Wide> Loop for Paired<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let lines = [self.weights.0, self.weights.1, self.slopes.0, self.slopes.1];
        assert!(lines.iter().all(|l| size_of_val(&**l) >= self.n * size_of::<u32>()));
        // Pairs take the place of floats of 32 bits.
        let lines = lines.map(|l| l.as_mut_ptr().cast::<[f32; LANES]>());
        for at in 0..self.n / LANES {
            let mut bits = [[0; LANES]; 4];
            for i in 0..4 {
                // SAFETY: a group of each line, which are as long; all bits are numbers.
                let group = unsafe { lines[i].add(at).read() };
                for j in 0..LANES {
                    bits[i][j] = bf16_bits(group[j]);
                }
            }
            for (i, [one, two]) in [(0, [0, 1]), (1, [2, 3])] {
                let mut pairs = [0; LANES];
                for j in 0..LANES {
                    pairs[j] = bits[one][j] as u32 | (bits[two][j] as u32) << 16;
                }
                // SAFETY: as above.
                unsafe { lines[i].cast::<[u32; LANES]>().add(at).write(pairs) };
            }
            for i in 2..4 {
                // SAFETY: as above; they take half the room of those that were read.
                unsafe { lines[i].cast::<[u16; LANES]>().add(at).write(bits[i]) };
            }
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

#[cfg(test)]
mod tests {
    use super::super::vector;
    use super::*;
    use crate::tier::Tier;

    /// Numbers of a row, special ones among them from the row's number on.
    fn numbers(row: usize, n: usize) -> Vec<f32> {
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MIN, 1e-40];
        (0..n)
            .map(|i| match row.checked_sub(5) {
                Some(s) if i % 11 == s => special[s % 7],
                _ => ((i * 7919 + row * 31) % 2003) as f32 / 150.0 - 6.0,
            })
            .collect()
    }

    /// Everything that rows of `n` numbers become.
    fn results(tier: Tier, row: usize, n: usize) -> Vec<f32> {
        let whole = n.next_multiple_of(LANES);
        let (x, y) = (numbers(row, whole), numbers(row / 2, whole));
        let mut all = Vec::new();
        for (added, kept) in [(None, None), (Some(&y[..]), None), (None, Some(&y[..]))] {
            let (mut scores, mut out) = (x.clone(), numbers(row, n));
            let softmax = |scores, out, first| Softmax {
                scores,
                n,
                factor: 0.3,
                added,
                kept,
                state: (0.5, 2.0),
                out,
                first,
            };
            let (largest, sum) = vector::run(tier, softmax(&mut scores, &mut out, row.is_multiple_of(2)));
            all.extend([largest, sum]);
            all.extend(scores.iter().chain(&out));
            let (mut scores, mut slopes) = (x.clone(), y.clone());
            let (log, through) = (if row == 1 { f32::NEG_INFINITY } else { 1.5 }, 0.25);
            let (s, d) = (&mut scores, &mut slopes);
            let row = Slopes { scores: s, slopes: d, n, factor: 0.3, times: -0.7, added, kept, log, through };
            vector::run(tier, row);
            all.extend(scores.iter().chain(&slopes));
        }
        all.push(vector::run(tier, Dot { a: &x[..n], b: &y[..n] }));
        let mut times = x[..n].to_vec();
        vector::run(tier, Times { x: &mut times, factor: 1.1 });
        all.extend(times);
        all
    }

    #[test]
    fn every_tier_gives_the_same_bits() {
        for (row, n) in (0..12).flat_map(|row| (1..=49).map(move |n| (row, n))) {
            let want = results(Tier::Portable, row, n);
            for tier in Tier::ALL.into_iter().filter(|t| *t <= Tier::detect()) {
                let got = results(tier, row, n);
                for (i, (a, b)) in got.iter().zip(&want).enumerate() {
                    let same = a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    assert!(same, "{}: number {i} of row {row} of {n} is {a}, not {b}", tier.name());
                }
            }
        }
    }
}
