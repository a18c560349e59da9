//! Golden files: what PyTorch computed, as `tools/` records it (`goldens/README.md` has the format).

use crate::core::Tensor;
use crate::runtime::TrainConfig;
use crate::tensors::TensorFile;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;

/// A recorded truth.
#[derive(Debug)]
pub struct Golden {
    file: TensorFile,
}

/// What a recorded tensor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A result of the model.
    Output,
    /// A gradient.
    Gradient,
    /// A buffer's new value.
    Buffer,
    /// A value inside the graph.
    Node,
}

impl Kind {
    /// Every kind with its prefix in the file.
    pub const ALL: [(Kind, &'static str); 4] = [
        (Kind::Output, "output."),
        (Kind::Gradient, "grad."),
        (Kind::Buffer, "buffer."),
        (Kind::Node, "node."),
    ];
}

/// A recorded training run.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Loss of each step's batch before its update.
    pub loss: Vec<f64>,
    /// Learning rate of each step.
    pub lr: Vec<f64>,
    /// Gradient norm of each step before clipping.
    pub norm: Vec<f64>,
    /// Sample indices of each step, if the run walked a data set.
    pub order: Option<Vec<Vec<i64>>>,
    /// Accuracy on held-out data at the end, if recorded.
    pub accuracy: Option<f64>,
    /// Loss on held-out data at the end, if recorded.
    pub eval_loss: Option<f64>,
}

impl Golden {
    /// Reads a golden.
    ///
    /// # Errors
    /// If it is no golden of a format this version reads.
    pub fn read(path: &Path) -> Result<Golden> {
        let file = TensorFile::read(path)?;
        let format = file.metadata.get("format").map(String::as_str);
        ensure!(
            format == Some("headwater-golden-1"),
            "{} is no golden file: its format is {}; record it with headwater_tools.record",
            path.display(),
            format.unwrap_or("not stated")
        );
        Ok(Golden { file })
    }

    /// A metadata entry.
    pub fn fact(&self, key: &str) -> Option<&str> {
        self.file.metadata.get(key).map(String::as_str)
    }

    /// A metadata entry that holds JSON.
    pub fn json(&self, key: &str) -> Result<serde_json::Value> {
        let text = self.fact(key).with_context(|| format!("the golden has no `{key}`"))?;
        serde_json::from_str(text).with_context(|| format!("`{key}` of the golden is no JSON"))
    }

    /// Whether PyTorch ran the model with dropout as the identity, because it has dropout.
    pub fn without_dropout(&self) -> bool {
        self.fact("dropout") == Some("identity")
    }

    /// The archive that was evaluated, if `archive` is another one: its name and the first digits of its
    /// hash.
    ///
    /// # Errors
    /// If the archive cannot be read.
    pub fn of_another(&self, archive: &Path) -> Result<Option<String>> {
        let Some(recorded) = self.fact("sha256") else { return Ok(None) };
        let hash = crate::tensors::sha256(archive)?;
        let short = |h: &str| h.chars().take(12).collect::<String>();
        Ok((hash != recorded).then(|| {
            format!(
                "the golden was recorded from {} with SHA-256 {}…, this archive has {}…",
                self.fact("archive").unwrap_or("an archive"),
                short(recorded),
                short(&hash)
            )
        }))
    }

    /// The settings of the recorded training run, if it was recorded on a data set: what a job needs to
    /// repeat it.
    ///
    /// # Errors
    /// If they are not settings that this version knows.
    pub fn recorded_run(&self) -> Result<Option<TrainConfig>> {
        let Some(text) = self.fact("train") else { return Ok(None) };
        serde_json::from_str(text)
            .map(Some)
            .context("`train` of the golden holds no settings of a training run")
    }

    /// User inputs by their position in the signature.
    pub fn inputs(&self) -> BTreeMap<usize, &Tensor> {
        self.file
            .tensors
            .iter()
            .filter_map(|(n, t)| Some((n.strip_prefix("input.")?.parse().ok()?, t)))
            .collect()
    }

    /// Recorded values of a kind, by name without the prefix.
    pub fn values(&self, kind: Kind) -> BTreeMap<&str, &Tensor> {
        let prefix = Kind::ALL.iter().find(|(k, _)| *k == kind).map_or("", |(_, p)| p);
        self.file.tensors.iter().filter_map(|(n, t)| Some((n.strip_prefix(prefix)?, t))).collect()
    }

    /// The recorded training run, if there is one.
    pub fn curve(&self) -> Result<Option<Curve>> {
        if !self.file.tensors.contains_key("curve.loss") {
            return Ok(None);
        }
        let order = match self.file.tensors.get("curve.order") {
            None => None,
            Some(t) => {
                ensure!(
                    !t.dtype().is_float() && t.shape().rank() == 2,
                    "curve.order must be an integer [steps, batch]"
                );
                Some(t.ints().chunks(t.shape()[1].max(1)).map(<[i64]>::to_vec).collect())
            }
        };
        let last = |name: &str| self.file.numbers(name).ok().and_then(|v| v.last().copied());
        Ok(Some(Curve {
            loss: self.file.numbers("curve.loss")?,
            lr: self.file.numbers("curve.lr").unwrap_or_default(),
            norm: self.file.numbers("curve.norm").unwrap_or_default(),
            order,
            accuracy: last("curve.eval_accuracy"),
            eval_loss: last("curve.eval_loss"),
        }))
    }
}
