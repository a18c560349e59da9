//! `headwater predict`.

use super::eval::Forward;
use super::{Outcome, Printer, Status};
use crate::core::compile::has_loss;
use crate::core::device::Device;
use crate::core::graph::OutputRole;
use crate::export::Predictions;
use crate::import::Dims;
use crate::infer::{self, InferRequest};
use crate::model::Model;
use crate::predicted::{ClassOutput, Names, PredictedTable, is_table};
use crate::runtime::score::{Scorer, TOP_K};
use anyhow::{Context, Error, Result, ensure};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater predict model.pt2 --data new.safetensors --weights run --out predictions.safetensors
  headwater predict model.pt2 --data new.npz --weights run/step-00000200 --outputs 1 --out logits.npz
  headwater predict model.pt2 --data photos --weights run --classes cat,dog --out predictions.csv

The model runs in evaluation mode, on samples in the file's order. Outputs are written batch by batch, so the file may be larger
than memory. An input that the wanted outputs do not depend on, such as labels, may be missing. Outputs are called output.1,
output.2, …; output.0 is the loss, which is no prediction. With --buckets, outputs of shorter batches are padded with zeros.")]
pub struct Args {
    #[command(flatten)]
    forward: Forward,
    /// File for the outputs: .safetensors or .npz; or .csv, .tsv or .parquet, a row for each sample with its
    /// number, its file, its class and the probabilities of classes.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Numbers of the outputs to write, counted from 0 (default: all but the loss).
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    outputs: Option<Vec<usize>>,
    /// Names of the classes in a table, in the order of their labels (default: those of the data, or else
    /// their numbers).
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    classes: Option<Vec<String>>,
    /// Input that holds the labels, by which a table knows the output with the logits of classes (default: as
    /// `eval`).
    #[arg(long, value_name = "INPUT")]
    labels: Option<String>,
    /// Replace the file if it exists.
    #[arg(long)]
    overwrite: bool,
}

pub fn run(args: &Args, device: Arc<dyn Device>, printer: Printer) -> Result<Outcome> {
    let (model, dims) = args.forward.model()?;
    let bound = model.bind(&dims.clone().or_exported())?;
    bound.masks_in_evaluation().iter().for_each(|m| printer.line(format!("note: {m}")));
    let wanted = match &args.outputs {
        Some(outputs) => outputs.clone(),
        None => {
            let users = bound.graph.outputs.iter().filter(|o| o.role == OutputRole::User).count();
            (usize::from(has_loss(&bound.graph))..users).collect()
        }
    };
    ensure!(
        !wanted.is_empty(),
        "the model returns its loss alone: export it with the predictions as further outputs, `return loss, logits`"
    );
    if is_table(&args.out) {
        return table(args, &model, dims, wanted, device, printer);
    }
    for (option, given) in [("--classes", args.classes.is_some()), ("--labels", args.labels.is_some())] {
        ensure!(!given, "{option} does nothing without a table: write .csv, .tsv or .parquet");
    }
    let names = wanted.iter().map(|i| format!("output.{i}")).collect();
    let mut out = Predictions::new(&args.out, args.overwrite, names)?;
    let asked = InferRequest { outputs: Some(wanted), whole: true, ..args.forward.asked()? };
    let done = infer::run(&model, dims, args.forward.data(), &asked, device, &mut |ran| {
        out.add(ran.samples, &ran.outputs)
    })?;
    done.lines().for_each(|l| printer.line(l));
    let written = out.finish().context("the predictions are not written")?;
    for (name, ty) in &written {
        printer.line(format!("{name}: {ty}"));
    }
    printer.line(format!("{} samples; wrote {}", done.samples, args.out.display()));
    let outputs: Vec<_> =
        written.iter().map(|(n, t)| serde_json::json!({ "name": n, "type": t.to_string() })).collect();
    let result = serde_json::json!({
        "samples": done.samples, "file": args.out, "outputs": outputs, "weights": done.mapping,
    });
    Outcome::of(result, Status::Done)
}

/// Predictions as a table: class and probability where an output has logits of classes.
fn table(
    args: &Args,
    model: &Model,
    dims: Dims,
    wanted: Vec<usize>,
    device: Arc<dyn Device>,
    printer: Printer,
) -> Result<Outcome> {
    let bound = model.bind(&dims.clone().or_exported())?;
    let inputs: Vec<_> = bound.user_inputs().map(|(n, t)| (n.to_string(), t.clone())).collect();
    let users = bound.graph.outputs.iter().filter(|o| o.role == OutputRole::User);
    let outputs: Vec<_> = users.map(|o| bound.graph.ty(o.value).clone()).collect();
    let scorer = Scorer::new(&inputs, &outputs, args.labels.as_deref(), TOP_K).map_err(Error::msg)?;
    // One number is a logit if that is how the loss takes it.
    let takes_logits = bound.graph.nodes.iter().any(|n| n.op.name == "binary_cross_entropy_with_logits");
    let listed = |number: &usize| {
        let of = args.classes.as_ref().map(Vec::len);
        let shape = outputs.get(*number).map(|o| &o.shape[..]);
        shape.is_some_and(|shape| shape.len() == 2 && Some(shape[1]) == of)
    };
    let class = scorer
        .logits()
        .filter(|n| wanted.contains(n))
        .or_else(|| wanted.iter().copied().find(listed))
        .map(ClassOutput::Logits);
    let class = class
        .or_else(|| scorer.one_number().filter(|n| takes_logits && wanted.contains(n)).map(ClassOutput::One));
    ensure!(
        args.classes.is_none() || class.is_some(),
        "--classes does nothing: no output has logits of so many classes"
    );
    let asked = InferRequest { outputs: Some(wanted.clone()), whole: true, ..args.forward.asked()? };
    let labels = scorer.labels().unwrap_or("labels");
    let column = asked.data.names.get(labels).map_or(labels, String::as_str).to_string();
    let names = Names { given: args.classes.clone(), column };
    let mut out = PredictedTable::new(&args.out, args.overwrite, wanted, class, names)?;
    let done = infer::run(model, dims, args.forward.data(), &asked, device, &mut |ran| out.add(&ran))?;
    done.lines().for_each(|l| printer.line(l));
    let columns = out.finish().context("the predictions are not written")?;
    printer.line(format!("columns: {}", columns.join(", ")));
    printer.line(format!("{} samples; wrote {}", done.samples, args.out.display()));
    let result = serde_json::json!({
        "samples": done.samples, "file": args.out, "columns": columns, "weights": done.mapping,
    });
    Outcome::of(result, Status::Done)
}
