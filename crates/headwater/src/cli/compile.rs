//! `headwater compile`.

use super::amp::Amp;
use super::kernels::without_kernel;
use super::{Memory, Outcome, Printer};
use crate::compile::{Dump, compile};
use crate::conformance::chosen;
use crate::core::compile::Goal;
use crate::core::device::Device;
use crate::inspect::tables;
use crate::kernels::cuda::{Filled, fill, fill_operators};
use crate::model::{Model, parse_dims};
use crate::report::Table;
use crate::runtime::amp::AmpConfig;
use crate::runtime::session::Training;
use anyhow::{Result, bail};
use clap::ValueEnum;
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater compile model.pt2
  headwater compile model.pt2 --amp O2 --dump-after all --out stages
  headwater compile model.pt2 --goal evaluate --stop-after simplify --dump-after simplify
  headwater compile model.pt2 --device cuda:sm_90 --cache kernels --amp O2 --dtype bf16
  headwater compile --operators all --device cuda:sm_90 --cache kernels

Files are named NN-STAGE.graph and NN-STAGE.plan. A plan addresses memory in segments: gradients lie in buckets, each other input
and output has a segment of its own. With --memory-budget AdamW's state is counted too, as a segment.")]
pub struct Args {
    /// The exported model.
    #[arg(required_unless_present = "operators")]
    model: Option<PathBuf>,
    /// Size of a symbolic dimension, by its name or place, such as `input_ids.0=16` (default: as exported).
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<String>,
    /// Goal of the compilation (default: train if the first output is a loss, else forward).
    #[arg(long, value_enum)]
    goal: Option<GoalArg>,
    #[command(flatten)]
    amp: Amp,
    #[command(flatten)]
    memory: Memory,
    /// Compile the step of one micro-batch, which adds its gradients to running sums.
    #[arg(long)]
    accumulate: bool,
    /// Write the graph or plan after this stage, or after `all` of them; may be given several times.
    #[arg(long, value_name = "STAGE|all")]
    dump_after: Vec<String>,
    /// Run no stage after this one.
    #[arg(long, value_name = "STAGE")]
    stop_after: Option<String>,
    /// Folder to write to (default: standard output).
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// With --device cuda:sm_XY: compile the kernels of a training step with its update, and of the evaluation, into the
    /// cache in this folder, which HEADWATER_CACHE names on a machine with such a GPU and the same NVRTC.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// In place of a model, the kernels of these operators, or of `all`, as `doctor --conformance` runs them in f32, f16
    /// and bf16.
    #[arg(long, value_name = "NAMES|all", requires = "cache", conflicts_with = "model")]
    operators: Option<String>,
}

/// Goals of a compilation.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum GoalArg {
    /// Forward and backward of the loss.
    Train,
    /// The forward pass as it was exported.
    Forward,
    /// The forward pass in evaluation mode.
    Evaluate,
}

pub fn run(args: &Args, device: &dyn Device, printer: Printer) -> Result<Outcome> {
    if let (Some(names), Some(folder)) = (&args.operators, &args.cache) {
        return report(&fill_operators(&chosen(names)?, device, folder)?, device, printer);
    }
    let Some(path) = &args.model else { bail!("which model?") };
    let model = Model::open(path)?;
    let bound = model.bind(&parse_dims(&args.dims)?.or_exported())?;
    let mut amp = AmpConfig::default();
    args.amp.over(&mut amp)?;
    let goal = args.goal.map(|goal| match goal {
        GoalArg::Train => Goal::Train,
        GoalArg::Forward => Goal::Forward,
        GoalArg::Evaluate => Goal::Evaluate,
    });
    if let Some(folder) = &args.cache {
        let settings = Training {
            precision: amp.settings(),
            recompute: args.memory.recompute(true),
            exact_sums: args.memory.exact_sums,
            memory_budget: args.memory.budget(),
            bucket_size: Some(args.memory.buckets()),
            sparse_embeddings: args.memory.sparse(),
            moments: args.memory.moments(),
            accumulate: if args.accumulate { 2 } else { 1 },
            scaled: amp.rule(device.target())?.scales(),
            ..Training::default()
        };
        return report(&fill(&bound, &settings, device, folder)?, device, printer);
    }
    let (size, target) = (args.memory.buckets(), device.target());
    let dump = Dump { after: &args.dump_after, out: args.out.as_deref() };
    let options = crate::core::compile::Options {
        precision: amp.properties(target)?,
        recompute: args.memory.recompute(true),
        adjacent: args.memory.adjacent(),
        memory_budget: args.memory.budget(),
        accumulate: args.accumulate,
        sparse: args.memory.sparse().choice().filter(|_| !args.accumulate),
        stop_after: args.stop_after.as_deref(),
        ..crate::core::compile::Options::default()
    };
    let made = compile(&bound.graph, goal, options, size, dump, target, |text| printer.line(text))?;
    let mut table =
        Table::new("Stages", &["stage", ">nodes before", ">after", ">ms", "results", "what it does"]);
    for s in &made.stages {
        table.row([
            s.stage.to_string(),
            s.before.to_string(),
            format!("{}{}", s.after, if s.plan { " steps" } else { "" }),
            format!("{:.1}", s.seconds * 1e3),
            s.exactness.to_string(),
            s.summary.to_string(),
        ]);
    }
    printer.table(&table);
    tables::buckets(&made.buckets).iter().for_each(|table| printer.table(table));
    Outcome::of(made, true)
}

/// Prints the number of kernels that a cache was filled with.
fn report(filled: &Filled, device: &dyn Device, printer: Printer) -> Result<Outcome> {
    printer.line(format!(
        "{} kernels for {} in {}: {} compiled, {} there already",
        filled.kernels,
        device.name(),
        filled.folder.display(),
        filled.compiled,
        filled.kernels - filled.compiled
    ));
    if !filled.host.is_empty() {
        printer.table(&without_kernel(&filled.host));
    }
    Outcome::of(filled, true)
}
