//! `headwater predict`.

use super::eval::Forward;
use super::{Outcome, Printer, Status};
use crate::core::compile::has_loss;
use crate::core::device::Device;
use crate::core::graph::OutputRole;
use crate::export::Predictions;
use crate::infer::{self, InferRequest};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater predict model.pt2 --data new.safetensors --weights run --out predictions.safetensors
  headwater predict model.pt2 --data new.npz --weights run/step-00000200 --outputs 1 --out logits.npz

The model runs in evaluation mode, on samples in the file's order. Outputs are written batch by batch, so the file may be larger
than memory. An input that the wanted outputs do not depend on, such as labels, may be missing. Outputs are called output.1,
output.2, …; output.0 is the loss, which is no prediction. With --buckets, outputs of shorter batches are padded with zeros.")]
pub struct Args {
    #[command(flatten)]
    forward: Forward,
    /// File for the outputs: .safetensors or .npz.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Numbers of the outputs to write, counted from 0 (default: all but the loss).
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    outputs: Option<Vec<usize>>,
    /// Replace the file if it exists.
    #[arg(long)]
    overwrite: bool,
}

pub fn run(args: &Args, device: Arc<dyn Device>, printer: Printer) -> Result<Outcome> {
    let (model, dims) = args.forward.model()?;
    let wanted = match &args.outputs {
        Some(outputs) => outputs.clone(),
        None => {
            let bound = model.bind(&dims.clone().or_exported())?;
            let users = bound.graph.outputs.iter().filter(|o| o.role == OutputRole::User).count();
            (usize::from(has_loss(&bound.graph))..users).collect()
        }
    };
    ensure!(
        !wanted.is_empty(),
        "the model returns its loss alone: export it with the predictions as further outputs, `return loss, logits`"
    );
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
