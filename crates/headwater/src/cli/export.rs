//! `headwater export`.

use super::{Outcome, Printer, Status, Usage};
use crate::export;
use crate::model::Model;
use crate::weights::WeightFiles;
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater export run --out trained.safetensors --strip model.
  headwater export run/step-00000200 --model model.pt2 --out trained.pt2
  headwater export run --ema --model model.pt2 --out averaged.pt2
  headwater export run --trainable --out adapters.safetensors --strip model.

A .safetensors file holds the weights under their PyTorch names; --strip removes the prefix that a wrapper gave them. load_state_dict
reads it; from_pretrained does too, with a config.json beside it. A .pt2 is the model's own archive with the trained weights in it;
torch.export.load and Headwater open it.")]
pub struct Args {
    /// A checkpoint, a run's folder (its newest one) or a file of weights.
    weights: PathBuf,
    /// Take the average of the weights that a run with --ema kept, instead of the weights after the last step.
    #[arg(long)]
    ema: bool,
    /// File to write: .safetensors or .pt2.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Prefix to remove from the names, such as `model.`.
    #[arg(long, value_name = "PREFIX", default_value = "")]
    strip: String,
    /// The exported model, for a .pt2, or for --trainable where the run does not say which parameters it trained.
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Write the trained parameters alone, such as the adapters of LoRA. A run in which some were frozen says itself
    /// which these are; otherwise they are those of --model that require gradients.
    #[arg(long)]
    trainable: bool,
    /// Replace the file if it exists.
    #[arg(long)]
    overwrite: bool,
}

pub fn run(args: &Args, printer: Printer) -> Result<Outcome> {
    let weights = WeightFiles::choose(&args.weights, args.ema)?;
    let tensors = match args.out.extension().and_then(|e| e.to_str()) {
        Some("safetensors") => {
            let idle = args.model.is_some() && !args.trainable;
            ensure!(
                !idle,
                Usage("--model is for a .pt2, or for --trainable: a .safetensors needs no model".into())
            );
            let said = !weights.run.trained.is_empty();
            ensure!(
                !(args.model.is_some() && said),
                Usage(format!(
                    "--model does nothing here: {} says itself which parameters were trained",
                    weights.path.display()
                ))
            );
            let model = args.model.as_deref().filter(|_| args.trainable).map(Model::open).transpose()?;
            let only = args.trainable.then(|| export::trained(&weights, model.as_ref())).transpose()?;
            export::safetensors(&weights, &args.strip, only.as_ref(), &args.out, args.overwrite)?.len()
        }
        Some("pt2") if args.trainable => {
            bail!(Usage("--trainable is for .safetensors: a .pt2 holds the whole model".into()))
        }
        Some("pt2") => {
            let model = args
                .model
                .as_deref()
                .context("a .pt2 is made from the exported model: name it with --model")?;
            let mapping = export::archive(&Model::open(model)?, &weights, &args.out, args.overwrite)?;
            mapping.lines().iter().for_each(|l| printer.line(l));
            mapping.taken
        }
        _ => bail!("{}: an export is a .safetensors or a .pt2 file", args.out.display()),
    };
    weights.chosen().iter().for_each(|l| printer.line(l));
    printer.line(format!("{tensors} tensors; wrote {}", args.out.display()));
    let result = serde_json::json!({ "tensors": tensors, "file": args.out, "average": weights.average });
    Outcome::of(result, Status::Done)
}
