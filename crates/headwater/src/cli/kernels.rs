//! `headwater kernels`.

use super::amp::Amp;
use super::{Memory, Outcome, Talk};
use crate::core::compile::Options;
use crate::kernels::write;
use crate::model::{Model, parse_dims};
use crate::report::Table;
use crate::runtime::amp::AmpConfig;
use anyhow::{Context, Result};
use headwater_ascend::Chip;
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater kernels model.pt2 --target 910b1 --out kernels
  headwater kernels model.pt2 --target 310p --amp O2 --dtype f16 --out kernels

Each file is the Ascend C source of one kernel, for CANN 8.0 or later, with its program's text behind it.")]
pub struct Args {
    /// The exported model.
    model: PathBuf,
    /// The chip: 910b1 to 910b4, 910_9391 or 310p.
    #[arg(long, value_name = "CHIP")]
    target: String,
    /// Folder for the sources.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Size of a symbolic dimension, by its name or place (`input_ids.0=16`); the exported sizes where not
    /// given.
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<String>,
    #[command(flatten)]
    amp: Amp,
    #[command(flatten)]
    memory: Memory,
}

pub fn run(args: &Args, talk: Talk) -> Result<Outcome> {
    let chip =
        Chip::from_name(&args.target).with_context(|| format!("there is no chip `{}`", args.target))?;
    let model = Model::open(&args.model)?;
    let bound = model.bind(&parse_dims(&args.dims)?.or_exported())?;
    let mut config = AmpConfig::default();
    args.amp.over(&mut config)?;
    let options = Options {
        precision: config.properties()?,
        recompute: args.memory.recompute(true),
        memory_budget: args.memory.budget(),
        sparse: args.memory.sparse().choice(),
        ..Options::default()
    };
    let written = write(&bound, chip, options, args.memory.buckets(), &args.out)?;
    let (steps, native) = written.steps;
    talk.line(format!(
        "{} kernels for {chip} in {}: {native} of {steps} steps",
        written.files.len(),
        args.out.display()
    ));
    if !written.host.is_empty() {
        let mut table = Table::new("Steps without a kernel", &["operator and reason", ">steps"]);
        written.host.iter().for_each(|(why, n)| table.row([why.clone(), n.to_string()]));
        talk.table(&table);
    }
    Outcome::of(written, true)
}
