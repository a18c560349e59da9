//! Gradients of weights become gradients of scores: the backward pass between its products.

// Loops go by index over arrays: what the compiler is sure to unroll, and so to keep in registers.
#![allow(clippy::needless_range_loop)]

use super::LINE;
use super::rows::{Lines, add, halves_mut, score, together, whole, whole_mut};
use crate::element::Wide;
use crate::kernels::vector::{LANES, Rows, Vector};

/// A query whose scores' gradient is made.
#[derive(Clone, Copy, Default)]
pub(super) struct Query<W> {
    /// Keys that it sees.
    pub n: usize,
    /// Its largest score.
    pub largest: W,
    /// The inverse of its softmax's denominator, 0 if that is 0.
    pub share: W,
    /// Product of its output and the output's gradient.
    pub through: W,
}

/// The gradient of the scores of two queries with one block of keys. The scores become the weights, dropout
/// included; the products of the output's gradient and the values become the scores' gradient times `times`.
/// For keys that are not seen both are 0, whatever the query's numbers are.
pub(super) struct Slopes<'a, W> {
    /// Products of queries and keys, in rows of [`LINE`] numbers.
    pub scores: &'a mut [W],
    /// Products of the output's gradient and values, in such rows.
    pub slopes: &'a mut [W],
    pub queries: [Query<W>; 2],
    /// Keys, in whole groups.
    pub width: usize,
    pub factor: W,
    pub times: W,
    /// Mask.
    pub added: Option<Lines<'a, W>>,
    /// Factors of dropout.
    pub kept: Option<Lines<'a, W>>,
    /// True if the results are rounded, as by [`Paired`].
    pub pairs: bool,
}

impl<W: Wide> Rows<W> for Slopes<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(mut self) {
        if let Some(added) = self.added {
            for r in 0..2 {
                let added = added.row(r, self.queries[r].n);
                add::<V>(&mut self.scores[r * LINE..][..added.len()], self.factor, added);
            }
            self.factor = W::ONE;
        }
        let kept = self.kept.map(|k| [whole(k.row(0, self.width)), whole(k.row(1, self.width))]);
        match (kept, self.pairs) {
            (None, false) => self.each::<V, false>(|weight, d, through, _, _, _| (weight, d.sub(through))),
            (None, true) => self.each::<V, true>(|weight, d, through, _, _, _| (weight, d.sub(through))),
            (Some(kept), false) => self.each::<V, false>(|weight, d, through, r, g, i| {
                let k = V::load(&kept[r][g], i);
                (weight.mul(k), k.mul(d).sub(through))
            }),
            (Some(kept), true) => self.each::<V, true>(|weight, d, through, r, g, i| {
                let k = V::load(&kept[r][g], i);
                (weight.mul(k), k.mul(d).sub(through))
            }),
        }
    }
}

impl<W: Wide> Slopes<'_, W> {
    /// Goes through both rows. `f` is given a weight, its gradient, the query's product, and their place. It
    /// makes the new weight, and its factor.
    #[inline(always)]
    fn each<V: Vector<E = W>, const PAIRS: bool>(self, f: impl Fn(V, V, V, usize, usize, usize) -> (V, V)) {
        let (factor, by) = (V::splat(self.factor), V::splat(self.times));
        let (mut less, mut share, mut through) = ([factor; 2], [factor; 2], [factor; 2]);
        for r in 0..2 {
            let largest = self.queries[r].largest;
            // A query without keys has weights of 0.
            less[r] = V::splat(if largest == W::NEG_INFINITY { largest } else { -largest });
            share[r] = V::splat(self.queries[r].share);
            through[r] = V::splat(self.queries[r].through);
        }
        let n = [self.queries[0].n, self.queries[1].n];
        let (scores, slopes) = (self.scores, self.slopes);
        let together = together(n);
        for g in 0..together {
            for i in 0..V::PARTS {
                let (mut weights, mut products) = ([factor; 2], [factor; 2]);
                for r in 0..2 {
                    let weight = score::<V>(scores, r, g, i).mul(factor).add(less[r]).exp_nonpos();
                    let weight = weight.mul(share[r]);
                    let (x, d) = f(weight, score::<V>(slopes, r, g, i), through[r], r, g, i);
                    (weights[r], products[r]) = (x, weight.mul(d).mul(by));
                }
                write::<V, PAIRS>(scores, slopes, g, i, weights, products);
            }
        }
        for g in together..self.width / LANES {
            for i in 0..V::PARTS {
                let (mut weights, mut products) = ([factor; 2], [factor; 2]);
                for r in 0..2 {
                    let left = V::splat(W::from_f64(n[r] as f64 - (g * LANES) as f64));
                    let seen = |x: V| V::numbers(i).less(left, x, V::splat(W::ZERO));
                    let weight = score::<V>(scores, r, g, i).mul(factor).add(less[r]).exp_nonpos();
                    let weight = weight.mul(share[r]);
                    let (x, d) = f(weight, score::<V>(slopes, r, g, i), through[r], r, g, i);
                    (weights[r], products[r]) = (seen(x), seen(weight.mul(d).mul(by)));
                }
                write::<V, PAIRS>(scores, slopes, g, i, weights, products);
            }
        }
    }
}

/// Writes part `i` of a group of both rows, rounded or not.
#[inline(always)]
fn write<V: Vector, const PAIRS: bool>(
    scores: &mut [V::E],
    slopes: &mut [V::E],
    g: usize,
    i: usize,
    weights: [V; 2],
    products: [V; 2],
) {
    let (first, second) = scores[..2 * LINE].split_at_mut(LINE);
    let (upper, lower) = slopes[..2 * LINE].split_at_mut(LINE);
    if PAIRS {
        // They take the place of numbers that have been read.
        weights[0].round_pairs(weights[1], pairs_mut(first, g), i);
        products[0].round_pairs(products[1], pairs_mut(second, g), i);
        products[0].round(halves_mut(upper, g), i);
        products[1].round(halves_mut(lower, g), i);
    } else {
        weights[0].store(&mut whole_mut(first)[g], i);
        weights[1].store(&mut whole_mut(second)[g], i);
        products[0].store(&mut whole_mut(upper)[g], i);
        products[1].store(&mut whole_mut(lower)[g], i);
    }
}

/// Weights and slopes of two queries rounded to bf16, for products that sum pairs. The weights, in two rows
/// of [`LINE`] numbers, become pairs of both queries' weights, and of both their slopes. Each query's slopes
/// become pairs of neighbours, in the first half of their row. The slopes are multiplied by `factor` first.
pub(super) struct Paired<'a, W> {
    pub weights: &'a mut [W],
    pub slopes: &'a mut [W],
    /// Columns, in whole groups.
    pub width: usize,
    pub factor: W,
}

impl<W: Wide> Rows<W> for Paired<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        let by = V::splat(self.factor);
        for g in 0..self.width / LANES {
            for i in 0..V::PARTS {
                let weights = [score(self.weights, 0, g, i), score(self.weights, 1, g, i)];
                let slopes =
                    [score::<V>(self.slopes, 0, g, i).mul(by), score::<V>(self.slopes, 1, g, i).mul(by)];
                write::<V, true>(self.weights, self.slopes, g, i, weights, slopes);
            }
        }
    }
}

/// A group of pairs of bf16 in the place of as many floats of 32 bits.
#[inline(always)]
fn pairs_mut<W: Wide>(x: &mut [W], group: usize) -> &mut [u32; LANES] {
    &mut bytemuck::cast_slice_mut::<W, u32>(x).as_chunks_mut().0[group]
}
