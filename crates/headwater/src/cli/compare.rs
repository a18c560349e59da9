//! `headwater compare`.

use super::{Outcome, Printer, Status, Usage};
use crate::compare::{Comparison, report};
use crate::report::html;
use crate::report::live::replace;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater compare runs/lr-3e-4 runs/lr-1e-3 runs/lr-3e-3
  headwater compare runs/small runs/large --out compare.html
  headwater compare out/digits-vit/log.jsonl out/digits-vit/log.mixed.jsonl

A run is a folder that `train --out` or `migrate` has filled, or its log of JSON lines; it may still go on. docs/following.md
explains the tables.")]
pub struct Args {
    /// The runs: folders with a log.jsonl, or logs.
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Write a page with the curves over each other, such as compare.html; one of that name is replaced.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub fn run(args: &Args, printer: Printer) -> Result<Outcome> {
    if let Some(out) = &args.out {
        let page = out.extension().is_some_and(|e| e == "html");
        ensure!(page, Usage(format!("--out {}: a page, whose name ends in .html", out.display())));
    }
    let comparison = Comparison::read(&args.runs)?;
    let tables = comparison.tables();
    if comparison.differing().is_empty() {
        printer.line("no setting differs\n");
    }
    tables.iter().chain([&comparison.curves()]).for_each(|t| printer.table(t));
    comparison.winner().iter().for_each(|w| printer.line(w));
    let mut json = comparison.json();
    if let Some(out) = &args.out {
        let page = html::page(&report(&comparison), None);
        replace(out, page.as_bytes()).with_context(|| format!("cannot write {}", out.display()))?;
        printer.line(format!("wrote {}", out.display()));
        json["file"] = serde_json::json!(out);
    }
    Outcome::of(json, Status::Done)
}
