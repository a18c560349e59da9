//! Scores become weights: the forward pass between its products.

// Loops go by index over arrays: what the compiler is sure to unroll, and so to keep in registers.
#![allow(clippy::needless_range_loop)]

use super::LINE;
use super::rows::{Lines, Times, add, halves_mut, score, together, whole, whole_mut};
use crate::element::{Float, Wide};
use crate::kernels::vector::{LANES, Rows, Vector};

/// The largest of the first `n` scores times `factor` of each of some rows; what is not a number does not
/// count.
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

/// The first `n` scores of some rows become weights, e to the power of the score times `factor` less `shift`.
/// `f` then changes a weight, given its row, group and part. They are rounded to bf16 if `HALVES`, and
/// followed by 0. Gives the sums of the weights.
#[inline(always)]
fn weigh<V: Vector, const ROWS: usize, const HALVES: bool>(
    scores: &mut [V::E],
    n: [usize; ROWS],
    factor: V::E,
    shift: [V::E; ROWS],
    f: impl Fn(V, usize, usize, usize) -> V,
) -> [V::E; ROWS] {
    // Products are rounded as those are whose largest one `shift` is: its own weight is exactly 1.
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
                let x = score::<V>(scores, r, g, i).mul(factor).add(less[r]).exp_nonpos();
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
                let x = score::<V>(scores, r, g, i).mul(factor).add(less[r]).exp_nonpos();
                let x = V::numbers(i).less(left, x, V::splat(V::E::ZERO));
                sums[r][i] = sums[r][i].add(x);
                write::<V, HALVES>(f(x, r, g, i), scores, r, g, i);
            }
        }
        totals[r] = V::total(sums[r]);
    }
    totals
}

/// Writes part `i` of a group of a row of weights, which may be rounded to bf16: these take the place of
/// scores before them.
#[inline(always)]
fn write<V: Vector, const HALVES: bool>(x: V, scores: &mut [V::E], row: usize, group: usize, i: usize) {
    let scores = &mut scores[row * LINE..][..LINE];
    if HALVES {
        x.round(halves_mut(scores, group), i);
    } else {
        x.store(&mut whole_mut(scores)[group], i);
    }
}

/// Queries whose scores become weights at a time.
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

/// The online softmax of some queries over one block of keys.
pub(super) struct Softmax<'a, W, F> {
    /// Products of queries and keys, in rows of [`LINE`] numbers; become the weights, not yet divided by
    /// their sum.
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
    /// True if weights are rounded to bf16; they are then in the first half of their row.
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

/// The work of [`Softmax`] on the scores of a number of queries known to the compiler, but for adding a mask.
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
        // The weights are 0 where no key is seen, unless a score is not a number.
        if q.largest != V::E::NEG_INFINITY {
            shift[r] = q.largest;
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

/// The rest of the work when all keys were seen: each sum of values is divided by the sum of its weights.
pub(super) struct Shares<'a, W, F> {
    /// Sum of each query's weights; becomes `unseen` where that is 0.
    pub totals: &'a mut [W],
    /// The sum of values of each query.
    pub sums: F,
    /// Result of a query whose keys are all hidden.
    pub unseen: W,
}

impl<'o, W: Wide, F: Fn(usize) -> &'o mut [W]> Rows<W> for Shares<'_, W, F> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        for (row, total) in self.totals.iter_mut().enumerate() {
            let x = (self.sums)(row);
            if *total == W::ZERO {
                x.fill(self.unseen);
                *total = self.unseen;
            } else {
                Times { x, factor: W::ONE / *total }.run::<V>();
            }
        }
    }
}
