//! What is to be moved: `migrate.toml` in the job's folder.

use crate::core::pass::precision::Level;
use crate::runtime::TrainConfig;
use crate::runtime::amp::AmpConfig;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A job, its paths made relative to the current directory.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name of the folder.
    pub name: String,
    /// The exported model.
    pub export: PathBuf,
    /// PyTorch's truth for it, with the recorded training run.
    pub golden: PathBuf,
    /// How to train.
    pub train: TrainConfig,
    /// The mixed precision to train in beside.
    pub amp: AmpConfig,
    /// Held-out accuracy that must be reached, 0 to 1.
    pub accuracy: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    model: ModelFiles,
    train: TrainConfig,
    #[serde(default = "default_amp")]
    amp: AmpConfig,
    #[serde(default)]
    accept: Accept,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelFiles {
    export: PathBuf,
    golden: PathBuf,
}

/// What a job tries that names no level.
fn default_amp() -> AmpConfig {
    AmpConfig { level: Level::O1, ..AmpConfig::default() }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Accept {
    accuracy: Option<f64>,
}

impl Job {
    /// Reads `migrate.toml` of a folder.
    ///
    /// # Errors
    /// If it is missing or holds something else.
    pub fn read(dir: &Path) -> Result<Job> {
        let path = dir.join("migrate.toml");
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("cannot read {}: a job is a folder with a migrate.toml", path.display())
        })?;
        let File { model, mut train, amp, accept } =
            toml::from_str(&text).with_context(|| format!("{} describes no job", path.display()))?;
        let at = |p: &Path| dir.join(p);
        train.data.train = at(&train.data.train);
        train.data.eval = train.data.eval.as_deref().map(at);
        train.data.order = train.data.order.map(|o| dir.join(o).to_string_lossy().into_owned());
        let full = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
        let name = full.file_name().map_or("model".into(), |n| n.to_string_lossy().into_owned());
        Ok(Job {
            name,
            export: at(&model.export),
            golden: at(&model.golden),
            train,
            amp,
            accuracy: accept.accuracy,
        })
    }
}
