//! The gradient of an embedding as a library call, against sums in f64, with the error bound by its formula.
//! Every policy is tried, with the same bits for every method, tier, number of threads, and layout of the
//! operands.

use half::{bf16, f16};
use headwater_core::ops::index::embedding_grad::{
    BadIndex, EmbeddingGradOptions, EmbeddingGradReport, Method, Overflow,
};
use headwater_core::{Code, DType};
use headwater_cpu::element::Float;
use headwater_cpu::kernels::embedding_grad::{EmbeddingGrad, Outcome, Strided, StridedIndices, Summed};
use headwater_cpu::{CpuMemory, Pool, Tier};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::sync::OnceLock;

fn pools() -> &'static [Pool; 3] {
    static POOLS: OnceLock<[Pool; 3]> = OnceLock::new();
    POOLS.get_or_init(|| [Pool::new(1), Pool::new(2), Pool::new(7)])
}

/// Numbers and indices of a problem, contiguous.
#[derive(Clone, Debug)]
struct Problem {
    options: EmbeddingGradOptions,
    width: usize,
    grad: Vec<f64>,
    index: Vec<i64>,
}

fn dtype<T: Float>() -> DType {
    [DType::F64, DType::F32, DType::F16, DType::BF16].into_iter().find(|d| T::holds(*d)).unwrap()
}

fn values<T: Float>(numbers: &[f64]) -> Vec<T> {
    numbers.iter().map(|&x| T::from_f64(x)).collect()
}

fn garbage(bytes: usize) -> CpuMemory {
    let mut memory = CpuMemory::new(bytes).unwrap();
    memory.as_mut_slice().fill(0xA7);
    memory
}

impl Problem {
    fn job<T: Float>(&self) -> EmbeddingGrad {
        EmbeddingGrad::new(self.options, dtype::<T>(), self.index.len(), self.width).unwrap()
    }

    fn dense_on<T: Summed>(
        &self,
        pool: &Pool,
        job: &EmbeddingGrad,
    ) -> headwater_core::Result<(Vec<T>, Outcome)> {
        let (grad, n) = (values::<T>(&self.grad), self.index.len());
        let rows = Strided::rows(&grad, 0, &[n, self.width], &[self.width as isize, 1])?;
        let indices = StridedIndices::I64(Strided::elements(&self.index, 0, &[n], &[1])?);
        let mut out = vec![T::from_f64(7.0); self.options.rows().len() * self.width];
        let mut workspace = garbage(job.workspace_size());
        let outcome = job.dense(pool, &rows, &indices, &mut out, workspace.as_mut_slice())?;
        Ok((out, outcome))
    }

    fn dense<T: Summed>(&self) -> headwater_core::Result<(Vec<T>, Outcome)> {
        self.dense_on(&pools()[0], &self.job::<T>())
    }

    /// Sum, sum of magnitudes and number of positions of each row of the table, in f64 of the rounded
    /// numbers.
    fn truth<T: Float<Wide: Into<f64>>>(&self) -> Vec<(Vec<f64>, Vec<f64>, usize)> {
        let mut rows = vec![(vec![0.0; self.width], vec![0.0; self.width], 0); self.options.num_weights];
        for (at, &i) in self.index.iter().enumerate() {
            if i < 0 || i as usize >= rows.len() || i == self.options.padding_idx {
                continue;
            }
            let (sum, size, count) = &mut rows[i as usize];
            for c in 0..self.width {
                let x: f64 = T::from_f64(self.grad[at * self.width + c]).widen().into();
                sum[c] += x;
                size[c] += x.abs();
            }
            *count += 1;
        }
        rows
    }

