//! Products against plain f64 loops.

use super::*;
use crate::element::Float;
use crate::simd::MAX_LANES;
use half::{bf16, f16};

/// Numbers in [-1, 1) with few bits, the same everywhere.
fn numbers<T: Float>(n: usize, seed: u64) -> Vec<T> {
    let mut s = seed;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            T::from_f64((s >> 40) as f64 / (1u64 << 23) as f64 - 1.0)
        })
        .collect()
}

/// All transpositions, starts and a non-trivial output stride; returns the bits for comparison.
fn check<T: Operand, O: Operand<Wide = T::Wide>>(
    tier: Tier,
    size: Size,
    batches: usize,
    threads: usize,
    eps: f64,
) -> Vec<f64> {
    let Size { m, n, k } = size;
    let pool = Pool::new(threads);
    let mut memory = crate::CpuMemory::new(workspace::<T, O>(tier, size, threads)).unwrap();
    let (a, b) = (numbers::<T>(batches * m * k, 1), numbers::<T>(batches * k * n, 2));
    let (bias, before) = (numbers::<T>(n, 3), numbers::<O>(batches * m * n, 4));
    let f = |x: T| x.widen().to_f64();
    let mut all = Vec::new();
    for case in 0..12 {
        let (ta, tb, start) = (case & 1 == 1, case & 2 == 2, case / 4);
        let mut c: Vec<O> =
            if start == 1 { before.clone() } else { vec![O::from_f64(f64::NAN); batches * m * n] };
        let base = MatMut { ptr: c.as_mut_ptr(), rs: n as isize };
        let mat = |p: *const T, rows: usize, cols: usize, t: bool| {
            if t {
                Mat { ptr: p, rs: 1, cs: rows as isize }
            } else {
                Mat { ptr: p, rs: cols as isize, cs: 1 }
            }
        };
        let (pa, pb) = (a.as_slice(), b.as_slice());
        let from = match start {
            0 => Start::Zero,
            1 => Start::Output,
            _ => Start::Bias(Mat { ptr: bias.as_ptr(), rs: 0, cs: 1 }),
        };
        // SAFETY: the matrices are those of `a`, `b` and `c`, which live through the call.
        unsafe {
            gemm::<T, O>(
                &pool,
                tier,
                memory.as_mut_slice(),
                batches,
                size,
                |i| mat(pa[i * m * k..].as_ptr(), m, k, ta),
                |i| mat(pb[i * k * n..].as_ptr(), k, n, tb),
                |i| base.at(i * m, 0),
                from,
            );
        }
        for bi in 0..batches {
            for i in 0..m {
                for j in 0..n {
                    let (mut sum, mut size) = (0.0, 0.0);
                    for p in 0..k {
                        let x = f(pa[bi * m * k + if ta { p * m + i } else { i * k + p }]);
                        let y = f(pb[bi * k * n + if tb { j * k + p } else { p * n + j }]);
                        sum += x * y;
                        size += (x * y).abs();
                    }
                    let from = match start {
                        0 => 0.0,
                        1 => before[(bi * m + i) * n + j].widen().to_f64(),
                        _ => f(bias[j]),
                    };
                    let got = c[(bi * m + i) * n + j].widen().to_f64();
                    // Rounding of products and of at most k + 1 sums in the wide type, and of the result.
                    let wide = T::Wide::ONE.to_f64()
                        * if size_of::<T::Wide>() == 8 { f64::EPSILON } else { f32::EPSILON as f64 };
                    let bound = (k as f64 + 1.0) * wide * (size + from.abs()) + eps * (sum + from).abs();
                    assert!((got - sum - from).abs() <= bound, "{size:?} case {case}: {got} {}", sum + from);
                    all.push(got);
                }
            }
        }
    }
    all
}

fn tiers() -> impl Iterator<Item = Tier> {
    Tier::ALL.into_iter().filter(|&t| t <= Tier::detect())
}

const SIZES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (3, 5, 0),
    (1, 40, 33),
    (40, 1, 33),
    (17, 9, 2),
    (20, 35, 50),
    (70, 530, 40),
    (300, 20, 600),
    (205, 90, 130),
    (97, 70, 131),
    // A small result of long sums.
    (60, 65, 301),
    // Few rows, and so much to sum that a row is a piece of its own.
    (16, 17, 8200),
];

