//! A page that shows a training run while it goes on, and stays as its record: `report.html` beside the
//! checkpoints.

use super::history::History;
use super::{Block, Report, Section, Verdict, html, scores, text};
use crate::runtime::trainer::{Event, Observer};
use crate::runtime::{Error, Result};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Seconds after which a browser loads the page of a run that goes on again.
pub(crate) const REFRESH: u64 = 10;
/// Time between two writes, at least.
const INTERVAL: Duration = Duration::from_secs(5);
/// The state of a run that goes on.
const RUNNING: &str = "running";
/// Writing takes at most one in so many seconds of the run.
const SHARE: u32 = 50;

/// Writes the page now and then, and at the end. A page that cannot be written does not end the run.
#[derive(Debug)]
pub struct Live {
    path: PathBuf,
    title: String,
    facts: Vec<(String, String)>,
    blocks: Vec<Block>,
    history: History,
    begun: Instant,
    /// The longer report of which the run is a step, if it is.
    step: Option<Part>,
    /// When training began, and the steps done by then.
    trains: Option<(Instant, u64)>,
    /// When the page is due again; at once at first.
    due: Option<Instant>,
}

/// A longer report, whose next step a run is.
#[derive(Clone, Debug)]
struct Part {
    before: Vec<Section>,
    title: String,
    /// The log of the run.
    log: Option<PathBuf>,
}

impl Live {
    /// A page at `path`, with facts and tables that stay; `history` has the steps of a run that is resumed.
    pub fn new(
        path: &Path,
        title: String,
        facts: Vec<(String, String)>,
        blocks: Vec<Block>,
        history: History,
    ) -> Live {
        let (path, begun) = (path.to_owned(), Instant::now());
        Live { path, title, facts, blocks, history, begun, step: None, trains: None, due: None }
    }

    /// The page of a longer report while a run is its next step: only that is written, not the end of the
    /// run.
    pub fn step(path: &Path, report: Report, title: &str) -> Live {
        let Report { title: whole, facts, sections } = report;
        let mut live = Live::new(path, whole, facts, Vec::new(), History::default());
        live.step = Some(Part { before: sections, title: title.into(), log: None });
        live
    }

    fn report(&self, state: &'static str, verdict: Verdict) -> Report {
        let (seconds, rate) = self.history.speed();
        let last = self.history.losses().last().copied();
        let loss = last.map_or(String::new(), |l| format!(", last loss {l:.4}"));
        let of = self.history.planned.map_or(String::new(), |n| format!(" of {n}"));
        let speed = match rate > 0.0 {
            true => format!("; {rate:.0} samples/s, {} a step", text::seconds(seconds)),
            false => String::new(),
        };
        let left = self.remaining().filter(|_| state == RUNNING);
        let left =
            left.map_or(String::new(), |s| format!("; about {} remain", text::seconds(s.max(1.0).round())));
        let summary = format!("{state}: step {}{of}{loss}{speed}{left}", self.history.step());
        let mut blocks = vec![Block::Chart(self.history.loss_chart())];
        blocks.extend(self.history.charts());
        if let Some(e) = self.history.evaluation() {
            blocks.extend(scores::blocks(&format!("Held-out data after {} steps", e.step), &e.scores));
        }
        blocks.extend(self.blocks.iter().cloned());
        let part = self.step.as_ref();
        let title = part.map_or("Training".to_string(), |p| p.title.clone());
        let mut sections = part.map_or(Vec::new(), |p| p.before.clone());
        sections.push(Section {
            title,
            verdict,
            word: Some(if verdict == Verdict::Fail { "failed" } else { state }),
            summary,
            blocks,
            seconds: self.begun.elapsed().as_secs_f64(),
            ..Section::default()
        });
        Report { title: self.title.clone(), facts: self.facts.clone(), sections }
    }

    /// Seconds that the remaining steps take, evaluations among them, if they take as long as those so far.
    fn remaining(&self) -> Option<f64> {
        let ((begun, before), planned, step) = (self.trains?, self.history.planned?, self.history.step());
        let (done, left) = (step.checked_sub(before)?, planned.checked_sub(step)?);
        (done > 0).then(|| begun.elapsed().as_secs_f64() / done as f64 * left as f64)
    }

