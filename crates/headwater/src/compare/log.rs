//! A run, as its log tells it.

use crate::report::facts;
use crate::report::history::{History, Line};
use crate::runtime::score::Metric;
use crate::words::near_file;
use anyhow::{Result, ensure};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the log in the folder of a run.
const LOG: &str = "log.jsonl";
/// Settings of places and messages, which do not change what is computed.
const PLACES: [&str; 3] = ["checkpoint.dir", "log.", "alert."];

/// A run.
#[derive(Debug)]
pub struct RunLog {
    /// The shortest end of its path that no other run has.
    pub name: String,
    /// Its log.
    pub log: PathBuf,
    /// Its settings by name, and facts that follow from them: the data's samples, the batch, parameters.
    pub settings: BTreeMap<String, String>,
    /// The metric by which its evaluations are compared.
    pub metric: Metric,
    /// How it ended.
    pub state: State,
    /// Its steps and evaluations.
    pub history: History,
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// All steps were done, or it ended early because evaluations got no better.
    Complete,
    /// It was asked to stop.
    Interrupted,
    /// The log just ends: the run goes on, or ended in an error.
    Unfinished,
}

impl State {
    /// In words.
    pub fn word(self) -> &'static str {
        match self {
            State::Complete => "complete",
            State::Interrupted => "interrupted",
            State::Unfinished => "unfinished",
        }
    }
}

/// The log that a path means: a file, or the one in a folder.
pub(super) fn find(path: &Path) -> Result<PathBuf> {
    let log = if path.is_dir() { path.join(LOG) } else { path.to_path_buf() };
    let what = match path.is_dir() {
        true => format!("{} has no {LOG}", path.display()),
        false => format!("{} does not exist{}", path.display(), near_file(path, &["jsonl"])),
    };
    ensure!(
        log.exists(),
        "{what}: name a folder that `headwater train --out` or `headwater migrate` has filled, or a log of a run"
    );
    Ok(log)
}

/// The shortest ends of paths, by whole names, that are all different; `log.jsonl` is left out.
pub(super) fn names(logs: &[PathBuf]) -> Vec<String> {
    let parts = |log: &PathBuf| -> Vec<String> {
        let whole = std::path::absolute(log).unwrap_or_else(|_| log.clone());
        let mut parts: Vec<String> = whole
            .components()
            .filter(|c| matches!(c, std::path::Component::Normal(_)))
            .map(|c| c.as_os_str().to_string_lossy().into_owned())
            .collect();
        if parts.len() > 1 && parts.last().is_some_and(|l| l == LOG) {
            parts.pop();
        }
        parts
    };
    let all: Vec<Vec<String>> = logs.iter().map(parts).collect();
    let longest = all.iter().map(Vec::len).max().unwrap_or(1);
    let ends = |n: usize| all.iter().map(move |p| p[p.len().saturating_sub(n)..].join("/"));
    let different = |n: &usize| {
        let mut ends: Vec<String> = ends(*n).collect();
        ends.sort();
        ends.windows(2).all(|pair| pair[0] != pair[1])
    };
    let n = (1..=longest).find(different).unwrap_or(longest);
    ends(n).collect()
}

impl RunLog {
    /// Reads a log.
    ///
    /// # Errors
    /// If it cannot be read or has no step.
    pub(super) fn read(log: &Path, name: String) -> Result<RunLog> {
        let mut run = RunLog {
            name,
            log: log.to_path_buf(),
            settings: BTreeMap::new(),
            metric: Metric::default(),
            state: State::Unfinished,
            history: History::default(),
        };
        let mut planned = None;
        run.history = History::read_with(log, u64::MAX, |line| match line {
            // A run that is resumed begins again, and the settings of its last part count.
            Line::Start { steps, config, facts } => {
                planned = steps;
                run.metric = serde_json::from_value(config["eval"]["metric"].clone()).unwrap_or_default();
                run.settings = settings(&config, &facts);
                run.state = State::Unfinished;
            }
            Line::Interrupted {} => run.state = State::Interrupted,
            Line::End {} => run.state = State::Complete,
            _ => {}
        })?;
        run.history.planned = planned;
        ensure!(
            run.history.step() > 0,
            "{} has no step of a training run: it is another file, or the run ended before its first step",
            log.display()
        );
        Ok(run)
    }
}

/// Settings by name; facts that settings leave open are named by what they are.
fn settings(config: &Value, facts: &Map<String, Value>) -> BTreeMap<String, String> {
    let place = |name: &str| PLACES.iter().any(|p| name == *p || p.ends_with('.') && name.starts_with(p));
    let mut all: BTreeMap<String, String> =
        facts::named(config).into_iter().filter(|(name, _)| !place(name)).collect();
    for (key, name) in [("samples", "(samples)"), ("parameters", "(parameters)"), ("batch", "batch")] {
        if let Some(value) = facts.get(key).filter(|v| v.is_u64()) {
            all.insert(name.into(), value.to_string());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_the_shortest_names_that_differ() {
        let named = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(named(&["runs/a/log.jsonl", "/x/b/log.jsonl"]), ["a", "b"]);
        assert_eq!(named(&["/r/1/out/log.jsonl", "/r/2/out/log.jsonl"]), ["1/out", "2/out"]);
        assert_eq!(named(&["/m/log.jsonl", "/m/log.mixed.jsonl"]), ["m", "log.mixed.jsonl"]);
    }

    #[test]
    fn settings_leave_out_places_and_take_the_batch_in_force() {
        let config = serde_json::json!({
            "batch": null, "seed": 3, "checkpoint": {"dir": "a", "keep": 2}, "log": {"json": "b"}, "alert": {"loss_above": 3.0},
        });
        let facts = serde_json::json!({ "batch": 32, "samples": 9, "decayed": ["w"] });
        let found = settings(&config, facts.as_object().unwrap());
        let found: Vec<(&str, &str)> = found.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(found, [("(samples)", "9"), ("batch", "32"), ("checkpoint.keep", "2"), ("seed", "3")]);
    }
}
