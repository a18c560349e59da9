//! `bench embedding-grad`: the gradient of an embedding on a ladder, from the simplest loop to the kernel in
//! use. Each rung has time, memory, and error against f64.

use super::{Rated, Repetitions, Times, time};
use crate::core::DType;
use crate::core::ops::index::embedding_grad::{EmbeddingGradOptions, Method};
use crate::cpu::element::Float;
use crate::cpu::kernels::embedding_grad::{EmbeddingGrad, Outcome, Strided, StridedIndices, Summed};
use crate::cpu::limits::Limits;
use crate::cpu::{Cpu, CpuMemory, Pool};
use crate::report::Table;
use anyhow::Result;
use half::{bf16, f16};
use serde::Serialize;
use std::collections::HashMap;
use std::marker::PhantomData;

/// Distribution of indices over the rows of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Every row as likely as any other.
    Uniform,
    /// Row `r` with probability proportional to `1 / (r + 1)`, as words in text.
    Zipf,
    /// Half of all positions are of one row, the others uniform.
    Heavy,
    /// One row after the other.
    Turn,
}

/// A problem to measure.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Problem {
    /// Rows of the table.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Indices, each with a row of gradient.
    pub positions: usize,
    /// Type of gradient and result.
    #[serde(serialize_with = "named")]
    pub dtype: DType,
    /// Distribution of the indices.
    pub indices: Distribution,
    /// Method that groups positions by row.
    #[serde(serialize_with = "method")]
    pub method: Method,
    /// Shards of the rung that computes the table in pieces.
    pub shards: usize,
}

fn named<S: serde::Serializer>(dtype: &DType, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(dtype.name())
}

fn method<S: serde::Serializer>(method: &Method, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(method.name())
}

/// One way to compute it.
#[derive(Clone, Debug, Serialize)]
pub struct Rung {
    /// Its name.
    pub name: &'static str,
    /// Time, traffic and share of the machine's limit. The bytes are those that no way could avoid: the rows
    /// of gradient that are added and the indices, read once, and the result, written once.
    #[serde(flatten)]
    pub rated: Rated,
    /// Bytes of workspace.
    pub workspace: usize,
    /// Bytes of the result held at one time.
    pub output: usize,
    /// Largest difference from sums in f64, over the largest of those (of the first columns).
    pub error: f64,
}

/// A problem on every rung.
#[derive(Clone, Debug, Serialize)]
pub struct Ladder {
    /// The problem.
    pub problem: Problem,
    /// Rows that are read.
    pub distinct: usize,
    /// Positions of the row that is read most.
    pub heaviest: usize,
    /// Method that was taken, and why.
    pub method: &'static str,
    /// See `method`.
    pub why: String,
    /// The rungs, bottom first.
    pub rungs: Vec<Rung>,
}

/// Climbs the ladder; `last` skips the rungs below the kernel.
///
/// # Errors
/// If there is too little memory, or what the kernel refuses.
pub fn climb(
    device: &Cpu,
    limits: &Limits,
    problem: Problem,
    repetitions: Repetitions,
    last: bool,
) -> Result<Ladder> {
    match problem.dtype {
        DType::F64 => Climb::<f64>::new(problem)?.all(device, limits, repetitions, last),
        DType::F16 => Climb::<f16>::new(problem)?.all(device, limits, repetitions, last),
        DType::BF16 => Climb::<bf16>::new(problem)?.all(device, limits, repetitions, last),
        _ => Climb::<f32>::new(problem)?.all(device, limits, repetitions, last),
    }
}

impl Ladder {
    /// As a table.
    pub fn table(&self) -> Table {
        let Problem { rows, width, positions, dtype, indices, .. } = self.problem;
        let title = format!(
            "{positions} {indices:?} indices into {rows} x {width} {dtype}: {} rows read, one of them {} times; {}: {}",
            self.distinct, self.heaviest, self.method, self.why
        );
        let columns = ["rung", ">ms", ">GB/s", ">of the limit", ">workspace MB", ">result MB", ">error"];
        let mut table = Table::new(&title, &columns);
        for r in &self.rungs {
            table.row([
                r.name.into(),
                format!("{:.3}", r.rated.times.seconds * 1e3),
                format!("{:.1}", r.rated.gbs),
                format!("{:.0} %", r.rated.share * 100.0),
                format!("{:.2}", r.workspace as f64 / 1e6),
                format!("{:.2}", r.output as f64 / 1e6),
                format!("{:.1e}", r.error),
            ]);
        }
        table
    }
}

