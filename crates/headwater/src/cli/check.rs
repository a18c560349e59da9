//! `headwater check`.

use super::{Outcome, Printer, Status, op::parse_dtype};
use crate::check::{Compared, Measured, Precision, Verdict, tables};
use crate::core::DType;
use crate::core::device::Device;
use crate::core::pass::precision::Level;
use crate::golden::Golden;
use crate::model::Model;
use anyhow::{Context, Result, anyhow};
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater check model.pt2 model.golden.safetensors
  headwater check model.pt2 model.golden.safetensors --precision bf16 --all
  headwater check model.pt2 model.golden.safetensors --precision f16 --amp O1
  headwater check model.pt2 model.golden.safetensors --power

headwater_tools.record writes the golden, on the machine with PyTorch (tools/README.md). The bound of a value is derived from runs
of the same step in f64 that round, where the step rounds, by random functions in place of round to nearest. A value is proved
where its bound is smaller than the value itself by a factor, 4 in f64 and f32, 2 in f16 and bf16: docs/proof.md.

Exit status: 0 if all values are proved, 3 if one differs from PyTorch's, 4 if none differs but one is not proved.")]
pub struct Args {
    /// The exported model.
    model: PathBuf,
    /// The golden: PyTorch's recorded results.
    golden: PathBuf,
    /// f64 or f32: all of the step in it. f16 or bf16: the step as it trains at a level of mixed precision. f64 always
    /// runs on the CPU; the others judge --device.
    #[arg(long, default_value = "f64")]
    precision: String,
    /// Level of mixed precision for f16 and bf16: O1, O2 or O3 (default: O2). In f16 at O1 to O3, the loss is multiplied by a
    /// scale that is chosen so that gradients do not overflow.
    #[arg(long, value_name = "LEVEL")]
    amp: Option<String>,
    /// Check the step of `train --exact-sums`: products of one input with several weights are computed separately.
    #[arg(long)]
    exact_sums: bool,
    /// Show the power of the check: mutate the golden, one value at a time, and count what is found.
    #[arg(long)]
    power: bool,
    /// List every value, not only the worst and those that are not proved.
    #[arg(long)]
    all: bool,
}

impl Args {
    fn precision(&self) -> Result<Precision> {
        let dtype = parse_dtype(&self.precision)?;
        anyhow::ensure!(dtype.is_float(), "--precision must be f64, f32, bf16 or f16");
        let mut precision = Precision { exact_sums: self.exact_sums, ..Precision::from(dtype) };
        if let Some(level) = &self.amp {
            let low = precision.level != Level::O0;
            anyhow::ensure!(low, "--amp is for --precision f16 or bf16: {dtype} has no mixed precision");
            precision.level = level.parse().map_err(|m: String| anyhow!(m))?;
        }
        Ok(precision)
    }
}

pub fn run(args: &Args, device: &dyn Device, printer: Printer) -> Result<Outcome> {
    let precision = args.precision()?;
    let model = Model::open(&args.model)?;
    let golden = Golden::read(&args.golden)?;
    let measured = Measured::new(&model, &golden, &precision, device);
    let compared = measured.and_then(|m| Ok((m.report(&model, &golden, device.target())?, m)));
    let (report, measured) = compared.with_context(|| {
        let foreign = golden.of_another(&args.model).ok().flatten();
        foreign.map_or("the comparison cannot run".into(), |f| format!("the comparison cannot run: {f}"))
    })?;
    printer.table(&tables::summary(&report));
    if precision.dtype == DType::F64 && device.name() != "cpu" {
        let device = device.name();
        printer.line(format!("f64 was checked on the CPU; --precision f32, bf16 or f16 judges {device}"));
    }
    let shown = |c: &&Compared| args.all || c.verdict != Verdict::Proved;
    let rows: Vec<&Compared> = report.compared.iter().filter(shown).collect();
    if !rows.is_empty() {
        printer
            .table(&tables::listing(if args.all { "All values" } else { "Not proved, or different" }, &rows));
    }
    report.missing.iter().for_each(|m| printer.line(m));
    if !report.unmatched.is_empty() {
        printer.line(format!("not compared, they have no counterpart: {}", report.unmatched.join(", ")));
    }
    if !report.reordered.is_empty() {
        printer.line(format!("equal but for the order of equal sort keys: {}", report.reordered.join(", ")));
    }
    let zeros = report.compared.iter().filter(|c| c.zero && c.verdict == Verdict::Proved).count();
    if zeros > 0 {
        printer.line(format!(
            "{zeros} values are zero up to rounding: what they are made of cancels, and a number of the size of other \
             values would differ"
        ));
    }
    if let Some(scale) = &report.scale {
        printer.line(scale.sentence());
    }
    report.module.iter().for_each(|m| printer.line(m));
    report.evidence().iter().for_each(|e| printer.line(e));
    let power = match args.power {
        true => Some(measured.power(&golden, device.target())?),
        false => None,
    };
    if let Some(power) = &power {
        printer.table(&tables::power(&report.precision, power));
    }
    let also = report.foreign.as_ref().filter(|_| report.passed()).map(|f| format!(", although {f}"));
    printer.line(format!("{}: {}{}", args.model.display(), report.conclusion(), also.unwrap_or_default()));
    let status = match (report.passed(), report.proved()) {
        (false, _) => Status::Differs,
        (true, true) => Status::Done,
        (true, false) => Status::NotProved,
    };
    #[derive(serde::Serialize)]
    struct Printed {
        #[serde(flatten)]
        report: crate::check::CheckReport,
        #[serde(skip_serializing_if = "Option::is_none")]
        power: Option<Vec<crate::check::Found>>,
    }
    Outcome::of(Printed { report, power }, status)
}