    /// Every element within the bound of the module's documentation.
    fn judge<T: Float<Wide: Into<f64>>>(&self, got: &[T], norm: Option<f64>) -> Result<(), TestCaseError> {
        let unit = |d: DType| d.epsilon() / 2.0;
        let (own, wide) = (dtype::<T>(), if dtype::<T>() == DType::F64 { DType::F64 } else { DType::F32 });
        let truth = self.truth::<T>();
        let (tiny, factor) = (smallest(own) / 2.0, norm.map_or(1.0, |n| self.options.clip(n)));
        for (r, row) in self.options.rows().enumerate() {
            let (sum, size, n) = &truth[row];
            let (divided, scaled) = (self.options.scale_grad_by_freq && *n > 1, factor != 1.0);
            let terms = if *n <= 256 { *n } else { 256 + n.div_ceil(256) };
            // The factor is itself rounded, from a norm that carries the errors of all sums: relative to it,
            // no more than they.
            let steps = (terms + divided as usize) as f64 + if scaled { 2.0 + terms as f64 } else { 0.0 };
            let gamma = steps * unit(wide) / (1.0 - steps * unit(wide));
            let weight = factor / if divided { *n as f64 } else { 1.0 };
            for c in 0..self.width {
                let want = sum[c] * weight;
                let error = gamma * size[c] * weight;
                let bound = error + unit(own) * (want.abs() + error) + tiny;
                let found: f64 = got[r * self.width + c].widen().into();
                let near = (found - want).abs() <= bound;
                prop_assert!(
                    near,
                    "row {row} column {c}: {found} is not {want}, bound {bound:e}, {n} positions"
                );
            }
        }
        Ok(())
    }
}

fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(1),
        DType::F16 => f64::exp2(-24.0),
        DType::BF16 => f64::exp2(-133.0),
        _ => f64::exp2(-149.0),
    }
}

fn bits<T: Float>(v: &[T]) -> &[u8] {
    bytemuck::cast_slice(v)
}

/// Rows that a table of `rows` is read at.
fn indices(rows: usize, kind: u8, n: usize) -> BoxedStrategy<Vec<i64>> {
    let v = rows as i64;
    match kind {
        // All alike.
        0 => prop::collection::vec(0..v, n).boxed(),
        // One row in half of all positions.
        1 => (0..v, prop::collection::vec((any::<bool>(), 0..v), n))
            .prop_map(|(heavy, other)| other.into_iter().map(|(h, i)| if h { heavy } else { i }).collect())
            .boxed(),
        // Few large rows, with large gaps.
        2 => prop::collection::vec((0..4i64).prop_map(move |i| v - 1 - i * (v / 5)), n).boxed(),
        // Descending, so that sorting has to turn everything round.
        3 => Just((0..n as i64).rev().map(|i| i * (v - 1) / n.max(1) as i64).collect()).boxed(),
        // Colliding: the multiplier of the hash, inverted, brings these next to each other.
        _ => Just((0..n as u32).map(|i| (i % 64).wrapping_mul(0x144C_BC89) as i64 % v).collect()).boxed(),
    }
}

fn problem() -> impl Strategy<Value = Problem> {
    let sizes = (prop_oneof![1..20usize, 300..1500usize, Just(90_000)], 0..5u8, 0..700usize, 1..40usize);
    let flags = (any::<bool>(), -1..5i64, prop_oneof![Just(None), (0.1..50.0).prop_map(Some)], 0..3usize);
    (sizes, flags).prop_flat_map(|((rows, kind, n, width), (frequency, padding_idx, max_norm, shard))| {
        let grad = prop::collection::vec(-4.0..4.0f64, n * width);
        (grad, indices(rows, kind, n)).prop_map(move |(grad, index)| {
            let shards = 1 + shard;
            let options = EmbeddingGradOptions {
                padding_idx,
                scale_grad_by_freq: frequency,
                max_norm,
                shard,
                shards,
                ..EmbeddingGradOptions::new(rows)
            };
            Problem { options, width, grad, index }
        })
    })
}

fn property<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let rng = proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, rng).run(&strategy, test).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn sums_are_within_their_bound_and_have_the_same_bits_however_they_are_made() {
    fn check<T: Summed + Float<Wide: Into<f64>>>(p: &Problem) -> Result<(), TestCaseError> {
        let (got, outcome) = p.dense::<T>().unwrap();
        p.judge(&got, outcome.norm)?;
        for method in [Method::Direct, Method::Radix, Method::Hash] {
            let other = Problem { options: EmbeddingGradOptions { method, ..p.options }, ..p.clone() };
            for (pool, tier) in pools().iter().zip(Tier::ALL.into_iter().cycle()) {
                let job = other
                    .job::<T>()
                    .with_tier(tier.min(Tier::detect()))
                    .unwrap()
                    .streaming(method == Method::Hash);
                let (again, same) = other.dense_on::<T>(pool, &job).unwrap();
                prop_assert!(bits(&again) == bits(&got), "{method:?}, {} threads, {tier:?}", pool.threads());
                prop_assert_eq!(
                    (same.report, same.norm, same.found),
                    (outcome.report, outcome.norm, outcome.found)
                );
            }
        }
        Ok(())
    }
    property(40, problem(), |p| {
        check::<f32>(&p)?;
        check::<f16>(&p)?;
        check::<bf16>(&p)?;
        check::<f64>(&p)
    });
}

