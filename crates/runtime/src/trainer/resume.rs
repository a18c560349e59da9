//! A run that goes on from a checkpoint, and differences of its settings from the checkpoint's.

use super::Event;
use crate::adapt;
use crate::average::Average;
use crate::checkpoint::{Found, Progress, Store};
use crate::config::TrainConfig;
use crate::error::{Error, Result};
use crate::session::Session;
use headwater_core::Graph;
use headwater_core::ranks::Transport;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Settings on which it depends which tensors a checkpoint has, and their types.
const OF_TENSORS: [&str; 6] = ["freeze", "optimizer", "groups", "moments", "amp", "sparse_embeddings"];

/// The directory of checkpoints as a run opens it.
#[derive(Default)]
pub(super) struct Opened {
    /// Absent where nothing is saved, or another rank does.
    pub store: Option<Store>,
    /// Findings of resuming, of this rank or of the one that has the checkpoints.
    pub found: Option<Found>,
}

impl Opened {
    /// Opens the directory that the settings name, if they name one. `ranks`: others that read the checkpoint
    /// too.
    pub fn of(config: &TrainConfig, resume: bool, ranks: Option<&Arc<dyn Transport>>) -> Result<Opened> {
        let keep = config.checkpoint.keep;
        match (&config.checkpoint.dir, resume) {
            (Some(dir), true) => {
                let (store, found) = Store::resume_with(dir, keep, ranks)?;
                Ok(Opened { store: Some(store), found: Some(found) })
            }
            (Some(dir), false) => Ok(Opened { store: Some(Store::create(dir, keep)?), ..Opened::default() }),
            (None, true) => Err(Error::config("checkpoint.dir", "must name the directory to resume from")),
            (None, false) => Ok(Opened::default()),
        }
    }
}

/// Restores what was found for a run of `steps` on `graph`, sets damaged checkpoints aside, and says what
/// differs from the settings then.
pub(super) fn resumption(
    session: &mut Session,
    graph: &Graph,
    average: Option<&mut Average>,
    config: &TrainConfig,
    steps: u64,
    store: Option<&Store>,
    found: Found,
) -> Result<(Option<Event>, u64)> {
    let Some(checkpoint) = found.checkpoint else { return Ok((None, 0)) };
    let step = checkpoint.progress().step;
    if step > steps {
        let message =
            format!("has done {step} steps, but the run has only {steps}: ask for more, or begin anew");
        return Err(Error::checkpoint(checkpoint.path(), message));
    }
    let changed = changes(&checkpoint.progress().config, config);
    same_parameters(checkpoint.progress(), config, graph, checkpoint.path())?;
    checkpoint.restore(session, average).map_err(|e| explained(e, &changed))?;
    // Only now it is known that the run goes on from here.
    let damaged = store.map_or(Ok(Vec::new()), |store| store.set_aside(&found.damaged))?;
    let path = checkpoint.path().to_owned();
    Ok((Some(Event::Resume { step, path, changed, damaged }), step))
}

/// Refuses a run that would train other parameters than the checkpoint's, which has no moments for them.
/// Patterns that match the same parameters are as good as the checkpoint's own.
fn same_parameters(then: &Progress, config: &TrainConfig, graph: &Graph, path: &Path) -> Result<()> {
    let (was, is) = (&then.config.freeze, &config.freeze);
    let trained = adapt::trained(graph);
    let sets = [&then.trained, &trained].map(|names| names.iter().collect::<BTreeSet<_>>());
    // Checkpoints of earlier versions do not name what they trained.
    let known = was.is_empty() || !then.trained.is_empty();
    if was == is || known && sets[0] == sets[1] {
        return Ok(());
    }
    let spelled = |patterns: &[String]| match patterns.is_empty() {
        true => "nothing".to_string(),
        false => patterns.join(", "),
    };
    let message = format!(
        "freezes {} now, and {} when {} was saved, so that other parameters are trained: resume with the patterns of \
         then, or begin a new run with these, in another folder, from the weights of that one (--init {})",
        spelled(is),
        spelled(was),
        path.display(),
        path.display()
    );
    Err(Error::config("freeze", message))
}

/// The refusal of a checkpoint's tensors, with the settings that may be the cause.
fn explained(e: Error, changed: &[String]) -> Error {
    let of_tensors = |c: &&String| {
        let name = c.split([':', '.']).next().unwrap_or_default();
        OF_TENSORS.contains(&name)
    };
    let causes: Vec<&str> = changed.iter().filter(of_tensors).map(String::as_str).collect();
    match e {
        Error::Checkpoint { path, message } if !causes.is_empty() => {
            let message = format!(
                "its tensors are not those of this run, whose settings differ: {}; resume with the settings of then, or \
                 begin a new run in another folder, from the weights of this one (--init {}) ({message})",
                causes.join("; "),
                path.display()
            );
            Error::Checkpoint { path, message }
        }
        e => e,
    }
}

/// Settings that differ, by name, those left out that change nothing in what is computed.
fn changes(old: &TrainConfig, new: &TrainConfig) -> Vec<String> {
    let object = |c: &TrainConfig| match serde_json::to_value(c) {
        Ok(serde_json::Value::Object(o)) => o,
        _ => serde_json::Map::new(),
    };
    let (old, new) = (object(old), object(new));
    let harmless = ["recompute", "memory_budget", "bucket_size", "checkpoint", "log", "alert"];
    // Evaluations change nothing, unless they decide on the rate or on the end.
    let decides = new["schedule"].get("name").is_some_and(|n| n == "plateau")
        || [&old, &new].iter().any(|c| !c["eval"]["patience"].is_null());
    let mut found = Vec::new();
    for (name, value) in &new {
        let passes = harmless.contains(&name.as_str()) || (name == "eval" && !decides);
        if name == "ranks" {
            // Neither the number of ranks nor what connects them changes a bit.
            let lanes = |ranks: Option<&serde_json::Value>| ranks.map_or(0.into(), |r| r["lanes"].clone());
            differing("lanes", &lanes(old.get(name)), &lanes(Some(value)), &mut found);
        } else if let Some(was) = old.get(name).filter(|_| !passes) {
            differing(name, was, value, &mut found);
        }
    }
    found
}

/// Adds the settings below `name` that differ, one by one.
fn differing(name: &str, was: &serde_json::Value, now: &serde_json::Value, found: &mut Vec<String>) {
    use serde_json::Value::{Null, Object};
    match (was, now) {
        (Object(was), Object(now)) if was.get("name") == now.get("name") => {
            let new = now.keys().filter(|key| !was.contains_key(*key));
            for key in was.keys().chain(new) {
                let of = |all: &serde_json::Map<_, _>| all.get(key).cloned().unwrap_or(Null);
                differing(&format!("{name}.{key}"), &of(was), &of(now), found);
            }
        }
        _ if was == now => {}
        _ => {
            let spelled = |v: &serde_json::Value| if v.is_null() { "none".into() } else { v.to_string() };
            found.push(format!("{name}: {} then, {} now", spelled(was), spelled(now)));
        }
    }
}