#[test]
fn products_agree_with_f64_for_every_type_tier_and_thread_count() {
    for tier in tiers() {
        for (m, n, k) in SIZES {
            let size = Size { m, n, k };
            let batches = if m * n < 1000 { 5 } else { 1 };
            let one = check::<bf16, bf16>(tier, size, batches, 1, 0.0078125);
            assert!(one == check::<bf16, bf16>(tier, size, batches, 3, 0.0078125));
            if matches!(tier, Tier::Tiles | Tier::Pairs) {
                continue; // Other types are the portable tier's.
            }
            let one = check::<f32, f32>(tier, size, batches, 1, f32::EPSILON as f64);
            assert!(one == check::<f32, f32>(tier, size, batches, 3, f32::EPSILON as f64));
            check::<f64, f64>(tier, size, batches, 2, f64::EPSILON);
            check::<f16, f16>(tier, size, batches, 2, 0.0009765625);
            check::<f16, f32>(tier, size, batches, 2, f32::EPSILON as f64);
            check::<f32, bf16>(tier, size, batches, 2, 0.0078125);
        }
    }
}

/// Every element is at its offset, and nothing is written between columns or after the last one, though
/// vectors of rows that fill none are stored whole.
fn interleaves<T: Operand>(kernels: &Microkernels<T>) {
    let layouts = |rows: usize, k: usize| [(1, rows as isize), (k as isize, 1), (2 * k as isize, 2)];
    let rows = (1..=kernels.nr + 1).chain([2 * kernels.nr, 3 * kernels.nr + 1]);
    for (rows, k) in rows.flat_map(|rows| (1..=2 * kernels.nr).map(move |k| (rows, k))) {
        let (panels, numbers) = (&kernels.panels, numbers::<T>(2 * rows * k, 5));
        for (apart, (rs, cs)) in [0, 3].into_iter().flat_map(|apart| layouts(rows, k).map(|l| (apart, l))) {
            // No more than the matrix.
            let x = &numbers[..=((rows - 1) as isize * rs + (k - 1) as isize * cs) as usize].to_vec();
            let places = rows.div_ceil(panels.k_group);
            let pitch = places + apart;
            let mut out = vec![T::Wide::ZERO; pitch * k + 2 * MAX_LANES];
            let at = |i: usize, p: usize| x[(i as isize * rs + p as isize * cs) as usize].widen();
            // SAFETY: all elements are among the numbers, and the buffer can hold them.
            unsafe { (panels.interleave)(Mat { ptr: x.as_ptr(), rs, cs }, rows, k, out.as_mut_ptr(), pitch) };
            for (i, p) in (0..pitch).flat_map(|i| (0..k).map(move |p| (i, p))) {
                let got = out[p * pitch + i];
                let right = match panels.k_group {
                    _ if i >= places => got == T::Wide::ZERO,
                    1 => got == at(i, p),
                    _ => {
                        // The first of a pair in the lower half of its place.
                        let second = if 2 * i + 1 < rows { at(2 * i + 1, p) } else { T::Wide::ZERO };
                        let bits = [at(2 * i, p), second].map(|x| (x.to_f64() as f32).to_bits());
                        (got.to_f64() as f32).to_bits() == bits[0] >> 16 | bits[1]
                    }
                };
                assert!(
                    right,
                    "{rows} by {k}, {} k_group, {apart} apart: k-group ({i}, {p})",
                    panels.k_group
                );
            }
            assert!(out[pitch * k..].iter().all(|&z| z == T::Wide::ZERO), "{rows} by {k}");
        }
    }
}

#[test]
fn columns_of_any_size_are_interleaved() {
    for tier in tiers() {
        interleaves(f32::kernels(tier));
        interleaves(f64::kernels(tier));
        interleaves(f16::kernels(tier));
        interleaves(bf16::kernels(tier));
    }
}

