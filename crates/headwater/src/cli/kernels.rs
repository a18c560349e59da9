//! `headwater kernels`.

use super::amp::Amp;
use super::{Memory, Outcome, Printer, Usage};
use crate::core::Registry;
use crate::core::compile::Options;
use crate::core::device::Device;
use crate::kernels::operators::Operator;
use crate::kernels::{Written, cuda, write, write_operator};
use crate::model::{Model, parse_dims};
use crate::report::Table;
use crate::runtime::amp::AmpConfig;
use crate::words::meant;
use anyhow::{Context, Result, bail};
use headwater_ascend::Chip;
use headwater_ascend::device::AscendSim;
use headwater_cuda::Offline;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Arguments that no single operator has.
const OF_MODELS: [&str; 13] = [
    "dims",
    "level",
    "dtype",
    "policy",
    "keep_batchnorm",
    "master_weights",
    "loss_scale",
    "recompute",
    "exact_sums",
    "memory_budget",
    "bucket_size",
    "sparse_embeddings",
    "moments",
];

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater kernels model.pt2 --target 910b1 --out kernels
  headwater kernels model.pt2 --target 310p --amp O2 --dtype f16 --out kernels
  headwater kernels embedding_grad --target 310p --shape 8192x32000x1024 --project --out embedding
  headwater kernels rms_norm --target 910b1 --shape 4096x4096 --shape 512x4096 --eps 1e-5 --project --out norm
  headwater kernels model.pt2 --target sm_90 --amp O2 --dtype bf16 --out kernels
  headwater kernels softmax --target sm_90 --out softmax

For a kind of NVIDIA's GPUs each file is CUDA C, and compiles by itself beside headwater.h; an operator's kernels are written
for the cases on which it is tested. For an Ascend chip each file is the Ascend C source of one kernel, for CANN 8.0 or later. A comment at its end has the instructions that the
simulator runs. An operator's kernels are written for f16 and f32, a norm's with those of its gradients. A project's README.md
says how to build and test it.")]
pub struct Args {
    /// The exported model; or an operator: add, rms_norm, rms_norm_grad or embedding_grad for an Ascend chip, any for a GPU.
    #[arg(value_name = "OPERATOR|MODEL")]
    source: PathBuf,
    /// The chip: 910b1 to 910b4, 910_9391 or 310p; or a kind of NVIDIA's GPUs, such as sm_90.
    #[arg(long, value_name = "CHIP")]
    target: String,
    /// Folder for the sources, or for the project.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Shape to write an operator's kernels for; may be given several times. For norms: rows and columns. For
    /// embedding_grad: indices, rows of the table and columns. For add: sizes of a tensor.
    #[arg(long = "shape", value_name = "AxB", value_parser = parse_shape, conflicts_with_all = OF_MODELS)]
    shapes: Vec<Sizes>,
    /// Number that rms_norm adds to the mean of squares (default: 1e-6).
    #[arg(long, value_name = "NUMBER", value_parser = parse_eps)]
    eps: Option<f32>,
    /// Write a whole project around an operator's kernels: a PyTorch extension for torch_npu with gradients, its build, a
    /// test and a README. It needs CANN and PyTorch, and not Headwater.
    #[arg(long)]
    project: bool,
    /// Size of a symbolic dimension, by its name or place, such as `input_ids.0=16` (default: as exported).
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<String>,
    #[command(flatten)]
    amp: Amp,
    #[command(flatten)]
    memory: Memory,
}

/// Sizes of a shape, one value of an option.
type Sizes = Vec<u64>;

/// Reads a shape such as `4096x4096`.
pub(super) fn parse_shape(text: &str) -> Result<Sizes, String> {
    let sizes = text.split('x').map(|s| s.trim().parse::<u64>());
    sizes.collect::<Result<Vec<_>, _>>().map_err(|_| format!("`{text}` is no shape such as 4096x4096"))
}

fn parse_eps(text: &str) -> Result<f32, String> {
    let eps = text.parse::<f32>().ok().filter(|eps| eps.is_finite() && *eps >= 0.0);
    eps.ok_or_else(|| "it is a number from 0, such as 1e-5".into())
}

pub fn run(args: &Args, printer: Printer) -> Result<Outcome> {
    if args.target.starts_with("sm_") {
        return of_cuda(args, printer);
    }
    let chip = Chip::from_name(&args.target).ok_or_else(|| {
        let all = headwater_ascend::chip::CHIPS.iter().map(|c| c.name);
        Usage(format!("--target {}: {}", args.target, meant(&args.target, all)))
    })?;
    match args.source.to_str().and_then(Operator::from_name) {
        Some(operator) => of_operator(operator, chip, args, printer),
        None => of_model(chip, args, printer),
    }
}

