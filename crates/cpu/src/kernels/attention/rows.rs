//! Rows of scores: the loops between the products, for vectors of each tier.

// Loops go by index over arrays: what the compiler is sure to unroll, and so to keep in registers.
#![allow(clippy::needless_range_loop)]

use super::LINE;
use super::vector::{LANES, Rows, Vector};
use crate::element::{Float, Wide};
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

/// Whole groups of scores that all rows have which see so many: as far as that they are gone through together, for what is done
/// to one does not wait for what is done to the others.
#[inline(always)]
fn together<const ROWS: usize>(n: [usize; ROWS]) -> usize {
    let mut least = n[0];
    for r in 1..ROWS {
        least = least.min(n[r]);
    }
    least / LANES
}

/// Part `i` of a group of a row of scores.
#[inline(always)]
fn score<V: Vector>(scores: &[V::E], row: usize, group: usize, i: usize) -> V {
    V::load(&whole(&scores[row * LINE..][..LINE])[group], i)
}

/// The largest of the first `n` scores times `factor` of each of some rows; what is not a number does not count.
#[inline(always)]
fn largest<V: Vector, const ROWS: usize>(scores: &[V::E], n: [usize; ROWS], factor: V::E) -> [V::E; ROWS] {
    let factor = V::splat(factor);
    let mut most = [[V::splat(V::E::NEG_INFINITY); LANES]; ROWS];
    let together = together(n);
    for g in 0..together {
        for r in 0..ROWS {
            for i in 0..V::PARTS {
                most[r][i] = score::<V>(scores, r, g, i).mul(factor).larger(most[r][i]);
            }
        }
    }
    let mut found = [V::E::NEG_INFINITY; ROWS];
    for r in 0..ROWS {
        for g in together..n[r].div_ceil(LANES) {
            let left = V::splat(V::E::from_f64((n[r] - g * LANES) as f64));
            for i in 0..V::PARTS {
                let x = score::<V>(scores, r, g, i).mul(factor);
                let x = V::numbers(i).less(left, x, V::splat(V::E::NEG_INFINITY));
                most[r][i] = x.larger(most[r][i]);
            }
        }
        found[r] = V::largest(most[r]);
    }
    found
}

/// The first `n` scores of some rows become weights, e to the power of the score times `factor` less `shift`, and then what `f`
/// makes of a weight, given its row, group and part; rounded to bf16 if those are wanted; 0 behind them. Gives the sums of the
/// weights.
#[inline(always)]
fn weigh<V: Vector, const ROWS: usize, const HALVES: bool>(
    scores: &mut [V::E],
    n: [usize; ROWS],
    factor: V::E,
    shift: [V::E; ROWS],
    f: impl Fn(V, usize, usize, usize) -> V,
) -> [V::E; ROWS] {
    let factor = V::splat(factor);
    let mut less = [factor; ROWS];
    for r in 0..ROWS {
        less[r] = V::splat(-shift[r]);
    }
    let mut sums = [[V::splat(V::E::ZERO); LANES]; ROWS];
    let together = together(n);
    for g in 0..together {
        for r in 0..ROWS {
            for i in 0..V::PARTS {
                let x = score::<V>(scores, r, g, i).mul_add(factor, less[r]).exp_nonpos();
                sums[r][i] = sums[r][i].add(x);
                write::<V, HALVES>(f(x, r, g, i), scores, r, g, i);
            }
        }
    }
    let mut totals = [V::E::ZERO; ROWS];
    for r in 0..ROWS {
        for g in together..n[r].div_ceil(LANES) {
            let left = V::splat(V::E::from_f64((n[r] - g * LANES) as f64));
            for i in 0..V::PARTS {
                let x = score::<V>(scores, r, g, i).mul_add(factor, less[r]).exp_nonpos();
                let x = V::numbers(i).less(left, x, V::splat(V::E::ZERO));
                sums[r][i] = sums[r][i].add(x);
                write::<V, HALVES>(f(x, r, g, i), scores, r, g, i);
            }
        }
        totals[r] = V::total(sums[r]);
    }
    totals
}