/// A row added to another in its own type, as a loop over the table does it.
trait AddRow: Summed {
    fn add_row(out: &mut [Self], row: &[Self]);
}

macro_rules! add_row {
    (wide $t:ty) => {
        impl AddRow for $t {
            fn add_row(out: &mut [$t], row: &[$t]) {
                out.iter_mut().zip(row).for_each(|(o, x)| *o += x);
            }
        }
    };
    (half $t:ty) => {
        impl AddRow for $t {
            fn add_row(out: &mut [$t], row: &[$t]) {
                use half::slice::HalfFloatSliceExt;
                let (mut a, mut b) = ([0.0f32; 256], [0.0f32; 256]);
                for (out, row) in out.chunks_mut(256).zip(row.chunks(256)) {
                    let (a, b) = (&mut a[..out.len()], &mut b[..out.len()]);
                    out.convert_to_f32_slice(a);
                    row.convert_to_f32_slice(b);
                    a.iter_mut().zip(&*b).for_each(|(a, b)| *a += b);
                    out.convert_from_f32_slice(a);
                }
            }
        }
    };
}
add_row!(wide f32);
add_row!(wide f64);
add_row!(half f16);
add_row!(half bf16);

/// Columns on which errors are measured.
const SAMPLED: usize = 32;

/// The problem's numbers.
struct Climb<T> {
    problem: Problem,
    /// In memory of the device, as in a plan.
    grad: CpuMemory,
    index: Vec<i64>,
    kind: PhantomData<T>,
    /// Sums in f64 of the first columns of the rows that are read.
    truth: HashMap<i64, Vec<f64>>,
    /// The largest of them.
    largest: f64,
    heaviest: usize,
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Distribution {
    /// So many indices below `rows`; the same each time.
    pub fn draw(self, rows: usize, positions: usize) -> Vec<i64> {
        let mut random = Random(rows as u64 ^ (positions as u64) << 32);
        let uniform = |random: &mut Random| (random.unit() * rows as f64) as i64;
        match self {
            Distribution::Uniform => (0..positions).map(|_| uniform(&mut random)).collect(),
            Distribution::Zipf => {
                let mut total = 0.0;
                let weight = |r: usize| {
                    total += 1.0 / (r + 1) as f64;
                    total
                };
                let ends: Vec<f64> = (0..rows).map(weight).collect();
                let last = ends.last().copied().unwrap_or(0.0);
                let one = |x: f64| ends.partition_point(|&e| e <= x) as i64;
                (0..positions).map(|_| one(random.unit() * last)).collect()
            }
            Distribution::Turn => (0..positions).map(|at| (at % rows.max(1)) as i64).collect(),
            Distribution::Heavy => {
                let one = |random: &mut Random| match random.bits() & 1 {
                    0 => rows as i64 / 3,
                    _ => uniform(random),
                };
                (0..positions).map(|_| one(&mut random)).collect()
            }
        }
    }
}

impl<T: AddRow> Climb<T> {
    fn new(problem: Problem) -> Result<Self> {
        let Problem { rows, width, positions, indices, .. } = problem;
        anyhow::ensure!(rows > 0 || positions == 0, "a table without rows cannot be read");
        let index = indices.draw(rows, positions);
        let mut random = Random(1);
        let mut memory = CpuMemory::new(positions * width * size_of::<T>())?;
        let grad: &mut [T] = bytemuck::cast_slice_mut(memory.as_mut_slice());
        grad.iter_mut().for_each(|x| *x = T::from_f64(2.0 * random.unit() - 1.0));
        let mut truth = HashMap::<i64, Vec<f64>>::new();
        let mut counts = HashMap::<i64, usize>::new();
        for (at, &i) in index.iter().enumerate() {
            let sums = truth.entry(i).or_insert_with(|| vec![0.0; width.min(SAMPLED)]);
            sums.iter_mut().zip(&grad[at * width..]).for_each(|(s, x)| *s += number(*x));
            *counts.entry(i).or_default() += 1;
        }
        let heaviest = counts.into_values().max().unwrap_or(0);
        let largest = truth.values().flatten().fold(f64::MIN_POSITIVE, |m: f64, x| m.max(x.abs()));
        Ok(Climb { problem, grad: memory, index, kind: PhantomData, truth, largest, heaviest })
    }

