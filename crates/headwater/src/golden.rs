//! Golden files: PyTorch's results, as `tools/` records them (`goldens/README.md` has the format).

use crate::core::Tensor;
use crate::runtime::TrainConfig;
use crate::runtime::optim::Optimizer;
use crate::tensors::TensorFile;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A recorded truth.
#[derive(Debug)]
pub struct Golden {
    file: TensorFile,
    path: PathBuf,
}

/// Bytes of the longest header that is looked at.
const HEADER: u64 = 100_000_000;

/// Kinds of recorded tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, serde::Serialize, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A result of the model.
    #[default]
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

/// Settings of a recorded training run.
#[derive(Clone, Debug)]
pub struct RecordedRun {
    /// Everything that a job needs to repeat it.
    pub settings: TrainConfig,
    /// The recorded optimizer in words, if Headwater does not train with it: the settings then have AdamW.
    pub foreign: Option<String>,
}

/// Settings that AdamW shares with PyTorch's other optimizers of Adam's family.
const SHARED: [&str; 4] = ["lr", "betas", "eps", "weight_decay"];

/// PyTorch's Adam with `decoupled_weight_decay` is AdamW: the same optimizer under that name, as settings.
pub(crate) fn by_own_name(mut optimizer: Value) -> Value {
    if let Some(all) = optimizer.as_object_mut()
        && all.get("name").and_then(Value::as_str).is_some_and(|n| n.eq_ignore_ascii_case("adam"))
        && all.get("decoupled_weight_decay") == Some(&Value::Bool(true))
    {
        all.remove("decoupled_weight_decay");
        all.insert("name".into(), "adamw".into());
        // Adam's default, which is not AdamW's.
        all.entry("weight_decay").or_insert(0.0.into());
    }
    optimizer
}

/// AdamW in place of an optimizer, with the settings that it shares with those of Adam's family.
fn in_place_of(optimizer: &Value) -> Optimizer {
    let mut own = serde_json::json!({ "name": "adamw" });
    if optimizer["betas"].is_array() {
        for key in SHARED {
            if let Some(value) = optimizer.get(key) {
                own[key] = value.clone();
            }
        }
    }
    serde_json::from_value(own).unwrap_or_default()
}

/// An optimizer's name and settings in words.
fn spelled(optimizer: &Value) -> String {
    let name = optimizer["name"].as_str().unwrap_or_default();
    let all = optimizer.as_object().into_iter().flatten().filter(|(key, _)| *key != "name");
    let settings: Vec<String> = all.map(|(key, value)| format!("{key} {value}")).collect();
    if settings.is_empty() { name.to_string() } else { format!("{name} ({})", settings.join(", ")) }
}

impl Golden {
    /// True of a safetensors file that says so in its header.
    pub fn is(path: &Path) -> bool {
        let header = || {
            let mut file = File::open(path).ok()?;
            let mut length = [0; 8];
            file.read_exact(&mut length).ok()?;
            let mut text = Vec::new();
            file.take(u64::from_le_bytes(length).min(HEADER)).read_to_end(&mut text).ok()?;
            serde_json::from_slice::<Value>(&text).ok()
        };
        let safetensors = path.extension().is_some_and(|e| e == "safetensors");
        let format = |h: Value| h["__metadata__"]["format"].as_str().map(str::to_string);
        safetensors && header().and_then(format).is_some_and(|f| f.starts_with("headwater-golden"))
    }

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
        Ok(Golden { file, path: path.to_owned() })
    }

    /// The file it was read from.
    pub fn path(&self) -> &Path {
        &self.path
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

    /// True if PyTorch ran the model with dropout as the identity, because it has dropout.
    pub fn without_dropout(&self) -> bool {
        self.fact("dropout") == Some("identity")
    }

    /// A remark, unless the golden states that the archive computes in float64 what the module computes that
    /// it was exported from.
    pub fn unstated(&self) -> Option<String> {
        match self.json("module").ok().filter(|stated| stated["agrees"] == true) {
            None => Some(
                "the golden does not state that the archive computes what its PyTorch module computes: gradients that \
                 torch.export leaves out (hooks, autograd functions, no_grad) would not show. Record it again, or add \
                 the statement with headwater_tools.certify"
                    .into(),
            ),
            Some(stated) if stated["dtype"] != "float64" => Some(format!(
                "module and archive were compared in the module's own precision, not in float64: {}",
                stated["why"].as_str().unwrap_or("no reason is recorded")
            )),
            Some(stated) => stated["close"].as_str().map(|cause| {
                format!("module and archive agree to nine digits, not to float64's: {cause}")
            }),
        }
    }

    /// Kinds of which the golden holds fewer values than were compared with the module when it was recorded.
    pub fn incomplete(&self) -> Vec<String> {
        let Ok(stated) = self.json("module") else { return vec![] };
        // What gradients one side alone has is known by name.
        let kinds = [(Kind::Output, "outputs"), (Kind::Buffer, "buffers")];
        let lost = kinds.into_iter().filter_map(|(kind, name)| {
            let (recorded, held) = (stated[name].as_u64()?, self.values(kind).len() as u64);
            (held < recorded).then(|| format!("{recorded} {name} were recorded, the golden holds {held}"))
        });
        lost.collect()
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

    /// The low precision of `torch.autocast` that the curve was recorded in, such as `bfloat16`.
    pub fn autocast(&self) -> Option<String> {
        self.json("optimizer").ok()?["autocast"].as_str().map(str::to_string)
    }

    /// The settings of the recorded training run, if it was recorded on a data set: what a job needs to
    /// repeat it. PyTorch has optimizers that Headwater has not; AdamW replaces them.
    ///
    /// # Errors
    /// If they are not settings that this version knows.
    pub fn recorded_run(&self) -> Result<Option<RecordedRun>> {
        if self.fact("train").is_none() {
            return Ok(None);
        }
        let mut all = self.json("train")?;
        let mut foreign = None;
        if let Some(optimizer) = all.get_mut("optimizer") {
            *optimizer = by_own_name(optimizer.take());
            let known = serde_json::from_value::<Optimizer>(optimizer.clone()).is_ok();
            if optimizer["name"].is_string() && !known {
                foreign = Some(spelled(optimizer));
                *optimizer = serde_json::to_value(in_place_of(optimizer))?;
            }
        }
        let settings = serde_json::from_value(all)
            .context("`train` of the golden holds no settings of a training run")?;
        Ok(Some(RecordedRun { settings, foreign }))
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
