//! Rows of scores in every tier.

use super::LINE;
use super::rows::{Dots, Lines, Times};
use super::slopes::{self, Paired, Slopes};
use super::softmax::{GROUP, Query, Softmax};
use crate::kernels::vector::{self, LANES};
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

/// Without subnormal numbers, which may be rounded to bf16 either way.
fn normal(x: Vec<f32>) -> Vec<f32> {
    x.into_iter().map(|x| if x.is_subnormal() { 0.0 } else { x }).collect()
}

/// Numbers, or the bf16 in their place if there may be such: one that is not a number may have any bits.
fn told(x: &[f32], halves: bool) -> Vec<f32> {
    let half = |bits: u32| f32::from_bits(bits << 16);
    match halves {
        true => x.iter().flat_map(|x| [half(x.to_bits()), half(x.to_bits() >> 16)]).collect(),
        false => x.to_vec(),
    }
}

/// Everything that rows of `n` numbers become.
fn results(tier: Tier, row: usize, n: usize) -> Vec<f32> {
    let whole = n.next_multiple_of(LANES);
    let (x, y) = (numbers(row, whole), numbers(row / 2, LINE));
    let mut all = Vec::new();
    for (added, kept) in [(None, None), (Some(&y[..]), None), (None, Some(&y[..]))] {
        // Dropout's factors make subnormal numbers, which may be rounded either way.
        for (queries, halves) in [(1, false), (GROUP, false), (1, kept.is_none()), (GROUP, kept.is_none())] {
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
            all.extend(told(&scores, halves));
            all.extend(&out);
        }
        // Bounds of both queries, and of one.
        for (seen, pairs) in
            [([n, n.saturating_sub(7)], false), ([n, 0], false), ([n, n / 2], kept.is_none())]
        {
            let lines =
                |first: usize| [row + first, row + first + 1].map(|r| normal(numbers(r, LINE))).concat();
            let (mut scores, mut slopes) = (lines(0), lines(2));
            let (largest, share) = if row == 1 { (f32::NEG_INFINITY, 0.0) } else { (1.5, 0.7) };
            let [added, kept] = [added, kept].map(|x| x.map(|x| Lines(x, 0)));
            let (scores_, slopes_) = (&mut scores[..], &mut slopes[..]);
            let queries = seen.map(|n| slopes::Query { n, largest, share, through: 0.25 });
            let (width, factor, times) = (whole, 0.3, -0.7);
            let rows = Slopes {
                scores: scores_,
                slopes: slopes_,
                queries,
                width,
                factor,
                times,
                added,
                kept,
                pairs,
            };
            vector::run(tier, rows);
            all.extend(told(&scores, pairs));
            all.extend(told(&slopes, pairs));
        }
    }
    let [mut weights, mut slopes] =
        [0, 2].map(|i| [row + i, row + i + 1].map(|r| normal(numbers(r, LINE))).concat());
    vector::run(tier, Paired { weights: &mut weights, slopes: &mut slopes, width: whole, factor: 1.25 });
    all.extend(told(&weights, true));
    all.extend(told(&slopes, true));
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
