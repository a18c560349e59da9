//! `headwater migrate`.

use super::amp::Amp;
use super::progress::Progress;
use super::{Outcome, Recompute, Talk};
use crate::core::device::Device;
use crate::migrate::{Watcher, migrate};
use crate::report::{Block, Section, text};
use crate::runtime::trainer::Observer;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater migrate examples/digits-vit
  headwater migrate my-job --out results --json
  headwater migrate my-job --amp O2 --dtype f16 --loss-scale predictive

DIR holds a migrate.toml that names the exported model, its golden, the data and the training settings. What is said about mixed
precision is for the step that trains a second time in it; in the file, that is `[amp]`.")]
pub struct Args {
    /// The job's folder.
    dir: PathBuf,
    /// Where results go (default: out/<name of DIR>).
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    amp: Amp,
    #[command(flatten)]
    recompute: Recompute,
}

struct Printer {
    talk: Talk,
    progress: Progress,
}

impl Watcher for Printer {
    fn begin(&mut self, number: usize, title: &str) {
        self.talk.line(format!("{number}  {title}"));
    }

    fn end(&mut self, _: usize, section: &Section) {
        self.talk.line(format!(
            "   {}  {}  ({})",
            section.verdict.word(),
            section.summary,
            text::seconds(section.seconds)
        ));
        // Curves over the steps of a run, in a line each.
        for block in &section.blocks {
            let Block::Chart(chart) = block else { continue };
            for s in chart.series.iter().filter(|_| chart.x == "step") {
                let (Some(first), Some(last)) = (s.points.first(), s.points.last()) else { continue };
                let line = text::sparkline(s.points.iter().map(|p| p.1), 40);
                self.talk.line(format!(
                    "         {line:<40}  {:.4} → {:.4}  {} ({})",
                    first.1, last.1, s.name, chart.y
                ));
            }
        }
    }

    fn training(&mut self) -> &mut dyn Observer {
        &mut self.progress
    }
}

pub fn run(args: &Args, device: Arc<dyn Device>, talk: Talk) -> Result<Outcome> {
    let dir = std::fs::canonicalize(&args.dir)
        .with_context(|| format!("there is no folder {} with a migrate.toml", args.dir.display()))?;
    let name = dir.file_name().map(PathBuf::from).unwrap_or_else(|| "model".into());
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from("out").join(name));
    let mut printer = Printer { talk, progress: Progress::new(talk.json) };
    let adjust = |job: &mut crate::migrate::Job| {
        job.train.recompute = args.recompute.over(job.train.recompute);
        args.amp.over(&mut job.amp)
    };
    let (report, page) = migrate(&args.dir, &out, device, adjust, &mut printer, super::interrupt()?)?;
    let word = if report.passed() { "every step passed" } else { "NOT every step passed" };
    talk.line(format!("\n{word}; the report is {}", page.display()));
    let passed = report.passed();
    Outcome::of(report, passed)
}