/// Wider than a strip of columns, and more positions than a chunk, in one row and in several.
#[test]
fn long_segments_and_wide_rows() {
    for (width, n, rows) in [(1, 5000, 3), (1500, 700, 2), (2100, 300, 1), (64, 3000, 40_000)] {
        let index = (0..n as i64).map(|i| if i % 3 == 0 { i * 7 % rows } else { rows - 1 }).collect();
        let grad = (0..n * width).map(|i| ((i * 7919 % 2003) as f64 - 1001.0) / 500.0).collect();
        let p = Problem { options: EmbeddingGradOptions::new(rows as usize), width, grad, index };
        let (got, _) = p.dense::<f32>().unwrap();
        p.judge(&got, None).unwrap();
        let (half, _) = p.dense::<bf16>().unwrap();
        p.judge(&half, None).unwrap();
        for pool in &pools()[1..] {
            assert!(bits(&p.dense_on::<f32>(pool, &p.job::<f32>()).unwrap().0) == bits(&got));
            assert!(bits(&p.dense_on::<bf16>(pool, &p.job::<bf16>()).unwrap().0) == bits(&half));
        }
    }
}

#[test]
fn shards_together_are_the_whole() {
    property(40, problem(), |p| {
        let whole = EmbeddingGradOptions { shard: 0, shards: 1, ..p.options };
        let (want, outcome) = Problem { options: whole, ..p.clone() }.dense::<bf16>().unwrap();
        let (mut got, mut found) = (Vec::new(), 0);
        for shard in 0..5 {
            let options = EmbeddingGradOptions { shard, shards: 5, ..p.options };
            let (part, own) = Problem { options, ..p.clone() }.dense::<bf16>().unwrap();
            got.extend(part);
            found += own.found;
        }
        prop_assert!(bits(&got) == bits(&want) && found == outcome.found);
        Ok(())
    });
}

/// Every way to lay operands out gives the bits of the plain one.
#[test]
fn operands_may_have_any_strides() {
    let (a, b, width) = (5, 7, 11);
    let n = a * b;
    let index: Vec<i64> = (0..n as i64).map(|i| i * i % 6).collect();
    let grad: Vec<f32> = (0..n * width).map(|i| (i as f32 * 0.37).sin()).collect();
    let options = EmbeddingGradOptions::new(6);
    let job = EmbeddingGrad::new(options, DType::F32, n, width).unwrap();
    let run = |grad: Strided<f32>, indices: StridedIndices| {
        let (mut out, mut workspace) = (vec![0.0f32; 6 * width], garbage(job.workspace_size()));
        job.dense(&pools()[1], &grad, &indices, &mut out, workspace.as_mut_slice()).unwrap();
        out
    };
    let plain =
        || Strided::rows(&grad, 0, &[a, b, width], &[(b * width) as isize, width as isize, 1]).unwrap();
    let numbers = || StridedIndices::I64(Strided::elements(&index, 0, &[a, b], &[b as isize, 1]).unwrap());
    let want = run(plain(), numbers());
    // Leading dimensions joined.
    let joined = Strided::rows(&grad, 0, &[n, width], &[width as isize, 1]).unwrap();
    assert_eq!(run(joined, numbers()), want);
    // Strided and reversed columns, with gaps between rows.
    let mut spread = vec![f32::NAN; n * width * 3];
    for (i, &x) in grad.iter().enumerate() {
        spread[(i / width) * width * 3 + (width - 1 - i % width) * 2] = x;
    }
    let strides = [(b * width * 3) as isize, (width * 3) as isize, -2];
    assert_eq!(
        run(Strided::rows(&spread, 2 * (width - 1), &[a, b, width], &strides).unwrap(), numbers()),
        want
    );
    // The leading dimensions exchanged in memory.
    let mut exchanged = vec![0.0; n * width];
    let mut turned = vec![0i32; n];
    for (at, i) in index.iter().enumerate() {
        let to = (at % b) * a + at / b;
        exchanged[to * width..][..width].copy_from_slice(&grad[at * width..][..width]);
        turned[to] = *i as i32;
    }
    let strides = [width as isize, (a * width) as isize, 1];
    let indices = StridedIndices::I32(Strided::elements(&turned, 0, &[a, b], &[1, a as isize]).unwrap());
    assert_eq!(run(Strided::rows(&exchanged, 0, &[a, b, width], &strides).unwrap(), indices), want);
    // One number everywhere, as the gradient of a sum is.
    let ones = run(Strided::rows(&[1.0], 0, &[a, b, width], &[0, 0, 0]).unwrap(), numbers());
    let counts: Vec<f32> =
        (0..6).flat_map(|r| [index.iter().filter(|i| **i == r).count() as f32; 11]).collect();
    assert_eq!(ones, counts);
    // Eight dimensions.
    let sizes = [1, 5, 1, 7, 1, 1, 1, 11];
    let strides = [0, 77, 3, 11, 9, 0, 5, 1];
    assert_eq!(run(Strided::rows(&grad, 0, &sizes, &strides).unwrap(), numbers()), want);
}

