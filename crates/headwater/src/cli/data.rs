//! `headwater data`.

use super::{Outcome, Printer, Status};
use crate::core::TensorType;
use crate::export::Predictions;
use crate::infer::Raw;
use crate::runtime::Dataset;
use anyhow::{Result, ensure};
use std::path::PathBuf;

/// Samples that are written at a time.
const TOGETHER: usize = 256;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater data corpus --out train.safetensors
  headwater data photos --out photos.npz
  headwater data table.csv

Without --out, the columns are listed. With it, the samples are written as tensors, as a run would be fed with them: texts as tokens,
images decoded, lists filled up. PyTorch's `record` takes such a file, so that a loss curve on a folder can be compared.")]
pub struct Args {
    /// Samples: a file or folder as `train` takes it (docs/data.md).
    source: PathBuf,
    /// File for the tensors: .safetensors or .npz.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Columns to write (default: all).
    #[arg(long, value_delimiter = ',', value_name = "NAMES", requires = "out")]
    columns: Option<Vec<String>>,
    /// Replace the file if it exists.
    #[arg(long, requires = "out")]
    overwrite: bool,
}

pub fn run(args: &Args, printer: Printer) -> Result<Outcome> {
    let data = Dataset::open(&args.source)?;
    data.remark().iter().for_each(|r| printer.line(format!("note: {r}")));
    let wanted = |name: &str| args.columns.as_ref().is_none_or(|all| all.iter().any(|c| c == name));
    let columns: Vec<_> = data.columns().iter().filter(|c| wanted(&c.name)).collect();
    if let Some(name) = args.columns.iter().flatten().find(|name| data.column(name).is_none()) {
        let have: Vec<&str> = data.columns().iter().map(|c| c.name.as_str()).collect();
        anyhow::bail!("{} has no column {name}; it has: {}", data.path().display(), have.join(", "));
    }
    for c in &columns {
        let names =
            data.class_names(&c.name).map_or(String::new(), |n| format!("  classes: {}", n.join(", ")));
        printer.line(format!("{}: {}{names}", c.name, c.ty));
    }
    let samples = columns.first().and_then(|c| c.ty.shape.first()).copied().unwrap_or(0);
    if let Some(path) = &args.out {
        let other = columns.iter().find(|c| c.ty.shape.first() != Some(&samples));
        ensure!(
            other.is_none(),
            "{} has another number of samples than {}: choose with --columns",
            other.map_or("", |c| c.name.as_str()),
            columns[0].name
        );
        let mut out =
            Predictions::new(path, args.overwrite, columns.iter().map(|c| c.name.clone()).collect())?;
        for begin in (0..samples).step_by(TOGETHER) {
            let end = samples.min(begin + TOGETHER);
            let part = |c: &&crate::runtime::data::Column| {
                let mut bytes = Vec::new();
                (begin..end).try_for_each(|i| c.append(i, c.ty.dtype, &mut bytes))?;
                let mut shape = c.ty.shape.to_vec();
                shape[0] = end - begin;
                anyhow::Ok(Raw { ty: TensorType::new(c.ty.dtype, shape), bytes })
            };
            out.add(end - begin, &columns.iter().map(part).collect::<Result<Vec<_>>>()?)?;
        }
        out.finish()?;
        printer.line(format!("{samples} samples; wrote {}", path.display()));
    }
    let listed: Vec<_> = columns
        .iter()
        .map(|c| serde_json::json!({ "name": c.name, "type": c.ty.to_string(), "classes": data.class_names(&c.name) }))
        .collect();
    Outcome::of(serde_json::json!({ "samples": samples, "columns": listed, "file": args.out }), Status::Done)
}