fn of_operator(operator: Operator, chip: &Chip, args: &Args, printer: Printer) -> Result<Outcome> {
    let name = operator.name();
    if args.shapes.is_empty() {
        let (meaning, example) = (operator.meaning(), operator.example());
        bail!(Usage(format!("`{name}` needs --shape: {meaning}, such as --shape {example}")));
    }
    if args.eps.is_some() && operator != Operator::RmsNorm {
        bail!(Usage(format!("--eps is of rms_norm; `{name}` has none")));
    }
    let eps = args.eps.unwrap_or(1e-6);
    let sources = write_operator(operator, chip, &args.shapes, eps, args.project, &args.out)?;
    let (number, out) = (sources.kernels.len(), args.out.display());
    printer.line(match args.project {
        true => format!("{number} kernels for {chip} and a project around them in {out}: {out}/README.md"),
        false => format!("{number} kernels for {chip} in {out}"),
    });
    if !sources.refused.is_empty() {
        let mut table = Table::new("Not there", &["dtype and shape", "reason"]);
        sources.refused.iter().for_each(|(what, why)| table.row([what.clone(), why.clone()]));
        printer.table(&table);
    }
    Outcome::of(sources, true)
}

fn of_model(chip: &'static Chip, args: &Args, printer: Printer) -> Result<Outcome> {
    let operators = || Operator::ALL.map(Operator::name).join(", ");
    let of_operators =
        [(args.project, "--project"), (!args.shapes.is_empty(), "--shape"), (args.eps.is_some(), "--eps")];
    if let Some((_, option)) = of_operators.iter().find(|(given, _)| *given) {
        bail!(Usage(format!(
            "{option} is for a single operator: {}, for each of which an interface, gradients and a test were written. `{}` is \
             none of these; of a model that uses it, or of a module with this operator alone, `headwater kernels` without \
             {option} writes the kernels' sources and their launches (kernels.json), and `headwater train --device ascend:0` \
             builds and runs them",
            operators(),
            args.source.display()
        )));
    }
    let model = Model::open(&args.source);
    let model = match args.source.exists() {
        true => model?,
        false => model
            .with_context(|| format!("it is no operator with kernels of its own ({}) either", operators()))?,
    };
    let bound = model.bind(&parse_dims(&args.dims)?.or_exported())?;
    let mut config = AmpConfig::default();
    args.amp.over(&mut config)?;
    let device = AscendSim::new(chip, false, 1);
    let options = options(args, &config, &device)?;
    let written = write(&bound, chip, options, args.memory.buckets(), &args.out)?;
    show(written, &chip.to_string(), args, printer)
}

/// Steps without a kernel, by operator and reason.
pub(super) fn without_kernel(host: &BTreeMap<String, usize>) -> Table {
    let mut table = Table::new("Steps without a kernel", &["operator and reason", ">steps"]);
    host.iter().for_each(|(why, n)| table.row([why.clone(), n.to_string()]));
    table
}

/// Says which kernels were written.
fn show(written: Written, chip: &str, args: &Args, printer: Printer) -> Result<Outcome> {
    let ((steps, native), number) =
        (written.steps, written.files.iter().filter(|f| !f.ends_with(".h")).count());
    printer.line(format!("{number} kernels for {chip} in {}: {native} of {steps} steps", args.out.display()));
    if !written.host.is_empty() {
        printer.table(&without_kernel(&written.host));
    }
    Outcome::of(written, true)
}

/// Sources for a kind of NVIDIA's GPUs.
fn of_cuda(args: &Args, printer: Printer) -> Result<Outcome> {
    let of_projects =
        [(args.project, "--project"), (!args.shapes.is_empty(), "--shape"), (args.eps.is_some(), "--eps")];
    if let Some((_, option)) = of_projects.iter().find(|(given, _)| *given) {
        bail!(Usage(format!("{option} is for Ascend chips; for `{}` leave it out", args.target)));
    }
    let name = args.source.to_str().unwrap_or_default();
    if !args.source.exists() && Registry::standard().by_name(name).is_some() {
        let written = cuda::write_operator(name, &args.target, &args.out)?;
        return show(written, &args.target, args, printer);
    }
    let bound = Model::open(&args.source)?.bind(&parse_dims(&args.dims)?.or_exported())?;
    let mut config = AmpConfig::default();
    args.amp.over(&mut config)?;
    let options = options(args, &config, &Offline::new(&args.target)?)?;
    let written = cuda::write_model(&bound, &args.target, options, args.memory.buckets(), &args.out)?;
    show(written, &args.target, args, printer)
}

/// The settings of a compilation for a device.
fn options(args: &Args, config: &AmpConfig, device: &dyn Device) -> Result<Options<'static>> {
    Ok(Options {
        precision: config.properties(device.target())?,
        recompute: args.memory.recompute(true),
        adjacent: args.memory.adjacent(),
        memory_budget: args.memory.budget(),
        sparse: args.memory.sparse().choice(),
        ..Options::default()
    })
}
