//! Benchmarks: the machine's limits, and the share of them that kernels and training steps reach.
//!
//! Owns measuring and counting; how results are shown is the command line's business. Times are medians of
//! single runs.

pub mod embedding_grad;
pub mod feed;
pub mod machine;
pub mod ops;
pub mod step;

use crate::core::DType;
use crate::cpu::limits::Limits;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Repetitions of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetitions {
    /// Runs before the measured ones, for memory to be touched and clocks to settle.
    pub warm_up: usize,
    /// Fewest measured runs; at least one.
    pub least: usize,
    /// Most measured runs.
    pub most: usize,
    /// After this time no further run is begun, once `least` are done.
    pub limit: Duration,
}

impl Default for Repetitions {
    fn default() -> Self {
        Repetitions { warm_up: 2, least: 5, most: 200, limit: Duration::from_secs(1) }
    }
}

/// Times of single runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Median in seconds.
    pub seconds: f64,
    /// Shortest run in seconds.
    pub best: f64,
    /// Number of runs.
    pub runs: usize,
}

impl Times {
    /// Median and best of runs in seconds.
    ///
    /// # Panics
    /// If there are none.
    pub fn of(mut seconds: Vec<f64>) -> Times {
        Times { seconds: median(&mut seconds), best: seconds[0], runs: seconds.len() }
    }
}

/// The middle of numbers, which it sorts; of an even count the mean of both.
///
/// # Panics
/// If there are none.
pub fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let count = numbers.len();
    (numbers[(count - 1) / 2] + numbers[count / 2]) / 2.0
}

/// Runs `f` as often as asked and returns its times.
///
/// # Errors
/// The first error of `f`.
pub fn time<E>(repetitions: Repetitions, mut f: impl FnMut() -> Result<(), E>) -> Result<Times, E> {
    for _ in 0..repetitions.warm_up {
        f()?;
    }
    let begun = Instant::now();
    let mut seconds = Vec::new();
    while seconds.len() < repetitions.least.max(1)
        || (seconds.len() < repetitions.most && begun.elapsed() < repetitions.limit)
    {
        let start = Instant::now();
        f()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(Times::of(seconds))
}

/// The nearer one of the machine's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// Arithmetic.
    Compute,
    /// Memory traffic.
    Memory,
}

/// A time held against the machine's limits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rated {
    /// The times.
    #[serde(flatten)]
    pub times: Times,
    /// Floating-point operations that the result needs.
    pub flops: f64,
    /// Bytes that must move at least: every operand once.
    pub bytes: f64,
    /// Floating-point operations a second, in 10⁹.
    pub gflops: f64,
    /// Bytes a second, in 10⁹.
    pub gbs: f64,
    /// Its bottleneck.
    pub bound: Bottleneck,
    /// The time at that limit over the time measured: 1 cannot be beaten.
    pub share: f64,
}

impl Rated {
    /// Holds a time against the limits for arithmetic on operands of `dtype`.
    pub fn new(times: Times, dtype: DType, flops: f64, bytes: f64, limits: &Limits) -> Rated {
        let s = times.seconds.max(1e-12);
        let compute = flops / limits.flops(dtype) > bytes / limits.bandwidth();
        Rated {
            flops,
            bytes,
            gflops: flops / s / 1e9,
            gbs: bytes / s / 1e9,
            bound: if compute { Bottleneck::Compute } else { Bottleneck::Memory },
            share: limits.floor(dtype, flops, bytes) / s,
            times,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(Times::of(vec![3.0, 1.0, 2.0]), Times { seconds: 2.0, best: 1.0, runs: 3 });
        assert_eq!(Times::of(vec![4.0, 1.0, 2.0, 3.0]).seconds, 2.5);
    }

    #[test]
    fn runs_are_counted_and_errors_end_them() {
        let mut calls = 0;
        let repetitions = Repetitions { warm_up: 3, least: 4, most: 9, limit: Duration::ZERO };
        let t = time(repetitions, || -> Result<(), ()> {
            calls += 1;
            Ok(())
        });
        assert_eq!((calls, t.unwrap().runs), (7, 4));
        assert_eq!(time(repetitions, || Err("stop")), Err("stop"));
    }
}
