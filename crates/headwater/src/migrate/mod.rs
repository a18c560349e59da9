//! The main job: the eight steps of moving a model to this machine, each with its verdict, and a report to
//! keep.

mod bundle;
mod chance;
mod comparable;
mod evaluation;
mod folder;
mod job;
mod mixed;
mod new;
mod page;
mod steps;
mod times;
mod training;

pub use job::{Accept, Job};
pub use new::{New, write_new};

use crate::core::device::Device;
use crate::report::live::{Live, REFRESH, replace};
use crate::report::{Block, Report, Section, Verdict, facts, html, text};
use crate::runtime::trainer::{Event, Observer};
use anyhow::{Context, Result};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Result of a step: its verdict, a sentence, details.
pub(crate) struct Found {
    verdict: Verdict,
    summary: String,
    blocks: Vec<Block>,
    next: Option<String>,
    values: Map<String, Value>,
    /// True if nothing was compared, so that the step proved nothing.
    idle: bool,
    /// Seconds of the work, if it was done in an earlier step; 0 for a step that reads results alone.
    seconds: Option<f64>,
}

impl Found {
    fn new(passed: bool, summary: impl Into<String>) -> Found {
        let verdict = if passed { Verdict::Pass } else { Verdict::Fail };
        let (blocks, values) = (vec![], Map::new());
        Found { verdict, summary: summary.into(), blocks, next: None, values, idle: false, seconds: None }
    }

    fn note(summary: impl Into<String>) -> Found {
        Found { verdict: Verdict::Note, ..Found::new(true, summary) }
    }

    /// A note of a step that compared nothing.
    fn idle(summary: impl Into<String>) -> Found {
        Found { idle: true, ..Found::note(summary) }
    }

    /// A typed value for programs; `docs/json.md` has the keys.
    fn value(mut self, key: &str, value: impl serde::Serialize) -> Found {
        self.values.insert(key.into(), serde_json::json!(value));
        self
    }

    /// The advice of a step, should it have failed.
    fn next(mut self, next: impl Into<String>) -> Found {
        self.next = Some(next.into()).filter(|n| self.verdict == Verdict::Fail && !n.is_empty());
        self
    }

    fn took(mut self, seconds: f64) -> Found {
        self.seconds = Some(seconds);
        self
    }

    fn with(mut self, block: Block) -> Found {
        self.blocks.push(block);
        self
    }
}

/// A receiver of progress reports.
pub trait Watcher {
    /// A step begins.
    fn begin(&mut self, number: usize, title: &str);
    /// A step has ended.
    fn end(&mut self, number: usize, section: &Section);
    /// Draws the training run.
    fn training(&mut self) -> &mut dyn Observer;
    /// A step has ended in an error, and with it a training run that was going on.
    fn failed(&mut self, _: &anyhow::Error) {}
}

/// The treatment of an earlier migration's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// There must be none.
    Anew,
    /// They are replaced.
    Overwrite,
    /// Training runs that were interrupted are resumed; everything else is done again.
    Resume,
}

/// Runs all steps of a job, which `adjust` may change before, in the folder `out`. The report is written
/// after each step. A step that cannot be done is a failed step, not an error; those that need it are left
/// out.
///
/// # Errors
/// If the job cannot be read, `out` is in use or not empty, or the report cannot be written.
pub fn migrate(
    dir: &Path,
    out: &Path,
    begin: Begin,
    device: Arc<dyn Device>,
    adjust: impl FnOnce(&mut Job) -> Result<()>,
    watcher: &mut dyn Watcher,
    stop: &AtomicBool,
) -> Result<(Report, PathBuf)> {
    let mut job = Job::read(dir)?;
    adjust(&mut job)?;
    let folder = folder::Folder::lock(out)?;
    folder.clear(begin)?;
    let mut facts = vec![("job".to_string(), job.name.clone())];
    facts.extend(facts::run());
    let title = format!("Migration of {}", job.name);
    let shown = |path: &Path| text::word(&path.display().to_string());
    let again = format!("headwater migrate {} --out {} --resume", shown(dir), shown(out));
    let report = Report { title, facts, sections: vec![] };
    let mut run = Run { report, out, again, watcher, failed: None };
    let machine = run.step("environment", "Environment", |_| Ok(steps::environment(&*device)));
    run.report.facts.extend(machine.unwrap_or_default());
    run.report.facts.extend(files(&job));
    let opened = run.step("analysis", "Analysis of the model", |_| steps::analysis(&job, &*device));
    if let Some(opened) = &opened {
        run.report.facts.extend(opened.pytorch());
    }
    let checked = opened
        .and_then(|o| run.step("forward", "Forward against PyTorch", |_| steps::forward(&job, o, &*device)));
    let checked =
        checked.and_then(|c| run.step("gradients", "Gradients against PyTorch", |_| steps::gradients(c)));
    if job.trains() {
        let frame = training::Frame { out, begin, device: device.clone(), stop };
        let trained = checked.and_then(|c| {
            run.step("training", "Training against PyTorch's curve", |w| {
                training::training(&job, c, &frame, w)
            })
        });
        let evaluated = trained.and_then(|t| {
            run.step("evaluation", "Evaluation on held-out data", |_| evaluation::evaluation(&job, t))
        });
        let mixed = evaluated.and_then(|t| {
            run.step("mixed_precision", "Mixed precision", |w| mixed::mixed(&job, t, &frame, w))
        });
        if let Some(t) = mixed {
            run.step("bundle", "Bundle", |_| bundle::bundle(t, out));
        }
    } else if checked.is_some() {
        run.step("training", "Training", |_| Ok(((), steps::lacking(steps::NO_DATA))));
    }
    let written = run.write(None);
    match run.failed.or(written.err()) {
        Some(e) => Err(e),
        None => Ok((run.report, out.join("report.html"))),
    }
}