#[test]
fn operands_that_reach_outside_are_refused() {
    let data = [0.0f32; 10];
    let refused = |offset, sizes: &[usize], strides: &[isize]| {
        Strided::rows(&data, offset, sizes, strides).map(|_| ()).unwrap_err().code == Code::Shape
    };
    assert!(
        Strided::rows(&data, 0, &[5, 2], &[2, 1]).is_ok()
            && Strided::rows(&data, 9, &[5, 2], &[-2, -1]).is_ok()
    );
    assert!(refused(1, &[5, 2], &[2, 1]) && refused(8, &[5, 2], &[-2, -1]) && refused(0, &[], &[]));
    assert!(
        refused(0, &[usize::MAX, 2], &[1, 1])
            && refused(0, &[3, 2], &[isize::MAX, 1])
            && refused(0, &[2], &[1, 1])
    );
    assert!(Strided::rows(&data, 99, &[0, 2], &[2, 1]).is_ok());
}

#[test]
fn bad_indices_are_named_or_skipped_and_counted() {
    property(60, (problem(), prop::collection::vec((0..700usize, any::<i64>()), 1..6)), |(mut p, bad)| {
        for (at, value) in bad {
            let n = p.index.len();
            if n > 0 && !(0..p.options.num_weights as i64).contains(&value) {
                p.index[at % n] = value;
            }
        }
        let outside = |i: &&i64| **i < 0 || **i >= p.options.num_weights as i64;
        let first = p.index.iter().position(|i| outside(&i));
        let count = p.index.iter().filter(outside).count() as u64;
        match (p.dense::<f32>(), first) {
            (Ok(_), None) => {}
            (Err(e), Some(at)) => {
                let named =
                    format!("index {} at position {at} is outside 0..{}", p.index[at], p.options.num_weights);
                prop_assert!(e.code == Code::Value && e.to_string().contains(&named), "{e}");
            }
            (got, _) => prop_assert!(false, "{:?} with first bad index {first:?}", got.map(|g| g.1)),
        }
        p.options.bad_index = BadIndex::Skip;
        let (got, outcome) = p.dense::<f32>().unwrap();
        p.judge(&got, outcome.norm)?;
        prop_assert_eq!(outcome.report.skipped, count);
        prop_assert_eq!(outcome.report.first_skipped, first.map(|at| (at as u64, p.index[at])));
        Ok(())
    });
}

