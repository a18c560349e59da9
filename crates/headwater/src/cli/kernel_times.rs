//! `headwater bench kernel`.

use super::kernels::parse_shape;
use super::op::parse_dtype;
use super::{Outcome, Printer, Usage};
use crate::devices;
use crate::kernels::{Problem, Times, time};
use crate::report::{Table, text};
use anyhow::{Result, bail};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The kernel: add, rms_norm, rms_norm_grad, embedding, embedding_grad, matmul, attention, or an operator of one tensor
    /// such as gelu.
    name: String,
    /// Sizes of the operand. Norms: rows and columns; embeddings: rows of the table and their length; matmul: rows, columns
    /// and terms; attention: samples, heads, positions and size of a head.
    #[arg(long, value_name = "AxB", default_value = "4096x4096")]
    shape: String,
    /// Type of the elements: f32, f16 or bf16.
    #[arg(long, default_value = "f16")]
    dtype: String,
    /// Number of indices of an embedding.
    #[arg(long, default_value_t = 16_384)]
    indices: u64,
    /// Cores to use at most (default: all of the chip).
    #[arg(long)]
    cores: Option<u32>,
}

pub fn run(args: &Args, device: &str, printer: Printer) -> Result<Outcome> {
    let Some(chip) = devices::simulated(device) else {
        bail!(Usage(format!(
            "times of kernels are predicted for a simulated chip, not for {device}: use --device ascend-sim:910b1"
        )));
    };
    let shape = parse_shape(&args.shape).map_err(anyhow::Error::msg)?;
    let problem = Problem {
        name: args.name.clone(),
        shape,
        dtype: parse_dtype(&args.dtype)?,
        indices: args.indices,
        cores: args.cores,
    };
    let times = time(chip, &problem)?;
    let label = times.first().map_or("", |t| t.label);
    let mut table = Table::new(
        &format!("{} {} {} on {chip}: {label}", args.name, args.shape, problem.dtype),
        &["kernel", ">blocks", ">task", ">core", "busy", ">HBM", ">moved"],
    );
    for t in &times {
        table.row(row(t));
    }
    printer.table(&table);
    Outcome::of(times, true)
}

fn row(t: &Times) -> [String; 7] {
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