/// Writes part `i` of a group of a row of weights, which may be rounded to bf16: these take the place of scores before them.
#[inline(always)]
fn write<V: Vector, const HALVES: bool>(x: V, scores: &mut [V::E], row: usize, group: usize, i: usize) {
    let scores = &mut scores[row * LINE..][..LINE];
    if HALVES {
        x.round(halves_mut(scores, group), i);
    } else {
        x.store(&mut whole_mut(scores)[group], i);
    }
}

/// A group of bf16 in the place of floats of 32 bits, twice as many as they were.
#[inline(always)]
fn halves_mut<W: Wide>(x: &mut [W], group: usize) -> &mut [u16; LANES] {
    &mut bytemuck::cast_slice_mut::<W, u16>(x).as_chunks_mut().0[group]
}

/// Queries whose scores become weights together.
pub(super) const GROUP: usize = 4;

/// A query whose scores with some keys become weights.
#[derive(Clone, Copy, Default)]
pub(super) struct Query<W> {
    /// Keys that it sees.
    pub n: usize,
    /// Weights that are read of it, of keys not seen among them.
    pub width: usize,
    /// Its largest score so far.
    pub largest: W,
    /// The sum of its weights so far.
    pub sum: W,
}

/// Numbers for the scores of some queries: those of the first one, and how far it is to the next one's.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a, W>(pub &'a [W], pub usize);

impl<'a, W> Lines<'a, W> {
    /// Those of the first `n` keys, in whole groups.
    #[inline(always)]
    fn row(self, row: usize, n: usize) -> &'a [W] {
        &self.0[row * self.1..][..n.next_multiple_of(LANES)]
    }
}

/// The online softmax of some queries over one block of keys.
pub(super) struct Softmax<'a, W, F> {
    /// Products of queries and keys, in rows of [`LINE`] numbers; become the weights, not yet divided by their sum.
    pub scores: &'a mut [W],
    /// At most [`GROUP`].
    pub queries: &'a mut [Query<W>],
    pub factor: W,
    /// Mask.
    pub added: Option<Lines<'a, W>>,
    /// Factors of dropout.
    pub kept: Option<Lines<'a, W>>,
    /// The sum of values of each query so far, of any length, unless nothing came before.
    pub sums: Option<F>,
    /// Whether weights are rounded to bf16; they are then in the first half of their row.
    pub halves: bool,
}

impl<'o, W: Wide, F: Fn(usize) -> &'o mut [W]> Rows<W> for Softmax<'_, W, F> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        let mut factor = self.factor;
        if let Some(added) = self.added {
            for (r, q) in self.queries.iter().enumerate() {
                let added = added.row(r, q.n);
                add::<V>(&mut self.scores[r * LINE..][..added.len()], factor, added);
            }
            factor = W::ONE;
        }
        let (scores, sums) = (self.scores, self.sums.as_ref());
        let (kept, halves) = (self.kept, self.halves);
        if let Ok(queries) = <&mut [_; GROUP]>::try_from(&mut *self.queries) {
            step::<V, GROUP, F>(scores, queries, factor, kept, sums, halves);
        } else {
            for (r, query) in self.queries.iter_mut().enumerate() {
                let kept = kept.map(|k| Lines(&k.0[r * k.1..], 0));
                let sums = sums.map(|sums| move |_| sums(r));
                let (scores, query) = (&mut scores[r * LINE..], std::array::from_mut(query));
                step::<V, 1, _>(scores, query, factor, kept, sums.as_ref(), halves);
            }
        }
    }
}

