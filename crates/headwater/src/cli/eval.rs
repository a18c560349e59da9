//! `headwater eval`.

use super::{Outcome, Status, Talk};
use crate::core::device::Device;
use crate::import::Dims;
use crate::infer::{self, Asked};
use crate::model::{Model, parse_dims};
use crate::report::{Table, text};
use crate::runtime::config::{Buckets, DataConfig, InitConfig};
use crate::score::{Scorer, Scores};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Options of commands that run a model forward.
#[derive(clap::Args, Debug)]
pub(crate) struct Forward {
    /// The exported model.
    model: PathBuf,
    /// Samples: tensors in .safetensors or .npz, columns of .parquet or .arrow, or a folder of images or texts
    /// (docs/data.md); the first dimension counts samples, names are the model's inputs'.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Weights in place of the model's: a checkpoint, a run's folder (its newest one), a .safetensors file,
    /// or a folder of Hugging Face's.
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    /// The average of the weights that a run with --ema kept, instead of the weights as the last step left them.
    #[arg(long, requires = "weights")]
    ema: bool,
    /// Samples in a batch (default: as exported, 32 where the model takes any number).
    #[arg(long)]
    batch: Option<usize>,
    /// The file's tensor for an input that is called differently there.
    #[arg(long = "name", value_name = "INPUT=TENSOR")]
    names: Vec<String>,
    /// Size of a symbolic dimension other than the batch (default: as in the data).
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<String>,
    /// Cut each batch to the smallest of these lengths that its longest sample fits: auto, or lengths such as 32,64,128.
    #[arg(long, value_name = "LENGTHS")]
    buckets: Option<Buckets>,
    /// The file's column with the length of each sample (default: what a text.toml or table.toml says).
    #[arg(long, value_name = "TENSOR", requires = "buckets")]
    lengths: Option<String>,
}

impl Forward {
    pub fn model(&self) -> Result<(Model, Dims)> {
        Ok((Model::open(&self.model)?, parse_dims(&self.dims)?))
    }

    pub fn data(&self) -> &std::path::Path {
        &self.data
    }

    /// What is to run, of all outputs.
    pub fn asked(&self) -> Result<Asked> {
        let names: BTreeMap<String, String> = self
            .names
            .iter()
            .map(|n| {
                let pair = n
                    .split_once('=')
                    .with_context(|| format!("`--name {n}` is not of the form input=tensor"))?;
                Ok((pair.0.to_string(), pair.1.to_string()))
            })
            .collect::<Result<_>>()?;
        let weights = self.weights.clone().map(|w| InitConfig { weights: Some(w), ..InitConfig::default() });
        let (buckets, lengths) = (self.buckets.clone(), self.lengths.clone());
        let data = DataConfig { names, buckets, lengths, ..DataConfig::default() };
        Ok(Asked { batch: self.batch, data, weights, average: self.ema, ..Asked::default() })
    }
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater eval model.pt2 --data heldout.safetensors --weights run
  headwater eval model.pt2 --data heldout.safetensors --weights run/step-00000200 --labels labels --json
  headwater eval model.pt2 --data heldout.safetensors --weights run --ema

Runs in evaluation mode: no dropout, running statistics. The truth is the input called labels, label, targets, target or y, or the
one that --labels names. Classes (of samples, tokens or pixels): accuracy, top-k, precision, recall, F1, IoU, confusion matrix;
tokens: perplexity, with the shift by one token that reproduces the model's own loss; numbers: MSE, MAE, R². Numbers that are 0 or 1
in all of the data, one for each sample, are two classes, with the logit that binary cross-entropy takes; the output says so.")]
pub struct Args {
    #[command(flatten)]
    forward: Forward,
    /// The input that holds the truth.
    #[arg(long)]
    labels: Option<String>,
    /// How many of the largest logits count for the top-k accuracy.
    #[arg(long, default_value_t = 5)]
    top: usize,
}

/// Confusion matrices of more classes are only in the JSON.
const SHOWN: usize = 12;

pub fn run(args: &Args, device: Arc<dyn Device>, talk: Talk) -> Result<Outcome> {
    let (model, dims) = args.forward.model()?;
    let bound = model.bind(&dims.clone().or_exported())?;
    let inputs: Vec<_> = bound.user_inputs().map(|(n, t)| (n.to_string(), t.clone())).collect();
    let users = bound.graph.outputs.iter().filter(|o| o.role == crate::core::graph::OutputRole::User);
    let outputs: Vec<_> = users.map(|o| bound.graph.ty(o.value).clone()).collect();
    let mut scorer = Scorer::new(&inputs, &outputs, args.labels.as_deref(), args.top)?;
    let asked = args.forward.asked()?;
    let done = infer::run(&model, dims, args.forward.data(), &asked, device, &mut |ran| {
        scorer.add(&ran);
        Ok(())
    })?;
    done.weights().for_each(|l| talk.line(l));
    let scores = scorer.finish();
    talk.table(&table(&scores));
    if let Some(by) = scores.by_class.as_ref().filter(|b| b.confusion.len() <= SHOWN) {
        talk.table(&confusion(&by.confusion));
    }
    scores.notes.iter().for_each(|n| talk.line(format!("note: {n}")));
    if done.left_out > 0 {
        talk.line(format!(
            "note: {} samples are left out: they fill no batch, and the model takes no smaller one",
            done.left_out
        ));
    }
    let result = serde_json::json!({ "scores": scores, "left_out": done.left_out, "weights": done.mapping });
    Outcome::of(result, Status::Done)
}

fn table(s: &Scores) -> Table {
    let mut t = Table::new("Held-out data", &["what", ">value"]);
    let mut row = |what: &str, value: Option<f64>| {
        if let Some(v) = value {
            t.row([what.into(), text::number(v)]);
        }
    };
    row("samples", Some(s.samples as f64));
    row("loss", Some(s.loss));
    row("labels counted", s.counted.map(|c| c as f64));
    row("accuracy", s.accuracy);
    if let Some((k, share)) = s.top_k {
        row(&format!("top-{k} accuracy"), Some(share));
    }
    row("perplexity", s.perplexity);
    if let Some(b) = &s.by_class {
        row("precision, mean over classes", Some(b.precision));
        row("recall, mean over classes", Some(b.recall));
        row("F1, mean over classes", Some(b.f1));
        row("IoU, mean over classes", Some(b.iou));
    }
    if let Some(r) = &s.regression {
        row("MSE", Some(r.mse));
        row("MAE", Some(r.mae));
        row("R²", Some(r.r2));
    }
    t
}

fn confusion(counts: &[Vec<u64>]) -> Table {
    let heads: Vec<String> = (0..counts.len()).map(|c| format!(">{c}")).collect();
    let columns: Vec<&str> =
        std::iter::once("label \\ predicted").chain(heads.iter().map(String::as_str)).collect();
    let mut t = Table::new("Confusion matrix", &columns);
    for (label, row) in counts.iter().enumerate() {
        let cells = std::iter::once(label.to_string()).chain(row.iter().map(u64::to_string));
        t.rows.push(cells.collect());
    }
    t
}
