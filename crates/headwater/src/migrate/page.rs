//! The text of a new job's file: settings in force as lines, the others beside them as comments.

use crate::runtime::TrainConfig;
use crate::runtime::optim::Optimizer;
use anyhow::{Result, bail};
use serde::Serialize;
use std::fmt::Write;

/// Batch of a job whose model takes any, and passes over its data, where nothing else is known.
pub(super) const BATCH: usize = 32;
pub(super) const EPOCHS: f64 = 3.0;

/// Paths as they stand in the file.
pub(super) struct Files {
    pub export: String,
    pub golden: Option<String>,
    pub train: Option<String>,
    /// In a comment, the samples that `train` holds.
    pub kind: &'static str,
    pub eval: Option<String>,
}

/// The column at which comments begin.
const COMMENTS: usize = 44;

/// A file that grows line by line.
struct Page(String);

impl Page {
    fn table(&mut self, name: &str) {
        let _ = writeln!(self.0, "\n[{name}]");
    }

    /// A setting in force.
    fn set(&mut self, key: &str, value: impl Serialize, comment: &str) -> Result<()> {
        self.line(format!("{key} = {}", spelled(value)?), comment);
        Ok(())
    }

    /// A setting in force where there is a value; a comment with an example where there is none.
    fn maybe<T: Serialize>(&mut self, key: &str, value: Option<T>, example: T, comment: &str) -> Result<()> {
        match value {
            Some(value) => self.set(key, value, comment),
            None => self.set(&format!("# {key}"), example, comment),
        }
    }

    fn line(&mut self, text: String, comment: &str) {
        let _ = match comment {
            "" => writeln!(self.0, "{text}"),
            _ => writeln!(self.0, "{text:<COMMENTS$} # {comment}"),
        };
    }
}

/// The file's text.
pub(super) fn text(files: &Files, c: &TrainConfig) -> Result<String> {
    let mut p = Page(
        "# The job of `headwater migrate` for this model. Paths are relative to this file. A line that begins with # is an\n\
         # example and not in force. docs/settings.md explains every setting.\n"
            .into(),
    );
    p.table("model");
    p.set("export", &files.export, "")?;
    let example = "model.golden.safetensors".to_string();
    p.maybe("golden", files.golden.clone(), example, "what PyTorch computed, to compare with")?;
    p.table("train");
    let length = "length of the run: `steps` of the optimizer or `epochs` of the data";
    match c.steps {
        Some(steps) => p.set("steps", steps, length)?,
        None => p.set("epochs", c.epochs.unwrap_or(EPOCHS), length)?,
    }
    p.maybe("batch", c.batch, BATCH, "samples in a batch; without it, as exported")?;
    p.maybe("accumulate", Some(c.accumulate).filter(|a| *a != 1), 1, "batches averaged into one step")?;
    p.set("seed", c.seed, "of the order of samples and of random numbers")?;
    let schedule = &serde_json::to_value(c)?["schedule"];
    p.set("schedule", schedule, "learning rate after the warm-up: constant, linear, cosine, …")?;
    p.set("warmup", c.warmup, "steps over which the learning rate rises")?;
    p.maybe("end", Some(c.end).filter(|e| *e != 0.0), 0.1, "share of the learning rate left at the end")?;
    p.maybe("clip_norm", c.clip_norm, 1.0, "largest global norm of the gradients")?;
    p.maybe(
        "clip_value",
        c.clip_value,
        1.0,
        "largest magnitude of a gradient's element; not with clip_norm",
    )?;
    p.set("decay", c.decay, "weight decay for: matrices (no norms and biases), all, none")?;
    p.table("train.optimizer");
    optimizer(&mut p, &c.optimizer)?;
    for group in &c.groups {
        let _ = writeln!(p.0, "\n[[train.groups]]");
        p.set("parameters", &group.parameters, "those with settings of their own, `*` for any characters")?;
        group.settings.iter().try_for_each(|(k, v)| p.set(&key(k)?, v, ""))?;
    }
    p.table("train.data");
    p.maybe("train", files.train.clone(), "train.safetensors".into(), files.kind)?;
    p.maybe("eval", files.eval.clone(), "heldout.safetensors".into(), "samples held out for evaluation")?;
    p.maybe(
        "sequential",
        c.data.sequential.then_some(true),
        true,
        "in the file's order, not shuffled by the seed",
    )?;
    p.set("last", c.data.last, "samples that fill no batch: drop, keep or error")?;
    if !c.data.names.is_empty() {
        p.table("train.data.names");
        for (input, tensor) in &c.data.names {
            p.set(&key(input)?, tensor, "the file's tensor for this input")?;
        }
    }
    p.table("train.eval");
    p.maybe("every", c.eval.every, 100, "steps between evaluations; one more at the end")?;
    let labels = "input with the truth: classes, or numbers";
    p.maybe("labels", c.eval.labels.clone(), "labels".into(), labels)?;
    if let Some(lanes) = c.ranks.lanes {
        p.table("train.ranks");
        p.set("lanes", lanes, "parts of a step that ranks share; without it, as many as ranks")?;
    }
    p.table("train.checkpoint");
    p.maybe("every", c.checkpoint.every, 500, "steps between checkpoints; one more at the end")?;
    p.table("amp");
    p.set("level", "O1", "a second run in mixed precision: O1, O2 or O3; O0 for none")?;
    p.maybe(
        "dtype",
        None,
        "f16",
        "or bf16; without it, the first of bf16 and f16 that the device multiplies",
    )?;
    p.table("accept");
    p.maybe(
        "accuracy",
        None,
        0.9,
        "lowest accuracy on the held-out samples; any metric of `eval.metric` may stand here",
    )?;
    p.maybe("loss", None, 1.0, "highest loss on them")?;
    Ok(p.0)
}

