//! `headwater bench kernel`.

use super::kernels::parse_shape;
use super::op::parse_dtype;
use super::{Outcome, Printer, Usage};
use crate::bench::embedding_grad::Distribution;
use crate::devices;
use crate::kernels::{KernelProblem, KernelTimes, RungTimes, embedding_grad, floor, time};
use crate::report::{Table, text};
use anyhow::{Result, bail, ensure};
use headwater_ascend::Chip;
use headwater_ascend::kernels::Rung;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The kernel: add, rms_norm, rms_norm_grad, embedding, embedding_grad, matmul, attention, or an operator of one tensor
    /// such as gelu.
    name: String,
    /// Sizes of the operand. For norms: rows and columns. For embeddings: indices, rows of the table and columns. For
    /// matmul: rows, columns and terms. For attention: samples, heads, positions and size of a head (default: 4096x4096;
    /// for embeddings 16384x32000x1024).
    #[arg(long, value_name = "AxB")]
    shape: Option<String>,
    /// Type of the elements: f32, f16 or bf16.
    #[arg(long, default_value = "f16")]
    dtype: String,
    /// Cores to use at most (default: all of the chip).
    #[arg(long)]
    cores: Option<u32>,
    /// Implementation of embedding_grad: 1 (the simplest) to 4 (used in training), or all of them.
    #[arg(long)]
    rung: Option<String>,
    /// Distribution of the indices, with --rung.
    #[arg(long, value_enum, default_value_t = Distribution::Zipf)]
    distribution: Distribution,
}

pub fn run(args: &Args, device: &str, printer: Printer) -> Result<Outcome> {
    let Some(chip) = devices::simulated(device) else {
        bail!(Usage(format!(
            "times of kernels are predicted for a simulated chip, not for {device}: use --device ascend-sim:910b1"
        )));
    };
    let usual = if args.name.starts_with("embedding") { "16384x32000x1024" } else { "4096x4096" };
    let sizes = args.shape.as_deref().unwrap_or(usual);
    let problem = KernelProblem {
        name: args.name.clone(),
        shape: parse_shape(sizes).map_err(anyhow::Error::msg)?,
        dtype: parse_dtype(&args.dtype)?,
        cores: args.cores,
    };
    if let Some(rung) = &args.rung {
        return ladder(args, rung, sizes, chip, &problem, printer);
    }
    let times = time(chip, &problem)?;
    let label = times.first().map_or("", |t| t.label);
    let mut table = Table::new(
        &format!("{} {sizes} {} on {chip}: {label}", args.name, problem.dtype),
        &["kernel", ">blocks", ">task", ">core", "busy", ">HBM", ">moved"],
    );
    for t in &times {
        table.row(row(t));
    }
    printer.table(&table);
    printer.line("L2 begins with what the same launch left there before.");
    Outcome::of(times, true)
}

/// Rungs of the ladder of an embedding's gradient.
fn ladder(
    args: &Args,
    rung: &str,
    sizes: &str,
    chip: &'static Chip,
    problem: &KernelProblem,
    printer: Printer,
) -> Result<Outcome> {
    ensure!(
        problem.name == "embedding_grad",
        "`{}` has no ladder: --rung is for embedding_grad",
        problem.name
    );
    let all = Rung::ALL;
    let rungs = match (rung, rung.parse::<usize>()) {
        ("all", _) => &all[..],
        (_, Ok(n)) if (1..=all.len()).contains(&n) => &all[n - 1..n],
        _ => bail!("`--rung {rung}`: there are 1 to {} and all", all.len()),
    };
    let least = floor(chip, problem)?;
    let times = embedding_grad(chip, problem, args.distribution, rungs)?;
    let label = times.iter().flat_map(|r| &r.launches).next().map_or("", |t| t.label);
    let title = format!(
        "embedding_grad {sizes} {}, {:?} indices, on {chip}: {label}",
        problem.dtype, args.distribution
    );
    let mut table =
        Table::new(&title, &["rung", "kernel", ">blocks", ">task", "busy", ">workspace", ">memory", ">HBM"]);
    for r in &times {
        rung_rows(r).into_iter().for_each(|row| table.row(row));
    }
    printer.table(&table);
    printer.line(format!(
        "least: {} at the memory's bandwidth take {:.1} µs; {} additions at 64 a cycle and core take {:.1} µs",
        text::bytes(least.bytes as usize),
        least.memory,
        least.additions,
        least.arithmetic
    ));
    Outcome::of(serde_json::json!({ "least": least, "rungs": times }), true)
}

/// A rung as rows of a table: all of it, and its launches.
fn rung_rows(r: &RungTimes) -> Vec<[String; 8]> {
    let mut rows = vec![[
        r.rung.to_string(),
        r.name.into(),
        String::new(),
        format!("{:.1} µs", r.task_duration),
        String::new(),
        text::bytes(r.workspace as usize),
        text::bytes(r.memory as usize),
        text::bytes(r.hbm_bytes as usize),
    ]];
    rows.extend(r.launches.iter().map(|t| {
        let [kernel, blocks, task, _, busy, hbm, _] = row(t);
        [String::new(), kernel, blocks, task, busy, String::new(), String::new(), hbm]
    }));
    rows
}

fn row(t: &KernelTimes) -> [String; 7] {
    let share = |us: f64| 100.0 * us / t.core_time.max(1e-9);
    let busy = t.pipes.iter().filter(|(_, us)| **us > 0.0);
    let busy: Vec<String> =
        busy.map(|(pipe, us)| format!("{pipe} {us:.1} µs ({:.0} %)", share(*us))).collect();
    [
        t.kernel.clone(),
        t.block_dim.to_string(),
        format!("{:.2} µs", t.task_duration),
        format!("{:.2} µs", t.core_time),
        busy.join(", "),
        text::bytes(t.hbm_bytes as usize),
        text::bytes(t.moved_bytes as usize),
    ]
}