#[test]
fn every_integer_type_is_checked() {
    let grad = [1.0f32, 2.0, 3.0];
    let job = EmbeddingGrad::new(
        EmbeddingGradOptions { bad_index: BadIndex::Skip, ..EmbeddingGradOptions::new(100) },
        DType::F32,
        3,
        1,
    )
    .unwrap();
    let run = |indices: StridedIndices| {
        let (mut out, mut workspace) = ([0.0f32; 100], garbage(job.workspace_size()));
        let rows = Strided::rows(&grad, 0, &[3, 1], &[1, 1]).unwrap();
        let outcome = job.dense(&pools()[0], &rows, &indices, &mut out, workspace.as_mut_slice()).unwrap();
        (out[3], out.iter().sum::<f32>(), outcome.report.skipped, outcome.report.first_skipped.unwrap())
    };
    macro_rules! of {
        ($($kind:ident: $t:ty, $bad:expr;)*) => { $({
            let index: [$t; 3] = [3, $bad, 3];
            let got = run(StridedIndices::$kind(Strided::elements(&index, 0, &[3], &[1]).unwrap()));
            assert_eq!(got, (4.0, 4.0, 1, (1, $bad as i64)), stringify!($kind));
        })* };
    }
    of!(U8: u8, 200; I8: i8, -1; I16: i16, i16::MIN; I32: i32, i32::MAX; I64: i64, i64::MIN; I64: i64, (1i64 << 32) + 3;);
}

#[test]
fn overflow_is_infinite_or_saturates_and_is_counted() {
    let nan = f64::NAN;
    // Columns: too large, too small, fits exactly, infinite from the start, not a number, rounds up to
    // infinity.
    let rows =
        [60000.0, -60000.0, 32752.0, f64::INFINITY, nan, 65504.0, 60000.0, -60000.0, 32752.0, 1.0, 1.0, 16.0];
    let mut p =
        Problem { options: EmbeddingGradOptions::new(3), width: 6, grad: rows.to_vec(), index: vec![1, 1] };
    let infinite = f16::INFINITY;
    let check = |got: Vec<f16>, outcome: Outcome, large: f16| {
        assert_eq!(got[6..10], [large, -large, f16::from_f64(65504.0), infinite]);
        assert!(got[10].is_nan() && got[11] == large && got[..6].iter().all(|x| *x == f16::ZERO));
        let want = EmbeddingGradReport {
            overflowed: 3,
            nonfinite: 2,
            first: Some((1, 0)),
            ..EmbeddingGradReport::default()
        };
        assert_eq!(outcome.report, want);
    };
    for tier in Tier::ALL.into_iter().filter(|t| *t <= Tier::detect()) {
        // Once in the lanes, once in what is left over.
        p.options.overflow = Overflow::Inf;
        let (got, outcome) =
            p.dense_on::<f16>(&pools()[1], &p.job::<f16>().with_tier(tier).unwrap()).unwrap();
        check(got, outcome, infinite);
        p.options.overflow = Overflow::Saturate;
        let (got, outcome) =
            p.dense_on::<f16>(&pools()[1], &p.job::<f16>().with_tier(tier).unwrap()).unwrap();
        check(got, outcome, f16::MAX);
        let mut wide = p.clone();
        wide.width = 24;
        wide.grad = rows.chunks(6).flat_map(|r| r.repeat(4)).collect();
        let (got, outcome) =
            wide.dense_on::<f16>(&pools()[1], &wide.job::<f16>().with_tier(tier).unwrap()).unwrap();
        let plain: Vec<f16> = p.dense::<f16>().unwrap().0;
        assert!(bits(&got[24..48]) == bits(&plain[6..12].repeat(4)));
        assert_eq!((outcome.report.overflowed, outcome.report.nonfinite), (12, 8));
    }
    // Wide types overflow as well.
    let p = Problem {
        options: EmbeddingGradOptions { overflow: Overflow::Saturate, ..EmbeddingGradOptions::new(1) },
        grad: vec![3e38, 3e38],
        width: 1,
        index: vec![0, 0],
    };
    let (got, outcome) = p.dense::<f32>().unwrap();
    assert!(got[0] == f32::INFINITY && outcome.report.nonfinite == 1);
    let p = Problem { options: p.options, grad: vec![3.39e38, 0.01e38], ..p };
    let (got, outcome) = p.dense::<bf16>().unwrap();
    assert!(got[0] == bf16::MAX && outcome.report.overflowed == 1, "{got:?} {outcome:?}");
}