/// Every element is at its offset, rounded as it is alone, and nothing is written between columns or after
/// the last one.
fn stores_transposed<T: Operand>(kernels: &Microkernels<T>) {
    let sizes = |n: usize| (1..=n + 2).chain([2 * n - 1, 2 * n, 2 * n + 3, 4 * n + 1]);
    for (rows, cols) in sizes(kernels.nr).flat_map(|r| sizes(kernels.nr / 2).map(move |c| (r, c))) {
        for (rs, pitch) in [(cols, rows), (cols + 3, rows + 1)] {
            let wide = |i: usize| T::Wide::from_f64(((i * 7919 + 5) % 2003) as f64 / 7.0 - 143.0);
            let mut x: Vec<T::Wide> = (0..(rows - 1) * rs + cols).map(wide).collect();
            x[rows / 2 * rs] = T::Wide::from_f64(f64::NAN);
            let mut out = vec![T::from_f64(0.0); pitch * cols + 64];
            let mat = Mat { ptr: x.as_ptr(), rs: rs as isize, cs: 1 };
            // SAFETY: all elements are among the numbers, and the buffer can hold them.
            unsafe { (kernels.store_transposed)(mat, rows, cols, out.as_mut_ptr(), pitch) };
            for (at, got) in out.iter().enumerate() {
                let (i, j) = (at % pitch, at / pitch);
                let want = if i < rows && j < cols { T::narrow(x[i * rs + j]) } else { T::from_f64(0.0) };
                let same = *got == want || got.widen().is_nan() && want.widen().is_nan();
                assert!(same, "{rows} by {cols}, {pitch} apart: ({i}, {j}) is {got:?}, not {want:?}");
            }
        }
    }
}

#[test]
fn matrices_of_any_size_are_stored_transposed() {
    for tier in tiers() {
        stores_transposed(f32::kernels(tier));
        stores_transposed(f64::kernels(tier));
        stores_transposed(f16::kernels(tier));
        stores_transposed(bf16::kernels(tier));
    }
}

/// Every element where it belongs, and nothing between rows.
fn widens<T: Operand>(kernels: &Microkernels<T>) {
    const MR: usize = 3;
    for (k, cs) in (1..=2 * kernels.nr + 1).flat_map(|k| [(k, 1), (k, 2)]) {
        let (rs, pitch) = (cs * k + 1, k + 2);
        let x = numbers::<T>(MR * rs, 5);
        let mut out = vec![T::Wide::ZERO; MR * pitch];
        let mat = Mat { ptr: x.as_ptr(), rs: rs as isize, cs: cs as isize };
        // SAFETY: all elements are among the numbers, and the buffer can hold them.
        unsafe { (kernels.widen)(mat, MR, k, out.as_mut_ptr(), pitch) };
        for (i, p) in (0..MR).flat_map(|i| (0..pitch).map(move |p| (i, p))) {
            let want = if p < k { x[i * rs + p * cs].widen() } else { T::Wide::ZERO };
            assert!(out[i * pitch + p] == want, "{k} columns {cs} apart: ({i}, {p})");
        }
    }
}

#[test]
fn rows_of_any_length_are_widened() {
    for tier in tiers() {
        widens(f32::kernels(tier));
        widens(f64::kernels(tier));
        widens(bf16::kernels(tier));
        widens(f16::kernels(tier));
    }
}

/// Kernels of results, element by element, against a plain loop over bits: each row is followed by NaN.
fn packs_filters<T: Operand>(kernels: &Microkernels<T>) {
    let (cols, k_group) = (kernels.nr, kernels.panels.k_group);
    for (taps, elements) in
        [1usize, 2, 4, 9, 25].into_iter().flat_map(|t| [1usize, 2, 7, 32, 33, 66].map(|e| (t, e)))
    {
        for n in [1, cols - 1, cols] {
            let (rs, places) = (taps * elements + 3, elements.div_ceil(k_group));
            let mut x = numbers::<T>(n * rs, 5);
            x.chunks_exact_mut(rs).for_each(|row| row[taps * elements..].fill(T::from_f64(f64::NAN)));
            let mut out = vec![T::Wide::from_f64(f64::NAN); taps * places * cols];
            let mut scratch = vec![T::Wide::from_f64(f64::NAN); filters_scratch(taps)];
            let mat = Mat { ptr: x.as_ptr(), rs: rs as isize, cs: 1 };
            let sizes = [elements, taps];
            // SAFETY: rows of the numbers, and capacity for them; the processor has the tier.
            unsafe {
                (kernels.panels.pack_filters)(mat, n, sizes, out.as_mut_ptr(), cols, scratch.as_mut_ptr())
            };
            for ((t, p), o) in (0..taps)
                .flat_map(|t| (0..places).map(move |p| (t, p)))
                .flat_map(|at| (0..cols).map(move |o| (at, o)))
            {
                let at = |i: usize| (o < n && i < elements).then(|| x[o * rs + i * taps + t]);
                let got = out[(t * places + p) * cols + o];
                let what = format!(
                    "{n} results of {elements} channels and {taps} taps: tap {t}, k-group {p}, result {o}"
                );
                if k_group == 1 {
                    assert!(got == at(p).map_or(T::Wide::ZERO, Float::widen), "{what}");
                } else {
                    let bits: &[u16] = bytemuck::cast_slice(std::slice::from_ref(&got));
                    let want =
                        [at(2 * p), at(2 * p + 1)].map(|x| x.map_or(0, |x| bytemuck::cast::<T, u16>(x)));
                    assert_eq!(bits, want, "{what}");
                }
            }
        }
    }
}