/// The job's files with their hashes.
fn files(job: &Job) -> Vec<(String, String)> {
    let data = &job.train.data;
    let named = [
        ("model", Some(&job.export)),
        ("golden", job.golden.as_ref()),
        ("training data", Some(&data.train).filter(|p| !p.as_os_str().is_empty())),
        ("held-out data", data.eval.as_ref()),
        ("first weights", job.train.init.weights.as_ref().filter(|p| p.is_file())),
    ];
    named.into_iter().filter_map(|(what, path)| Some(facts::file(what, path?))).collect()
}

/// Shows a training run on the page of the migration while it goes on.
struct Living<'a> {
    inner: &'a mut dyn Watcher,
    live: Live,
}

impl Watcher for Living<'_> {
    fn begin(&mut self, number: usize, title: &str) {
        self.inner.begin(number, title);
    }

    fn end(&mut self, number: usize, section: &Section) {
        self.inner.end(number, section);
    }

    fn training(&mut self) -> &mut dyn Observer {
        self
    }
}

impl Observer for Living<'_> {
    fn event(&mut self, event: &Event) -> crate::runtime::Result<()> {
        // A page that cannot be written is an error at the end of the step.
        let _ = self.live.event(event);
        self.inner.training().event(event)
    }
}

/// Steps done so far, and the report of them in `out`.
struct Run<'a> {
    report: Report,
    out: &'a Path,
    /// The command that goes on with this migration.
    again: String,
    watcher: &'a mut dyn Watcher,
    /// The first failure to write the report.
    failed: Option<anyhow::Error>,
}

impl Run<'_> {
    /// Runs a step; `None` if it failed in a way that leaves nothing to go on with.
    fn step<T>(
        &mut self,
        key: &'static str,
        title: &str,
        work: impl FnOnce(&mut dyn Watcher) -> Result<(T, Found)>,
    ) -> Option<T> {
        let number = self.report.sections.len() + 1;
        self.watcher.begin(number, title);
        let (title, word) = (title.to_string(), Some("running"));
        let page = self.out.join("report.html");
        let live = Live::step(&page, self.report.clone(), &title);
        self.report.sections.push(Section { title: title.clone(), word, ..Section::default() });
        let begun = self.write_page(Some(REFRESH));
        self.report.sections.pop();
        self.failed = self.failed.take().or(begun.err());
        let begin = Instant::now();
        let worked = work(&mut Living { inner: self.watcher, live });
        let (result, found) = match worked {
            Ok((t, found)) => (Some(t), found),
            Err(e) => {
                self.watcher.failed(&e);
                (None, failure(&e, &self.again))
            }
        };
        let Found { verdict, summary, blocks, next, values, idle, seconds } = found;
        let seconds = seconds.unwrap_or(begin.elapsed().as_secs_f64());
        self.report.sections.push(Section {
            key,
            title,
            verdict,
            idle,
            word: None,
            summary,
            next,
            values,
            blocks,
            seconds,
        });
        self.watcher.end(number, &self.report.sections[number - 1]);
        let written = self.write(Some(REFRESH));
        self.failed = self.failed.take().or(written.err());
        result
    }

    /// Writes the report as it is now, for people and for programs. With `refresh`, steps are still to come.
    fn write(&self, refresh: Option<u64>) -> Result<()> {
        self.write_page(refresh)?;
        self.replace("report.json", &serde_json::to_vec_pretty(&self.report.results())?)
    }

    /// Writes the page alone.
    fn write_page(&self, refresh: Option<u64>) -> Result<()> {
        self.replace("report.html", html::page(&self.report, refresh).as_bytes())
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.out.join(name);
        replace(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A step that ended in an error, and where its code is explained; without a code, the command that goes on.
fn failure(e: &anyhow::Error, again: &str) -> Found {
    let said = format!("{e:#}");
    let next = match text::code(&said) {
        Some(code) => format!("`headwater explain {code}` says what this means and what to do"),
        None => format!(
            "if the message names a file or a setting, correct it; then `{again}` repeats the steps and keeps what is trained"
        ),
    };
    Found::new(false, said).next(next)
}