#[test]
fn accumulation_touches_only_rows_that_are_read() {
    property(40, problem(), |mut p| {
        p.options.max_norm = None;
        let own = p.options.rows();
        let before: Vec<bf16> =
            (0..own.len() * p.width).map(|i| bf16::from_f64((i % 97) as f64 / 7.0)).collect();
        let (grad, n) = (values::<bf16>(&p.grad), p.index.len());
        let rows = Strided::rows(&grad, 0, &[n, p.width], &[p.width as isize, 1]).unwrap();
        let index = StridedIndices::I64(Strided::elements(&p.index, 0, &[n], &[1]).unwrap());
        let job = p.job::<bf16>();
        let (mut got, mut workspace) = (before.clone(), garbage(job.workspace_size()));
        job.accumulate(&pools()[2], &rows, &index, &mut got, workspace.as_mut_slice()).unwrap();
        // The sums in f32 are those of the dense form.
        let exact = Problem { grad: grad.iter().map(|x| x.to_f64()).collect(), ..p.clone() };
        let (sums, _) = exact.dense::<f32>().unwrap();
        let truth = exact.truth::<bf16>();
        for (i, (got, before)) in got.iter().zip(&before).enumerate() {
            let read = truth[own.start + i / p.width].2 > 0;
            let want = if read { bf16::from_f32(sums[i] + before.to_f32()) } else { *before };
            prop_assert!(got.to_bits() == want.to_bits(), "element {i}: {got} instead of {want}");
        }
        Ok(())
    });
}

/// Only the rows that are read, and an update that needs no more: the table is never written as a whole.
#[test]
fn the_sparse_form_holds_the_rows_that_are_read() {
    property(60, problem(), |p| {
        let own = p.options.rows();
        let (want, dense) = p.dense::<f16>().unwrap();
        let (grad, n) = (values::<f16>(&p.grad), p.index.len());
        let operand = Strided::rows(&grad, 0, &[n, p.width], &[p.width as isize, 1]).unwrap();
        let index = StridedIndices::I64(Strided::elements(&p.index, 0, &[n], &[1]).unwrap());
        let room = n.min(own.len());
        let (mut rows, mut sums) = (vec![-7; room], vec![f16::NAN; room * p.width]);
        let job = p.job::<f16>();
        let mut workspace = garbage(job.workspace_size());
        let got = job
            .sparse(&pools()[1], &operand, &index, &mut rows, &mut sums, workspace.as_mut_slice())
            .unwrap();
        prop_assert_eq!((got.found, got.norm, got.report), (dense.found, dense.norm, dense.report));
        prop_assert!(
            rows[..got.found].is_sorted_by(|a, b| a < b) && rows[got.found..].iter().all(|r| *r == -7)
        );
        prop_assert!(sums[got.found * p.width..].iter().all(|x| x.is_nan()));
        // Gradient descent on a table, by the dense and by the sparse form.
        let table: Vec<f32> = (0..want.len()).map(|i| i as f32).collect();
        let step = |w: &mut f32, g: &f16| *w -= 0.1 * g.to_f32();
        let (mut a, mut b) = (table.clone(), table);
        a.iter_mut().zip(&want).for_each(|(w, g)| step(w, g));
        for (row, sums) in rows[..got.found].iter().zip(sums.chunks(p.width)) {
            let at = (*row as usize - own.start) * p.width;
            b[at..at + p.width].iter_mut().zip(sums).for_each(|(w, g)| step(w, g));
        }
        prop_assert_eq!(a, b);
        if got.found > 0 {
            let small = got.found - 1;
            let (mut rows, mut sums) = (vec![0; small], vec![f16::ZERO; small * p.width]);
            let refused =
                job.sparse(&pools()[1], &operand, &index, &mut rows, &mut sums, workspace.as_mut_slice());
            prop_assert_eq!(refused.unwrap_err().code, Code::Value);
        }
        Ok(())
    });
}

