//! `bench machine`: the machine's limits, against which everything else is measured.

use crate::cpu::limits::{self, Arithmetic, Limits, Workload};
use crate::cpu::{Cpu, Tier};
use crate::machine::Machine;
use crate::report::Table;
use anyhow::Result;
use serde::Serialize;

/// The machine and its measured limits.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Model name of the processor.
    pub processor: String,
    /// Instructions in use.
    pub tier: &'static str,
    /// Threads in use.
    pub threads: usize,
    /// Multiply-adds of f32, in 10⁹ floating-point operations a second. Products of f16 have the same limit:
    /// it is widened in registers.
    pub f32_gflops: f64,
    /// The same for products of bf16: of pairs where there are instructions for these, widened otherwise.
    pub bf16_gflops: f64,
    /// The same of f64.
    pub f64_gflops: f64,
    /// Ordinary copy in 10⁹ bytes a second, read and written counted both.
    pub copy_gbs: f64,
    /// The same with stores that bypass the cache.
    pub copy_streaming_gbs: f64,
    /// Reading alone, in 10⁹ bytes a second.
    pub read_gbs: f64,
}

/// Measures the limits of a device's threads.
///
/// # Errors
/// If `HEADWATER_TIER` names no tier, or there is too little memory.
pub fn measure(device: &Cpu, workload: Workload) -> Result<Limits> {
    Ok(limits::measure(device.pool(), Tier::current()?, workload)?)
}

/// Measures arithmetic once, alternately with the measured kernel.
///
/// # Errors
/// If `HEADWATER_TIER` names no tier.
pub fn arithmetic(device: &Cpu, workload: Workload) -> Result<Arithmetic> {
    Ok(limits::arithmetic(device.pool(), Tier::current()?, Workload { runs: 1, ..workload }))
}

impl Measured {
    /// Names the machine that limits belong to.
    pub fn new(limits: &Limits) -> Measured {
        Measured {
            processor: Machine::detect().processor,
            tier: limits.tier.name(),
            threads: limits.threads,
            f32_gflops: limits.f32 / 1e9,
            bf16_gflops: limits.bf16 / 1e9,
            f64_gflops: limits.f64 / 1e9,
            copy_gbs: limits.copy / 1e9,
            copy_streaming_gbs: limits.copy_streaming / 1e9,
            read_gbs: limits.read / 1e9,
        }
    }

    /// As a table.
    pub fn table(&self) -> Table {
        let title = format!("Limits of {} on {} threads ({})", self.processor, self.threads, self.tier);
        let mut t = Table::new(&title, &["what", ">rate"]);
        t.row(["multiply-add, f32 (also f16, widened)".into(), format!("{:.1} GFLOP/s", self.f32_gflops)]);
        t.row(["multiply-add, bf16".into(), format!("{:.1} GFLOP/s", self.bf16_gflops)]);
        t.row(["multiply-add, f64".into(), format!("{:.1} GFLOP/s", self.f64_gflops)]);
        t.row(["copy, read + written".into(), format!("{:.1} GB/s", self.copy_gbs)]);
        t.row(["copy past the cache".into(), format!("{:.1} GB/s", self.copy_streaming_gbs)]);
        t.row(["read".into(), format!("{:.1} GB/s", self.read_gbs)]);
        t
    }
}