#[test]
fn kernels_of_results_are_packed_tap_by_tap() {
    for tier in tiers() {
        packs_filters(f32::kernels(tier));
        packs_filters(f64::kernels(tier));
        packs_filters(bf16::kernels(tier));
        packs_filters(f16::kernels(tier));
    }
}

fn narrows<T: Operand<Wide = f32>>(tier: Tier) {
    // Numbers of all kinds, each at every place of a vector: subnormal numbers, NaNs whose payload is in the
    // low bits, ties, and what overflows.
    let kinds = [1e-40, -3e-39, 1e-45, 0.0, -0.0, 1.0, 1.5, 65519.0, 65520.0, 1e30, f32::MAX, f32::INFINITY];
    let bits = [0x7FC0_0000, 0xFF80_0001, 0x7FFF_FFFF, 0x3F80_8000, 0x3F81_8000, 0x3F80_8001, 0x007F_FFFF];
    let kinds: Vec<f32> = kinds.into_iter().chain(bits.map(f32::from_bits)).collect();
    for n in [1, 15, 16, 17, 64, 77] {
        let from: Vec<f32> = (0..n * kinds.len()).map(|i| kinds[(i + i / n) % kinds.len()]).collect();
        for from in [from, (0..n).map(|i| i as f32 / 3.0).collect()] {
            let mut to = vec![T::from_f64(0.0); from.len()];
            // SAFETY: as many numbers; the processor has the tier.
            unsafe { (T::kernels(tier).narrow)(from.as_ptr(), from.len(), to.as_mut_ptr()) };
            for (&x, &y) in from.iter().zip(&to) {
                let (y, want) = (y.widen(), T::narrow(x).widen());
                let same = y.to_bits() == want.to_bits() || y.is_nan() && want.is_nan();
                assert!(same, "{}: {x} ({:#x}) to {y}, not {want}", tier.name(), x.to_bits());
            }
        }
    }
}

/// VNNI-2 groups of a row are read in place if they are whole and aligned, and packed otherwise.
#[test]
fn bits_do_not_depend_on_where_rows_of_the_left_operand_begin() {
    for k in [33, 34] {
        rows_lie_anywhere(Size { m: 50, n: 40, k });
    }
}

fn rows_lie_anywhere(size: Size) {
    let (a, b) = (numbers::<bf16>(size.m * size.k, 1), numbers::<bf16>(size.k * size.n, 2));
    let pool = Pool::new(1);
    for tier in tiers() {
        let mut memory = crate::CpuMemory::new(workspace::<bf16, bf16>(tier, size, 1)).unwrap();
        let mut product = |rs: usize, offset: usize| {
            // Each row is followed by values that would be noticed.
            let mut from = vec![bf16::NAN; offset + size.m * rs];
            for (row, a) in from[offset..].chunks_exact_mut(rs).zip(a.chunks_exact(size.k)) {
                row[..size.k].copy_from_slice(a);
            }
            let mut c = vec![bf16::NAN; size.m * size.n];
            let out = MatMut { ptr: c.as_mut_ptr(), rs: size.n as isize };
            let left = Mat { ptr: from[offset..].as_ptr(), rs: rs as isize, cs: 1 };
            let right = Mat { ptr: b.as_ptr(), rs: size.n as isize, cs: 1 };
            // SAFETY: the matrices are those of `from`, `b` and `c`, which live through the call.
            unsafe {
                let own = memory.as_mut_slice();
                gemm::<bf16, bf16>(&pool, tier, own, 1, size, |_| left, |_| right, |_| out, Start::Zero);
            }
            c.into_iter().map(bf16::to_bits).collect::<Vec<_>>()
        };
        let want = product(size.k, 0);
        for (rs, offset) in [(34, 0), (34, 1), (35, 0), (35, 1), (36, 0), (36, 2), (41, 3)] {
            let what = format!("{}: {} of rows {rs} apart, from {offset}", tier.name(), size.k);
            assert_eq!(product(rs, offset), want, "{what}");
        }
    }
}

#[test]
fn results_are_rounded_to_the_same_bits_by_every_tier() {
    for tier in tiers() {
        narrows::<bf16>(tier);
        narrows::<f16>(tier);
    }
}
