//! `headwater eval`.

use super::{Outcome, Printer, Status, Usage};
use crate::core::device::Device;
use crate::import::Dims;
use crate::infer::{self, InferRequest, Raw};
use crate::model::{Model, parse_dims};
use crate::report::scores;
use crate::runtime::config::{Buckets, Cast, DataConfig, InitConfig};
use crate::runtime::score::{Measured, Scorer};
use anyhow::{Error, Result, bail};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Options of commands that run a model forward.
#[derive(clap::Args, Debug)]
pub(crate) struct Forward {
    /// The exported model.
    model: PathBuf,
    /// Samples: tensors in .safetensors or .npz, columns of .parquet or .csv, or a folder of images or texts
    /// (docs/data.md). They are named like the model's inputs, and their first dimension counts samples.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Weights in place of the model's: a checkpoint, a run's folder (its newest checkpoint), a .safetensors file,
    /// or a folder that save_pretrained wrote.
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    /// Take the average of the weights that a run with --ema kept, instead of the weights after the last step.
    #[arg(long, requires = "weights")]
    ema: bool,
    /// Take the model's own tensors where --weights lack some, rather than refuse.
    #[arg(long, requires = "weights")]
    partial: bool,
    /// Samples in a batch (default: as exported, or 32 if the model takes any number).
    #[arg(long)]
    batch: Option<usize>,
    /// Tensor of the file that feeds an input of another name.
    #[arg(long = "name", value_name = "INPUT=TENSOR")]
    names: Vec<String>,
    /// Values of another dtype than the model's input: `exact` refuses those that it cannot hold, `round` rounds them.
    #[arg(long, value_name = "HOW", value_parser = super::cast, default_value = "exact")]
    cast: Cast,
    /// Size of a symbolic dimension other than the batch (default: as in the data).
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<String>,
    /// Cut each batch to the smallest of these lengths that its longest sample fits into: auto, or lengths such as
    /// 32,64,128.
    #[arg(long, value_name = "LENGTHS")]
    buckets: Option<Buckets>,
    /// Column of the file with the length of each sample (default: as a text.toml or table.toml says).
    #[arg(long, value_name = "TENSOR", requires = "buckets")]
    lengths: Option<String>,
}

/// Columns by the input that they feed, from `--name INPUT=COLUMN`.
pub(crate) fn names(given: &[String]) -> Result<BTreeMap<String, String>> {
    let pair = |n: &String| match n.split_once('=') {
        Some((input, column)) => Ok((input.to_string(), column.to_string())),
        None => bail!(Usage(format!("`--name {n}` is not of the form input=column"))),
    };
    given.iter().map(pair).collect()
}

impl Forward {
    pub fn model(&self) -> Result<(Model, Dims)> {
        Ok((Model::open(&self.model)?, parse_dims(&self.dims)?))
    }

    pub fn data(&self) -> &std::path::Path {
        &self.data
    }

    /// Choice of the outputs to run.
    pub fn asked(&self) -> Result<InferRequest> {
        let names = names(&self.names)?;
        let weights = self.weights.clone().map(|w| InitConfig { weights: Some(w), ..InitConfig::default() });
        let (buckets, lengths) = (self.buckets.clone(), self.lengths.clone());
        let data = DataConfig { names, buckets, lengths, cast: self.cast, ..DataConfig::default() };
        let (batch, partial, average) = (self.batch, self.partial, self.ema);
        Ok(InferRequest { batch, data, weights, partial, average, ..InferRequest::default() })
    }
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater eval model.pt2 --data heldout.safetensors --weights run
  headwater eval model.pt2 --data heldout.safetensors --weights run/step-00000200 --labels labels --json
  headwater eval model.pt2 --data heldout.safetensors --weights run --ema

The model runs in evaluation mode: without dropout, and batch norm with its running statistics. Labels are the input called labels,
label, targets, target or y, or the one that --labels names. They decide which metrics are measured:
  classes of samples, tokens or pixels   accuracy, top-k, precision, recall, F1, IoU, confusion matrix, each class
  classes of samples                     log loss; of two classes ROC-AUC and PR-AUC too
  tokens                                 perplexity too; logits and labels are aligned as in the model's own loss
  numbers                                MSE, MAE, R²
Labels that are all 0 or 1, one for each sample, are taken as two classes where there is one output, and the output says so.")]
pub struct Args {
    #[command(flatten)]
    forward: Forward,
    /// Input that holds the labels.
    #[arg(long)]
    labels: Option<String>,
    /// Number of the largest logits that count for the top-k accuracy.
    #[arg(long, default_value_t = 5)]
    top: usize,
}

pub fn run(args: &Args, device: Arc<dyn Device>, printer: Printer) -> Result<Outcome> {
    let (model, dims) = args.forward.model()?;
    let bound = model.bind(&dims.clone().or_exported())?;
    model.needs_loss(&bound)?;
    let inputs: Vec<_> = bound.user_inputs().map(|(n, t)| (n.to_string(), t.clone())).collect();
    let users = bound.graph.outputs.iter().filter(|o| o.role == crate::core::graph::OutputRole::User);
    let outputs: Vec<_> = users.map(|o| bound.graph.ty(o.value).clone()).collect();
    let mut scorer = Scorer::new(&inputs, &outputs, args.labels.as_deref(), args.top).map_err(Error::msg)?;
    let wanted = scorer.wanted().map(|(input, output)| (input.to_string(), output));
    // The loss, and the output that is measured.
    let chosen = std::iter::once(0).chain(wanted.iter().map(|w| w.1)).collect();
    let asked = InferRequest { outputs: Some(chosen), ..args.forward.asked()? };
    let done = infer::run(&model, dims, args.forward.data(), &asked, device, &mut |ran| {
        let loss = ran.outputs[0].tensor().to_f64()[0];
        let truth = wanted.as_ref().and_then(|(input, _)| ran.inputs.get(input.as_str())).map(Raw::tensor);
        let measured = truth.as_ref().zip(ran.outputs.get(1));
        let measured = measured.map(|(truth, Raw { ty, bytes })| Measured { truth, ty, bytes });
        scorer.add(ran.samples, loss, measured);
        Ok(())
    })?;
    done.lines().for_each(|l| printer.line(l));
    let mut found = scorer.finish();
    found.notes.extend(bound.masks_in_evaluation());
    let column = found.labels.as_ref().map(|l| asked.data.names.get(l).unwrap_or(l));
    let names = column.and_then(|column| done.classes.get(column)).cloned();
    let found = found.named(names.as_deref());
    scores::tables("Held-out data", &found).iter().for_each(|t| printer.table(t));
    found.notes.iter().for_each(|n| printer.line(format!("note: {n}")));
    if done.left_out > 0 {
        printer.line(format!(
            "note: {} samples are left out: they fill no batch, and the model takes no smaller one",
            done.left_out
        ));
    }
    let result = serde_json::json!({ "scores": found, "left_out": done.left_out, "weights": done.mapping });
    Outcome::of(result, Status::Done)
}
