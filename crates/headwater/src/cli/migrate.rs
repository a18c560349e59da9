//! `headwater migrate`.

use super::progress::Progress;
use super::{Outcome, Talk};
use crate::core::device::Device;
use crate::migrate::{Watcher, migrate};
use crate::report::{Section, text};
use crate::runtime::trainer::Observer;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  headwater migrate examples/digits-vit
  headwater migrate my-job --out results --json

DIR holds a migrate.toml that names the exported model, its golden, the data and the training settings.")]
pub struct Args {
    /// The job's folder.
    dir: PathBuf,
    /// Where results go (default: out/<name of DIR>).
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
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
    let (report, page) = migrate(&args.dir, &out, device, &mut printer, super::interrupt()?)?;
    let word = if report.passed() { "every step passed" } else { "NOT every step passed" };
    talk.line(format!("\n{word}; the report is {}", page.display()));
    let passed = report.passed();
    Outcome::of(report, passed)
}