/// What [`Softmax`] does to the scores of a number of queries known to the compiler, but for adding a mask.
#[inline(always)]
fn step<'o, V: Vector<E: 'o>, const ROWS: usize, F: Fn(usize) -> &'o mut [V::E]>(
    scores: &mut [V::E],
    queries: &mut [Query<V::E>; ROWS],
    factor: V::E,
    kept: Option<Lines<V::E>>,
    sums: Option<&F>,
    halves: bool,
) {
    let mut n = [0; ROWS];
    for r in 0..ROWS {
        n[r] = queries[r].n;
    }
    let here = largest::<V, ROWS>(scores, n, factor);
    let mut shift = [V::E::ZERO; ROWS];
    let mut before = shift;
    for (r, q) in queries.iter_mut().enumerate() {
        before[r] = q.largest;
        if here[r] > q.largest {
            q.largest = here[r];
        }
        // Where no key is seen, the weights are 0, unless a score is not a number; those of an infinite score are none.
        if q.largest != V::E::NEG_INFINITY {
            shift[r] = q.largest + (q.largest - q.largest);
        }
    }
    let keep = |x: V, k: Lines<V::E>, row: usize, g: usize, i: usize| {
        x.mul(V::load(&whole(&k.0[row * k.1 + g * LANES..][..LANES])[0], i))
    };
    let totals = match (kept, halves) {
        (None, false) => weigh::<V, ROWS, false>(scores, n, factor, shift, |x, _, _, _| x),
        (None, true) => weigh::<V, ROWS, true>(scores, n, factor, shift, |x, _, _, _| x),
        (Some(k), false) => {
            weigh::<V, ROWS, false>(scores, n, factor, shift, |x, r, g, i| keep(x, k, r, g, i))
        }
        (Some(k), true) => weigh::<V, ROWS, true>(scores, n, factor, shift, |x, r, g, i| keep(x, k, r, g, i)),
    };
    for (r, q) in queries.iter_mut().enumerate() {
        match sums {
            Some(sums) if q.n > 0 => {
                let fade = (before[r] - shift[r]).exp();
                if fade != V::E::ONE {
                    Times { x: sums(r), factor: fade }.run::<V>();
                }
                q.sum = q.sum * fade + totals[r];
            }
            Some(_) => {}
            None => q.sum = totals[r],
        }
        // Other queries of a register tile see more.
        let row = &mut scores[r * LINE..][..LINE];
        for g in q.n.div_ceil(LANES)..q.width.div_ceil(LANES) {
            if halves {
                *halves_mut(row, g) = [0; LANES];
            } else {
                whole_mut(row)[g] = [V::E::ZERO; LANES];
            }
        }
    }
}

/// What is left to do when all keys were seen: each sum of values is divided by the sum of its weights, whose logarithm is added
/// to the largest score. Where no key was seen these are 0 and −∞.
pub(super) struct Shares<'a, W, F> {
    /// Of each query; becomes the logarithm.
    pub largest: &'a mut [W],
    /// Sums of weights.
    pub totals: &'a [W],
    /// The sum of values of each query.
    pub sums: F,
}