    fn all(&self, device: &Cpu, limits: &Limits, repetitions: Repetitions, last: bool) -> Result<Ladder> {
        let Problem { rows, width, positions, dtype, shards, .. } = self.problem;
        let (mut rungs, table) = (Vec::new(), rows * width * dtype.size());
        let mut rung = |name, times: Times, output: usize, held: usize, workspace, error| {
            let bytes = (positions * (8 + width * dtype.size()) + output) as f64;
            let rated = Rated::new(times, dtype, (positions * width) as f64, bytes, limits);
            rungs.push(Rung { name, rated, workspace, output: held, error });
        };
        let mut memory = CpuMemory::new(table)?;
        let out: &mut [T] = bytemuck::cast_slice_mut(memory.as_mut_slice());
        out.fill(T::from_f64(1.0));
        if !last {
            let times = time(repetitions, || self.naive(out))?;
            rung(
                "naive: element by element, sums in the result's type",
                times,
                table,
                table,
                0,
                self.error_of(0, out),
            );
            let times = time(repetitions, || self.vectorised(out))?;
            rung("vectorised: row by row", times, table, table, 0, self.error_of(0, out));
            let job = self.job(1, 0)?.streaming(false);
            let mut run = self.runner(&job, Pool::new(1))?;
            let times = time(repetitions, || run(out).map(|_| ()))?;
            let workspace = job.workspace_size();
            rung(
                "deduplicated: sums in f32, each row written once",
                times,
                table,
                table,
                workspace,
                self.error_of(0, out),
            );
        }
        let job = self.job(1, 0)?;
        let mut run = self.runner(&job, device.pool().clone())?;
        let outcome = run(out)?;
        let times = time(repetitions, || run(out).map(|_| ()))?;
        let workspace = job.workspace_size();
        let name = "pipelined: blocks on all threads, rows fetched ahead, results past the caches";
        rung(name, times, table, table, workspace, self.error_of(0, out));

        if shards > 1 {
            let jobs = (0..shards).map(|k| self.job(shards, k)).collect::<Result<Vec<_>>>()?;
            let held = jobs.iter().map(|j| j.options().rows().len()).max().unwrap_or(0) * width;
            let mut runs =
                jobs.iter().map(|j| self.runner(j, device.pool().clone())).collect::<Result<Vec<_>>>()?;
            let mut piece = vec![T::from_f64(0.0); held];
            let times = time(repetitions, || -> Result<()> {
                for (job, run) in jobs.iter().zip(&mut runs) {
                    run(&mut piece[..job.options().rows().len() * width])?;
                }
                Ok(())
            })?;
            let mut error: f64 = 0.0;
            for (job, run) in jobs.iter().zip(&mut runs) {
                let own = job.options().rows();
                run(&mut piece[..own.len() * width])?;
                error = error.max(self.error_of(own.start, &piece[..own.len() * width]));
            }
            rung(
                "sharded: the same, a piece of the table at a time",
                times,
                table,
                held * dtype.size(),
                workspace,
                error,
            );
        }

        let found = outcome.found;
        let (grad, indices) = self.operands()?;
        let (mut ids, mut workspace) = (vec![0; found], CpuMemory::new(job.workspace_size())?);
        let sums = &mut out[..found * width];
        let times = time(repetitions, || {
            job.sparse(device.pool(), &grad, &indices, &mut ids, sums, workspace.as_mut_slice()).map(|_| ())
        })?;
        let error =
            ids.iter().zip(sums.chunks(width.max(1))).map(|(&i, sums)| self.error_of(i as usize, sums));
        let (error, held) = (error.fold(0.0, f64::max), found * (8 + width * dtype.size()));
        rung("sparse: only the rows that are read", times, held, held, workspace.as_slice().len(), error);
        Ok(Ladder {
            problem: self.problem,
            distinct: found,
            heaviest: self.heaviest,
            method: outcome.choice.method.name(),
            why: match outcome.choice.distinct {
                Some(share) => {
                    format!("{} ({:.0} % of a sample distinct)", outcome.choice.why, share * 100.0)
                }
                None => outcome.choice.why.into(),
            },
            rungs,
        })
    }

    fn grad(&self) -> &[T] {
        bytemuck::cast_slice(self.grad.as_slice())
    }

    fn job(&self, shards: usize, shard: usize) -> Result<EmbeddingGrad> {
        let Problem { rows, width, positions, dtype, method, .. } = self.problem;
        let options = EmbeddingGradOptions { shards, shard, method, ..EmbeddingGradOptions::new(rows) };
        Ok(EmbeddingGrad::new(options, dtype, positions, width)?)
    }

    fn operands(&self) -> Result<(Strided<'_, T>, StridedIndices<'_>)> {
        let (n, width) = (self.problem.positions, self.problem.width);
        let grad = Strided::rows(self.grad(), 0, &[n, width], &[width as isize, 1])?;
        Ok((grad, StridedIndices::I64(Strided::elements(&self.index, 0, &[n], &[1])?)))
    }

