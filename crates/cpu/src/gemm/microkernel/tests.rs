//! Tiles of matrix units against f64, for sizes around theirs; and each row alone, which has the same bits.

use super::{IndirectRow, IndirectRun, IndirectTile, Microkernels, Operand, Tile};
use crate::prefetch::TilePrefetch;
use crate::tier::Tier;
use half::bf16;
use std::ptr::null;

/// The tiers whose products of bf16 take tiles.
fn units() -> Vec<(Tier, &'static Microkernels<bf16>)> {
    let all = Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()).map(|t| (t, bf16::kernels(t)));
    let units: Vec<_> = all.filter(|(_, k)| k.panels.of_unit()).collect();
    assert!(!units.is_empty());
    units
}

/// Pairs of bf16 in [-1, 1), the same everywhere, as words.
fn words(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed;
    let mut half = || {
        s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        u32::from(bf16::from_f64((s >> 40) as f64 / (1u64 << 23) as f64 - 1.0).to_bits())
    };
    (0..n).map(|_| f32::from_bits(half() | half() << 16)).collect()
}

/// The product of two pairs.
fn product(a: f32, b: f32) -> f64 {
    let both =
        |x: f32| [x.to_bits() << 16, x.to_bits() & !0xffff].map(|bits| f64::from(f32::from_bits(bits)));
    both(a).iter().zip(both(b)).map(|(a, b)| a * b).sum()
}

/// A number that no sum is: it must stay where nothing is written.
const UNTOUCHED: f32 = -4096.0;

fn agrees(got: f32, want: f64, terms: usize, what: &str) {
    // Every product is at most 1, and every sum of terms is rounded once for each.
    let terms = 2.0 * terms as f64 + 1.0;
    let bound = terms * terms * f64::from(f32::EPSILON) / 2.0;
    assert!((f64::from(got) - want).abs() <= bound, "{what}: {got}, not {want}");
}

/// Strides of rows and of k-groups of a left operand.
fn layouts(rows: usize, k: usize) -> [[usize; 2]; 3] {
    [[k, 1], [1, rows], [2 * k + 1, 2]]
}

#[test]
fn tiles_of_any_size_are_those_of_their_rows() {
    for (tier, kernels) in units() {
        let (mr, nr, step) = (kernels.mr, kernels.nr, kernels.panels.k_step);
        let around = |n: usize| [1, n / 2 - 1, n / 2, n / 2 + 1, n - 1, n];
        let all_rows = around(mr).into_iter().chain([mr + 1, 2 * mr + 1]);
        let depths = [0, 1, step - 1, step, step + 1, 2 * step, 3 * step - 1];
        for (rows, cols, k) in all_rows
            .flat_map(|rows| around(nr).map(move |cols| (rows, cols)))
            .flat_map(|(rows, cols)| depths.map(move |k| (rows, cols, k)))
        {
            let b = words(k.max(1) * nr, 2);
            let start = words(rows * nr, 3).iter().map(|x| x.to_bits() as f32 / 4e9).collect::<Vec<f32>>();
            for ([ars, acs], adds) in layouts(rows, k).into_iter().flat_map(|l| [(l, false), (l, true)]) {
                // No more than the operand.
                let a = words(((rows - 1) * ars + k.max(1).saturating_sub(1) * acs) + 1, 1);
                let run = |first: usize, rows: usize, c: &mut [f32]| {
                    let tile = Tile {
                        rows,
                        cols,
                        k,
                        a: a[first * ars..].as_ptr(),
                        ars: ars as isize,
                        acs: acs as isize,
                        blocks: (mr * ars) as isize,
                        b: b.as_ptr(),
                        brs: nr as isize,
                        start: if adds { start[first * nr..].as_ptr() } else { null() },
                        srs: nr as isize,
                        c: c[first * (nr + 3)..].as_mut_ptr(),
                        crs: nr as isize + 3,
                        prefetch: TilePrefetch::NONE,
                    };
                    // SAFETY: the operands were made for these sizes; the processor has the tier.
                    unsafe { (kernels.panels.tile)(&tile) };
                };
                let (mut c, mut alone) = (vec![UNTOUCHED; rows * (nr + 3)], vec![UNTOUCHED; rows * (nr + 3)]);
                run(0, rows, &mut c);
                (0..rows).for_each(|i| run(i, 1, &mut alone));
                let what = format!("{}, {rows} by {cols} by {k}, {ars} {acs}, {adds}", tier.name());
                let bits = |c: &[f32]| c.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(bits(&c) == bits(&alone), "{what}: a row alone has other bits");
                for (at, &got) in c.iter().enumerate() {
                    let (i, j) = (at / (nr + 3), at % (nr + 3));
                    if j >= cols {
                        assert_eq!(got, UNTOUCHED, "{what}: ({i}, {j})");
                        continue;
                    }
                    let sum: f64 = (0..k).map(|p| product(a[i * ars + p * acs], b[p * nr + j])).sum();
                    let from = if adds { f64::from(start[i * nr + j]) } else { 0.0 };
                    agrees(got, sum + from, k, &format!("{what}: ({i}, {j})"));
                }
            }
        }
    }
}

