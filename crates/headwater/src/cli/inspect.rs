//! `headwater inspect`.

use super::amp::Amp;
use super::{Memory, Outcome, Printer};
use crate::core::Registry;
use crate::core::device::Device;
use crate::core::pass::{self, precision::Properties};
use crate::inspect::{inspect, tables::tables};
use crate::model::{Model, parse_dims};
use crate::precision::PrecisionUse;
use crate::report::Table;
use crate::runtime::amp::AmpConfig;
use crate::runtime::session::Training;
use anyhow::{Result, bail};
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater inspect model.pt2
  headwater inspect model.pt2 --batch 16
  headwater inspect model.pt2 --dim input_ids.1=128 --graph
  headwater inspect model.pt2 --amp O1 --policy torch --dtype bf16
  headwater inspect model.pt2 --recompute false
  headwater inspect model.pt2 --memory-budget 8GiB
  headwater inspect --operators")]
pub struct Args {
    /// The exported model.
    #[arg(required_unless_present = "operators")]
    model: Option<PathBuf>,
    /// Size of a symbolic dimension, by its name or place, such as `input_ids.0=16` (default: as exported).
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<String>,
    /// Samples in a batch (default: as exported).
    #[arg(long)]
    batch: Option<usize>,
    #[command(flatten)]
    amp: Amp,
    #[command(flatten)]
    memory: Memory,
    /// Print the forward graph in its text form.
    #[arg(long)]
    graph: bool,
    /// List every operator Headwater knows.
    #[arg(long)]
    operators: bool,
}

pub fn run(args: &Args, device: &dyn Device, printer: Printer) -> Result<Outcome> {
    if args.operators {
        let registry = Registry::standard();
        let names: Vec<&str> = registry.operators().iter().map(|o| o.name).collect();
        names.iter().for_each(|n| printer.line(n));
        return Outcome::of(names, true);
    }
    let Some(path) = &args.model else { bail!("which model?") };
    let model = Model::open(path)?;
    let dims = parse_dims(&args.dims)?;
    let dims = args.batch.map_or(Ok(dims.clone()), |batch| model.batch(dims, batch))?;
    let bound = model.bind(&dims.or_exported())?;
    let mut amp = AmpConfig::default();
    args.amp.over(&mut amp)?;
    let precision = amp.properties(device.target())?;
    if args.graph {
        let text = pass::mixed(&bound.graph, &precision)?.graph.to_string();
        printer.line(&text);
        return Outcome::of(text, true);
    }
    let settings = Training {
        precision: amp.settings(),
        recompute: args.memory.recompute(true),
        exact_sums: args.memory.exact_sums,
        memory_budget: args.memory.budget(),
        bucket_size: Some(args.memory.buckets()),
        sparse_embeddings: args.memory.sparse(),
        moments: args.memory.moments(),
        ..Training::default()
    };
    let found = inspect(&model, &bound, device, &settings)?;
    printer.line(format!("{}, exported by PyTorch {}\n", path.display(), found.torch));
    for t in tables(&found, device.name()) {
        printer.table(&t);
    }
    if let Some(bound) = &found.bound {
        printer.line(format!("{bound}\n"));
    }
    if let Some(used) = &found.precision {
        precision_tables(used, &precision).iter().for_each(|t| printer.table(t));
    }
    found.without_gradient.iter().for_each(|m| printer.line(format!("no gradient for {m}")));
    found.notes.iter().for_each(|n| printer.line(format!("note: {n}")));
    let runs = found.missing().next().is_none();
    Outcome::of(found, runs)
}

fn precision_tables(used: &PrecisionUse, p: &Properties) -> [Table; 2] {
    let title = match &p.lists {
        Some(policy) => format!("Precision at {} with {}, lists of {policy}", p.level, p.dtype),
        None => format!("Precision at {} with {}", p.level, p.dtype),
    };
    let mut operators = Table::new(&title, &["operator", "computes in", "because", ">uses", "first in"]);
    for o in &used.operators {
        let [name, dtype, reason, first] = [&o.name, &o.dtype, &o.reason, &o.first].map(String::clone);
        operators.row([name, dtype, reason, o.uses.to_string(), first]);
    }
    let mut modules =
        Table::new("Precision by module", &["module", ">f32", &format!(">{}", p.dtype), ">other"]);
    for m in &used.modules {
        let of = |d: &str| m.uses.get(d).copied().unwrap_or(0);
        let (full, low) = (of("f32"), of(p.dtype.name()));
        let other = m.uses.values().sum::<usize>() - full - low;
        modules.row([m.path.clone(), full.to_string(), low.to_string(), other.to_string()]);
    }
    [operators, modules]
}