/// A value as TOML spells it.
fn spelled(x: impl Serialize) -> Result<String> {
    Ok(toml::Value::try_from(x)?.to_string())
}

/// A key as TOML spells it.
fn key(name: &str) -> Result<String> {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { Ok(name.to_string()) } else { spelled(name) }
}

/// An optimizer's name, learning rate and other settings.
fn optimizer(p: &mut Page, o: &Optimizer) -> Result<()> {
    let serde_json::Value::Object(mut all) = serde_json::to_value(o)? else {
        bail!("the optimizer has no settings")
    };
    for (first, comment) in [("name", "or any of docs/settings.md"), ("lr", "peak learning rate")] {
        if let Some(value) = all.remove(first) {
            p.set(first, value, comment)?;
        }
    }
    all.iter().filter(|(_, v)| !v.is_null()).try_for_each(|(k, v)| p.set(k, v, ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::Job;
    use crate::runtime::score::Metric;

    fn files() -> Files {
        let some = |s: &str| Some(s.to_string());
        Files {
            export: "m.pt2".into(),
            golden: None,
            train: some("a b.npz"),
            eval: some("../\"x\".npz"),
            kind: "samples",
        }
    }

    fn read(text: &str) -> Job {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("migrate.toml"), text).unwrap();
        Job::read(dir.path()).unwrap_or_else(|e| panic!("{e:#}\n{text}"))
    }

    #[test]
    fn settings_come_back_from_the_file() {
        let names = [("x y".to_string(), "input.0".to_string())].into();
        let mut config: TrainConfig = serde_json::from_str(
            r#"{"steps": 7, "batch": 3, "schedule": {"name": "step", "every": 5}, "clip_norm": 0.5, "decay": "all",
                "optimizer": {"name": "larc", "optimizer": {"name": "sgd", "lr": 1e-9}}, "accumulate": 4,
                "groups": [{"parameters": "body.*", "lr": 0.0}, {"parameters": "*", "weight_decay": 1, "momentum": 0.5}]}"#,
        )
        .unwrap();
        config.data.names = names;
        let job = read(&text(&files(), &config).unwrap());
        assert_eq!(job.golden, None);
        assert!(job.train.data.train.ends_with("a b.npz") && job.trains());
        assert!(job.train.data.eval.as_ref().unwrap().ends_with("../\"x\".npz"));
        config.data = job.train.data.clone();
        assert_eq!(job.train, config);
    }

    #[test]
    fn every_example_is_a_setting() {
        let page = text(&files(), &TrainConfig::default()).unwrap();
        let examples = page.lines().filter(|l| l.starts_with("# ") && l.contains(" = ")).count();
        assert!(examples > 8, "{page}");
        // All in force at once: what excludes each other is found later, when a run begins.
        let all: String = page
            .lines()
            .map(|l| match l.strip_prefix("# ") {
                Some(setting) if setting.contains(" = ") => format!("{setting}\n"),
                _ => format!("{l}\n"),
            })
            .collect();
        let job = read(&all);
        assert_eq!(job.accept.0, [(Metric::Loss, 1.0), (Metric::Accuracy, 0.9)].into());
        assert_eq!(job.train.checkpoint.every, Some(500));
    }
}
