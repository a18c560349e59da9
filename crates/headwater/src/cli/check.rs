//! `headwater check`.

use super::{Outcome, Printer, Status, op::parse_dtype};
use crate::check::{Compared, check, tables};
use crate::core::DType;
use crate::core::device::Device;
use crate::golden::Golden;
use crate::model::Model;
use anyhow::{Context, Result};
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater check model.pt2 model.golden.safetensors
  headwater check model.pt2 model.golden.safetensors --precision f32 --all

headwater_tools.record writes the golden, on the machine with PyTorch (tools/README.md). Bounds are derived from the dtype, the
lengths of the sums and the depth of the graph. An error is relative to the norm of PyTorch's value. Where large terms cancel, it
is relative to their size instead, which is estimated by sampling. A value that is zero but for rounding is shown as `zero`.")]
pub struct Args {
    /// The exported model.
    model: PathBuf,
    /// The golden: PyTorch's recorded results.
    golden: PathBuf,
    /// Dtype of weights and activations, without mixed precision: f64, f32, bf16 or f16. f64 always runs on the CPU; the
    /// others judge --device.
    #[arg(long, default_value = "f64")]
    precision: String,
    /// List every value, not only the worst and those out of bounds.
    #[arg(long)]
    all: bool,
}

pub fn run(args: &Args, device: &dyn Device, printer: Printer) -> Result<Outcome> {
    let precision = parse_dtype(&args.precision)?;
    anyhow::ensure!(precision.is_float(), "--precision must be f64, f32, bf16 or f16");
    let model = Model::open(&args.model)?;
    let golden = Golden::read(&args.golden)?;
    let report = check(&model, &golden, precision, device).with_context(|| {
        let foreign = golden.of_another(&args.model).ok().flatten();
        foreign.map_or("the comparison cannot run".into(), |f| format!("the comparison cannot run: {f}"))
    })?;
    printer.table(&tables::summary(&report));
    if precision == DType::F64 && device.name() != "cpu" {
        let device = device.name();
        printer.line(format!("f64 was checked on the CPU; --precision f32, bf16 or f16 judges {device}"));
    }
    let shown = |c: &&Compared| args.all || !c.passed;
    let rows: Vec<&Compared> = report.compared.iter().filter(shown).collect();
    if !rows.is_empty() {
        printer.table(&tables::listing(if args.all { "All values" } else { "Out of bounds" }, &rows));
    }
    report.missing.iter().for_each(|m| printer.line(m));
    if !report.unmatched.is_empty() {
        printer.line(format!("not compared, they have no counterpart: {}", report.unmatched.join(", ")));
    }
    if !report.reordered.is_empty() {
        printer.line(format!("equal but for the order of equal sort keys: {}", report.reordered.join(", ")));
    }
    let zeros = report.compared.iter().filter(|c| c.zero).count();
    if zeros > 0 {
        printer.line(format!("{zeros} values are zero up to rounding: what they are made of cancels"));
    }
    report.module.iter().for_each(|m| printer.line(m));
    report.evidence().iter().for_each(|e| printer.line(e));
    let model = args.model.display();
    match (report.passed(), &report.foreign) {
        (true, None) => printer.line(format!("{model}: every value is within its bound")),
        (true, Some(foreign)) => {
            printer.line(format!("{model}: every value is within its bound, although {foreign}"));
        }
        (false, _) => printer.line(format!("{model}: the numbers differ from PyTorch's")),
    }
    let status = if report.passed() { Status::Done } else { Status::Differs };
    Outcome::of(report, status)
}