#[test]
fn rows_that_begin_anywhere_are_summed_run_after_run() {
    for (tier, kernels) in units() {
        let (mr, nr, step) = (kernels.mr, kernels.nr, kernels.panels.k_step);
        let a = words(4096, 1);
        let counts = [1, mr / 2 - 1, mr / 2, mr / 2 + 1, mr - 1, mr];
        let inners = [1, 3, step - 1, step, step + 1, 2 * step + 3];
        for (n, inner, runs) in counts
            .into_iter()
            .flat_map(|n| inners.map(move |inner| (n, inner)))
            .flat_map(|(n, inner)| [1, 2, 4].map(move |runs| (n, inner, runs)))
        {
            let b = words(runs * inner * nr, 2);
            let runs: Vec<IndirectRun> = (0..runs)
                .map(|i| IndirectRun { left: (i * 97) as isize, right: (i * 3 + 1) % runs.max(1) })
                .collect();
            // The left operand's words begin at any of its elements: `step` is half a word. Evenly or
            // unevenly spaced, and results in order or not.
            for (even, in_order, add, cols) in [
                (true, true, false, nr),
                (true, false, true, nr),
                (false, true, true, nr / 2),
                (false, false, false, nr - 1),
            ] {
                let rows: Vec<IndirectRow> = (0..n)
                    .map(|i| IndirectRow {
                        offset: if even { 2 * 11 * i } else { 2 * 11 * i + i * i % 5 },
                        position: if in_order { i } else { (i * 7 + 3) % n },
                    })
                    .collect();
                // Seven and the number of rows may have a common divisor.
                let distinct = (0..n).all(|p| rows.iter().any(|row| row.position == p));
                if !distinct {
                    continue;
                }
                let before: Vec<f32> = (0..mr * nr).map(|i| i as f32 / 512.0).collect();
                let run = |rows: &[IndirectRow], c: &mut [f32]| {
                    let tile = IndirectTile {
                        rows,
                        a: a.as_ptr(),
                        step: size_of::<bf16>(),
                        runs: &runs,
                        inner,
                        pitch: inner,
                        b: b.as_ptr(),
                        cols,
                        c: c.as_mut_ptr(),
                        crs: nr,
                        add,
                    };
                    // SAFETY: the operands hold all that these rows and runs name; the processor has the
                    // tier.
                    unsafe { (kernels.panels.indirect)(&tile) };
                };
                let (mut c, mut alone) = (before.clone(), before.clone());
                run(&rows, &mut c);
                rows.chunks(1).for_each(|row| run(row, &mut alone));
                let what =
                    format!("{}, {n} rows, {inner} of {} runs, {even} {in_order}", tier.name(), runs.len());
                assert!(c == alone, "{what}: a row alone has other bits");
                let halves: &[u16] = bytemuck::cast_slice(&a);
                for (row, j) in rows.iter().flat_map(|row| (0..cols).map(move |j| (row, j))) {
                    let mut sum = 0.0;
                    for (run, p) in runs.iter().flat_map(|run| (0..inner).map(move |p| (run, p))) {
                        let at = row.offset + 2 * (run.left as usize + p);
                        let word = u32::from(halves[at]) | u32::from(halves[at + 1]) << 16;
                        sum += product(f32::from_bits(word), b[(run.right * inner + p) * nr + j]);
                    }
                    let at = row.position * nr + j;
                    let from = if add { f64::from(before[at]) } else { 0.0 };
                    let what = format!("{what}: ({}, {j})", row.position);
                    agrees(c[at], sum + from, inner * runs.len() + from as usize, &what);
                }
            }
        }
    }
}
