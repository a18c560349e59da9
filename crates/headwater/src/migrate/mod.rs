//! The main job: the eight steps of moving a model to this machine, each with its verdict, and a report to
//! keep.

mod comparable;
mod folder;
mod job;
mod mixed;
mod new;
mod page;
mod steps;

pub use job::{Accept, Job};
pub use new::{New, write_new};

use crate::core::device::Device;
use crate::report::{Block, Report, Section, Verdict, html};
use crate::runtime::trainer::Observer;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// What a step found: its verdict, a sentence, details.
pub(crate) struct Found {
    verdict: Verdict,
    summary: String,
    blocks: Vec<Block>,
}

impl Found {
    fn new(passed: bool, summary: impl Into<String>) -> Found {
        let verdict = if passed { Verdict::Pass } else { Verdict::Fail };
        Found { verdict, summary: summary.into(), blocks: vec![] }
    }

    fn with(mut self, block: Block) -> Found {
        self.blocks.push(block);
        self
    }
}

/// Who is told how the work goes on.
pub trait Watcher {
    /// A step begins.
    fn begin(&mut self, number: usize, title: &str);
    /// A step has ended.
    fn end(&mut self, number: usize, section: &Section);
    /// Draws the training run.
    fn training(&mut self) -> &mut dyn Observer;
}

/// Runs all steps of a job, which `adjust` may change before, in the folder `out`; results of an earlier
/// migration there are replaced with `overwrite` alone. A step that cannot be done is a failed step, not an
/// error; those that need it are left out.
///
/// # Errors
/// If the job cannot be read, `out` is in use or not empty, or the report cannot be written.
pub fn migrate(
    dir: &Path,
    out: &Path,
    overwrite: bool,
    device: Arc<dyn Device>,
    adjust: impl FnOnce(&mut Job) -> Result<()>,
    watcher: &mut dyn Watcher,
    stop: &AtomicBool,
) -> Result<(Report, PathBuf)> {
    let mut job = Job::read(dir)?;
    adjust(&mut job)?;
    let folder = folder::Folder::lock(out)?;
    folder.clear(overwrite)?;
    let mut run = Run { sections: vec![], watcher };
    let machine = run.step("Environment", |_| Ok(steps::environment(&*device)));
    let opened = run.step("Analysis of the model", |_| steps::analysis(&job, &*device));
    let checked =
        opened.and_then(|o| run.step("Forward against PyTorch", |_| steps::forward(&job, o, &*device)));
    let checked = checked.and_then(|c| run.step("Gradients against PyTorch", |_| steps::gradients(c)));
    if job.trains() {
        let trained = checked.and_then(|c| {
            run.step("Training against PyTorch's curve", |w| {
                steps::training(&job, c, out, device.clone(), w, stop)
            })
        });
        let evaluated =
            trained.and_then(|t| run.step("Evaluation on held-out data", |_| steps::evaluation(&job, t)));
        let mixed = evaluated.and_then(|t| {
            run.step("Mixed precision", |w| mixed::mixed(&job, t, out, device.clone(), w, stop))
        });
        if let Some(e) = mixed {
            run.step("Bundle", |_| steps::bundle(&job, e, out));
        }
    } else if checked.is_some() {
        run.step("Training", |_| Ok(((), steps::lacking(steps::NO_DATA))));
    }
    let mut facts = vec![("job".to_string(), job.name.clone())];
    facts.extend(machine.unwrap_or_default());
    let report = Report { title: format!("Migration of {}", job.name), facts, sections: run.sections };
    let page = out.join("report.html");
    write(&page, html::page(&report).as_bytes())?;
    write(&out.join("report.json"), &serde_json::to_vec_pretty(&report)?)?;
    Ok((report, page))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

struct Run<'a> {
    sections: Vec<Section>,
    watcher: &'a mut dyn Watcher,
}

impl Run<'_> {
    /// Runs a step; `None` if it failed in a way that leaves nothing to go on with.
    fn step<T>(
        &mut self,
        title: &str,
        work: impl FnOnce(&mut dyn Watcher) -> Result<(T, Found)>,
    ) -> Option<T> {
        let number = self.sections.len() + 1;
        self.watcher.begin(number, title);
        let begin = Instant::now();
        let (result, found) = match work(self.watcher) {
            Ok((t, found)) => (Some(t), found),
            Err(e) => (None, Found::new(false, format!("{e:#}"))),
        };
        let Found { verdict, summary, blocks } = found;
        let seconds = begin.elapsed().as_secs_f64();
        self.sections.push(Section { title: title.to_string(), verdict, summary, blocks, seconds });
        self.watcher.end(number, &self.sections[number - 1]);
        result
    }
}