    fn write(&mut self, state: &'static str, verdict: Verdict, refresh: Option<u64>) -> Result<()> {
        let begin = Instant::now();
        let report = self.report(state, verdict);
        let failed = |cause| Error::Io { path: self.path.clone(), cause };
        replace(&self.path, html::page(&report, refresh).as_bytes()).map_err(failed)?;
        self.due = Some(Instant::now() + INTERVAL.max(begin.elapsed() * SHARE));
        Ok(())
    }
}

/// Puts a file in the place of another: a reader sees the old one or the new one. Links are not followed.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    // One that a killed process of the same number left; a link there goes, and its target stays.
    match fs::remove_file(&temporary) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let written = fs::File::create_new(&temporary).and_then(|mut file| file.write_all(bytes));
    let done = written.and_then(|()| fs::rename(&temporary, path));
    if done.is_err() {
        // It only takes space.
        let _ = fs::remove_file(&temporary);
    }
    done
}

impl Observer for Live {
    fn essential(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        self.history.add(event);
        match event {
            Event::Start(start) => {
                // A migration trains several times.
                if let Some(part) = &mut self.step {
                    part.log.clone_from(&start.config.log.json);
                    self.history = History::default();
                    self.history.planned = Some(start.steps);
                }
                self.trains = Some((Instant::now(), self.history.step()));
                Ok(())
            }
            Event::Step(_) if self.due.is_none_or(|due| Instant::now() >= due) => {
                self.write(RUNNING, Verdict::Note, Some(REFRESH))
            }
            Event::Resume { step, .. } => {
                self.trains = self.trains.map(|(begun, _)| (begun, *step));
                if let Some(log) = self.step.as_ref().and_then(|part| part.log.as_ref()) {
                    // Steps that cannot be read are not drawn.
                    let planned = self.history.planned;
                    self.history = History::read(log, *step).unwrap_or_default();
                    self.history.planned = planned;
                }
                Ok(())
            }
            Event::Interrupted { .. } | Event::End { .. } if self.step.is_some() => Ok(()),
            Event::Interrupted { .. } => self.write("interrupted", Verdict::Note, None),
            Event::End { .. } => self.write("complete", Verdict::Pass, None),
            _ => Ok(()),
        }
    }
}

impl Drop for Live {
    /// A run that ends in an error leaves a page that says so.
    fn drop(&mut self) {
        let page = fs::read_to_string(&self.path).unwrap_or_default();
        if self.due.is_some() && self.step.is_none() && page.contains("http-equiv=\"refresh\"") {
            let _ = self.write("ended before it was complete", Verdict::Fail, None);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_goes_on_says_so_and_how_long_it_takes() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log.jsonl");
        let step = |n: u64| format!("{{\"event\":\"step\",\"step\":{n},\"loss\":2.0}}\n");
        fs::write(&log, (1..=30).map(step).collect::<String>()).unwrap();
        let mut history = History::read(&log, 30).unwrap();
        history.planned = Some(100);
        let page = dir.path().join("report.html");
        let mut live = Live::new(&page, "Training".into(), vec![], vec![], history);
        // 20 steps in 40 s: 70 more take 140 s.
        live.trains = Instant::now().checked_sub(Duration::from_secs(40)).map(|begun| (begun, 10));
        live.write(RUNNING, Verdict::Note, Some(REFRESH)).unwrap();
        let html = fs::read_to_string(&page).unwrap();
        assert!(
            html.contains("running: step 30 of 100, last loss 2.0000; about 2 min 20 s remain"),
            "{html}"
        );
        assert_eq!(html.matches("note\">running<").count(), 2, "both badges");
        assert!(html.contains("<noscript><meta http-equiv=\"refresh\" content=\"10\"></noscript>"));
        assert!(html.contains("<body data-refresh=\"10\">"));
        live.write("interrupted", Verdict::Note, None).unwrap();
        let html = fs::read_to_string(&page).unwrap();
        assert!(
            !html.contains("remain<")
                && !html.contains("data-refresh=\"10\"")
                && !html.contains("http-equiv")
        );
        assert_eq!(html.matches("note\">interrupted<").count(), 2, "both badges");
    }

    #[test]
    fn a_page_takes_the_place_of_a_link_and_not_of_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let (page, target) = (dir.path().join("report.html"), dir.path().join("thesis.tex"));
        fs::write(&target, "years of work").unwrap();
        std::os::unix::fs::symlink(&target, &page).unwrap();
        replace(&page, b"a page").unwrap();
        assert_eq!(fs::read(&page).unwrap(), b"a page");
        assert_eq!(fs::read_to_string(&target).unwrap(), "years of work");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