#[test]
fn clipping_leaves_the_norm_that_was_asked_for() {
    let p = Problem {
        options: EmbeddingGradOptions { max_norm: Some(2.0), ..EmbeddingGradOptions::new(50) },
        width: 33,
        grad: (0..400 * 33).map(|i| ((i * 31 % 101) as f64 - 50.0) / 20.0).collect(),
        index: (0..400).map(|i| i * i % 50).collect(),
    };
    let (got, outcome) = p.dense::<f32>().unwrap();
    let exact = p.truth::<f32>().iter().flat_map(|r| r.0.clone()).map(|x| x * x).sum::<f64>().sqrt();
    let norm = got.iter().map(|x| *x as f64 * *x as f64).sum::<f64>().sqrt();
    // Both norms are of f32 sums of up to 16 terms.
    assert!((outcome.norm.unwrap() / exact - 1.0).abs() < 17.0 * f32::EPSILON as f64);
    assert!((norm / 2.0 - 1.0).abs() < 20.0 * f32::EPSILON as f64, "{norm}");
    // Numbers that are not finite are not hidden by a factor.
    let mut bad = p.clone();
    bad.grad[5] = f64::NAN;
    assert!(bad.dense::<f32>().unwrap().0.iter().filter(|x| x.is_nan()).count() >= 33);
}

#[test]
fn empty_problems() {
    for (n, rows, width) in [(0, 4, 3), (0, 0, 3), (5, 4, 0), (0, 0, 0)] {
        let p = Problem {
            options: EmbeddingGradOptions::new(rows),
            width,
            grad: vec![1.0; n * width],
            index: vec![1; n],
        };
        let (got, outcome) = p.dense::<f32>().unwrap();
        assert!(got.len() == rows * width && got.iter().all(|x| x.to_bits() == 0), "{n} {rows} {width}");
        assert_eq!(outcome.found, n.min(1));
    }
    let p = Problem { options: EmbeddingGradOptions::new(0), width: 2, grad: vec![1.0; 2], index: vec![0] };
    assert_eq!(p.dense::<f32>().unwrap_err().code, Code::Value);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let new = |o| EmbeddingGrad::new(o, DType::F32, 4, 3).map(|_| ()).map_err(|e| e.code);
    assert_eq!(
        new(EmbeddingGradOptions { shard: 2, shards: 2, ..EmbeddingGradOptions::new(5) }),
        Err(Code::Attribute)
    );
    assert_eq!(
        new(EmbeddingGradOptions { max_norm: Some(-1.0), ..EmbeddingGradOptions::new(5) }),
        Err(Code::Attribute)
    );
    assert_eq!(
        new(EmbeddingGradOptions { max_norm: Some(f64::NAN), ..EmbeddingGradOptions::new(5) }),
        Err(Code::Attribute)
    );
    assert_eq!(new(EmbeddingGradOptions::new(1 << 33)), Err(Code::Unsupported));
    let p = Problem {
        options: EmbeddingGradOptions::new(5),
        width: 3,
        grad: vec![1.0; 12],
        index: vec![1, 2, 1, 4],
    };
    let job = p.job::<f32>();
    let grad = values::<f32>(&p.grad);
    let rows = Strided::rows(&grad, 0, &[4, 3], &[3, 1]).unwrap();
    let index = StridedIndices::I64(Strided::elements(&p.index, 0, &[4], &[1]).unwrap());
    let mut out = vec![0.0f32; 15];
    let mut workspace = garbage(job.workspace_size());
    let short = job.workspace_size() - 1;
    let mut run =
        |job: &EmbeddingGrad, rows: &Strided<f32>, out: &mut [f32], bytes: std::ops::Range<usize>| {
            let got = job.dense(&pools()[0], rows, &index, out, &mut workspace.as_mut_slice()[bytes]);
            got.map(|_| ()).map_err(|e| e.code)
        };
    let all = 0..job.workspace_size();
    assert_eq!(run(&job, &rows, &mut out, all.clone()), Ok(()));
    assert_eq!(run(&job, &rows, &mut out, 0..short), Err(Code::Device));
    assert_eq!(run(&job, &rows, &mut out[..14], all.clone()), Err(Code::Shape));
    let fewer = Strided::rows(&grad, 0, &[3, 3], &[3, 1]).unwrap();
    assert_eq!(run(&job, &fewer, &mut out, all.clone()), Err(Code::Shape));
    let double = EmbeddingGrad::new(p.options, DType::F64, 4, 3).unwrap();
    assert!(run(&double, &rows, &mut out, all).is_err());
}