    /// The dense form, ready to run.
    fn runner<'a>(
        &'a self,
        job: &'a EmbeddingGrad,
        pool: Pool,
    ) -> Result<impl FnMut(&mut [T]) -> Result<Outcome> + 'a> {
        let (grad, indices) = self.operands()?;
        let mut workspace = CpuMemory::new(job.workspace_size())?;
        Ok(move |out: &mut [T]| Ok(job.dense(&pool, &grad, &indices, out, workspace.as_mut_slice())?))
    }

    fn naive(&self, out: &mut [T]) -> Result<()> {
        let width = self.problem.width;
        out.iter_mut().for_each(|x| *x = T::from_f64(0.0));
        let grad = self.grad();
        for at in 0..self.index.len() {
            for column in 0..width {
                let to = self.index[at] as usize * width + column;
                out[to] = T::narrow(out[to].widen() + grad[at * width + column].widen());
            }
        }
        Ok(())
    }

    fn vectorised(&self, out: &mut [T]) -> Result<()> {
        let width = self.problem.width;
        out.fill(T::from_f64(0.0));
        for (&i, row) in self.index.iter().zip(self.grad().chunks_exact(width.max(1))) {
            T::add_row(&mut out[i as usize * width..][..width], row);
        }
        Ok(())
    }

    /// The error of the rows from `first` on.
    fn error_of(&self, first: usize, out: &[T]) -> f64 {
        let mut worst: f64 = 0.0;
        for (row, got) in out.chunks_exact(self.problem.width.max(1)).enumerate() {
            let Some(want) = self.truth.get(&((first + row) as i64)) else { continue };
            worst = want.iter().zip(got).fold(worst, |m, (w, g)| m.max((number(*g) - w).abs()));
        }
        worst / self.largest
    }
}

fn number<T: Float>(x: T) -> f64 {
    use crate::cpu::element::Wide;
    x.widen().to_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Tier;
    use std::time::Duration;

    /// Every rung computes the same sums, as well as its type can.
    #[test]
    fn every_rung_is_right() {
        let device = Cpu::new(2);
        let limits = Limits {
            threads: 2,
            tier: Tier::Portable,
            f32: 1e9,
            f64: 1e9,
            bf16: 1e9,
            copy: 1e9,
            copy_streaming: 1e9,
            read: 1e9,
        };
        let repetitions = Repetitions { warm_up: 0, least: 1, most: 1, limit: Duration::ZERO };
        for (indices, dtype) in [
            (Distribution::Uniform, DType::F32),
            (Distribution::Zipf, DType::BF16),
            (Distribution::Heavy, DType::F16),
        ] {
            let problem = Problem {
                rows: 300,
                width: 20,
                positions: 500,
                dtype,
                indices,
                method: Method::Auto,
                shards: 3,
            };
            let ladder = climb(&device, &limits, problem, repetitions, false).unwrap();
            assert_eq!(ladder.rungs.len(), 6);
            assert!(ladder.heaviest <= 500 && ladder.distinct <= 300);
            for (i, rung) in ladder.rungs.iter().enumerate() {
                // Sums in the result's type are off by a rounding for each position; those in f32 by one of
                // the result.
                let roundings = if i < 2 { ladder.heaviest as f64 } else { 1.0 };
                let f32_sums = 2.0 * ladder.heaviest as f64 * DType::F32.epsilon();
                assert!(
                    rung.error <= roundings * dtype.epsilon() + f32_sums,
                    "{}: {:e}",
                    rung.name,
                    rung.error
                );
            }
            assert_eq!(ladder.rungs[4].output, 100 * 20 * dtype.size());
            assert_eq!(ladder.table().rows.len(), 6);
        }
    }

    #[test]
    fn distributions_are_what_they_say() {
        let share = |d: Distribution, row: i64| {
            let drawn = d.draw(1000, 20_000);
            assert!(drawn.iter().all(|i| (0..1000).contains(i)));
            drawn.iter().filter(|i| **i == row).count() as f64 / 20_000.0
        };
        assert!(share(Distribution::Uniform, 333) < 0.005);
        // 1 / (1 + 1/2 + … + 1/1000) = 0.1336
        assert!((share(Distribution::Zipf, 0) - 0.1336).abs() < 0.02);
        assert!((share(Distribution::Heavy, 333) - 0.5).abs() < 0.02);
    }
}