impl<'o, W: Wide, F: Fn(usize) -> &'o mut [W]> Rows<W> for Shares<'_, W, F> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        for (row, &total) in self.totals.iter().enumerate() {
            let x = (self.sums)(row);
            if total == W::ZERO {
                x.fill(W::ZERO);
            } else {
                Times { x, factor: W::ONE / total }.run::<V>();
            }
        }
        // The largest weight of a query is 1, but for a rounding.
        let none = V::splat(W::from_f64(0.5));
        for (largest, totals) in self.largest.chunks_mut(LANES).zip(self.totals.chunks(LANES)) {
            let n = totals.len();
            let (mut most, mut sums) = ([W::ZERO; LANES], [W::ONE; LANES]);
            most[..n].copy_from_slice(largest);
            sums[..n].copy_from_slice(totals);
            for i in 0..V::PARTS {
                let sum = V::load(&sums, i);
                let log = V::load(&most, i).add(sum.ln());
                sum.less(none, V::splat(W::NEG_INFINITY), log).store(&mut most, i);
            }
            largest.copy_from_slice(&most[..n]);
        }
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
        let (factor, less) = (V::splat(factor), V::splat(-log));
        let (through, by) = (V::splat(self.through), V::splat(self.times));
        let (scores, slopes) = (whole_mut(self.scores), whole_mut(self.slopes));
        match self.kept.map(whole) {
            None => {
                for (s, d) in scores.iter_mut().zip(slopes.iter_mut()) {
                    for i in 0..V::PARTS {
                        let weight = V::load(s, i).mul_add(factor, less).exp_nonpos();
                        weight.store(s, i);
                        weight.mul(V::load(d, i).sub(through)).mul(by).store(d, i);
                    }
                }
            }
            Some(kept) => {
                for ((s, d), k) in scores.iter_mut().zip(slopes.iter_mut()).zip(kept) {
                    for i in 0..V::PARTS {
                        let weight = V::load(s, i).mul_add(factor, less).exp_nonpos();
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

/// Weights and slopes of two queries rounded to bf16, for products that sum pairs: `weights` become pairs of both queries'
/// weights, and of both their slopes; each query's `slopes` pairs of neighbours, in the first half of their row.
pub(super) struct Paired<'a, W> {
    pub weights: (&'a mut [W], &'a mut [W]),
    pub slopes: (&'a mut [W], &'a mut [W]),
    /// Columns, in whole groups.
    pub n: usize,
}

impl<W: Wide> Rows<W> for Paired<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        let lines = [self.weights.0, self.weights.1, self.slopes.0, self.slopes.1];
        for g in 0..self.n / LANES {
            for i in 0..V::PARTS {
                let load = |line: usize| V::load(&lines[line].as_chunks().0[g], i);
                let (w, x, d, e) = (load(0), load(1), load(2), load(3));
                w.round_pairs(x, pairs_mut(lines[0], g), i);
                d.round_pairs(e, pairs_mut(lines[1], g), i);
                d.round(halves_mut(lines[2], g), i);
                e.round(halves_mut(lines[3], g), i);
            }
        }
    }
}

/// A group of pairs of bf16 in the place of as many floats of 32 bits.
#[inline(always)]
fn pairs_mut<W: Wide>(x: &mut [W], group: usize) -> &mut [u32; LANES] {
    &mut bytemuck::cast_slice_mut::<W, u32>(x).as_chunks_mut().0[group]
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
            // Dropout's factors make subnormal numbers, which may be rounded either way.
            for (queries, halves) in
                [(1, false), (GROUP, false), (1, kept.is_none()), (GROUP, kept.is_none())]
            {
                let mut scores: Vec<f32> = (0..GROUP).flat_map(|r| numbers(row + r, LINE)).collect();
                let mut out: Vec<f32> = numbers(row, GROUP * n);
                let mut seen: Vec<Query<f32>> = (0..queries)
                    .map(|r| Query { n: n.saturating_sub(7 * r), width: n, largest: 0.5, sum: 2.0 })
                    .collect();
                let sums = out.as_mut_ptr();
                // SAFETY: a row of the sums, one at a time.
                let sums = |r: usize| unsafe { std::slice::from_raw_parts_mut(sums.add(r * n), n) };
                let (added, kept) = (added.map(|x| Lines(x, 0)), kept.map(|x| Lines(x, 0)));
                let sums = (!row.is_multiple_of(2)).then_some(sums);
                let (scores_, queries) = (&mut scores[..], &mut seen[..]);
                let factor = 0.3;
                let softmax = Softmax { scores: scores_, queries, factor, added, kept, sums, halves };
                vector::run(tier, softmax);
                all.extend(seen.iter().flat_map(|q| [q.largest, q.sum]));
                all.extend(scores.iter().chain(&out));
            }
            let (mut scores, mut slopes) = (x.clone(), y.clone());
            let (log, through) = (if row == 1 { f32::NEG_INFINITY } else { 1.5 }, 0.25);
            let (s, d) = (&mut scores, &mut slopes);
            let row = Slopes { scores: s, slopes: d, n, factor: 0.3, times: -0.7, added, kept, log, through };
            vector::run(tier, row);
            all.extend(scores.iter().chain(&slopes));
        }
        let normal = |x: f32| if x.is_subnormal() { 0.0 } else { x };
        let mut lines =
            [0, 1, 2, 3].map(|i| numbers(row + i, whole).into_iter().map(normal).collect::<Vec<_>>());
        let [w, v, d, e] = &mut lines;
        vector::run(tier, Paired { weights: (w, v), slopes: (d, e), n: whole });
        all.extend(lines.iter().flatten().map(|x| x.to_bits() as f32));
        let mut dot = [0.0];
        vector::run(tier, Dots { rows: |_| [&x[..n], &y[..n]], out: &mut dot });
        all.extend(dot);
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
