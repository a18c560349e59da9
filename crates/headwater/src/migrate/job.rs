//! A job: `migrate.toml` in a folder of its own.

use crate::core::pass::precision::Level;
use crate::runtime::TrainConfig;
use crate::runtime::amp::AmpConfig;
use crate::runtime::score::Metric;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A job's file in its folder.
pub const FILE: &str = "migrate.toml";

/// A job, its paths made relative to the current directory.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name of the folder.
    pub name: String,
    /// The exported model.
    pub export: PathBuf,
    /// PyTorch's truth for it, with the recorded training run. Without one nothing is compared.
    pub golden: Option<PathBuf>,
    /// Settings of the training run. Without data nothing is trained.
    pub train: TrainConfig,
    /// The mixed precision to train in beside.
    pub amp: AmpConfig,
    /// Limits that the trained model must keep.
    pub accept: Accept,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    model: ModelFiles,
    #[serde(default)]
    train: TrainConfig,
    #[serde(default = "default_amp")]
    amp: AmpConfig,
    #[serde(default)]
    accept: Accept,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [model] with `export`")]
struct ModelFiles {
    export: PathBuf,
    golden: Option<PathBuf>,
}

/// Mixed precision of a job that names no level.
fn default_amp() -> AmpConfig {
    AmpConfig { level: Level::O1, ..AmpConfig::default() }
}

/// Limits that the trained model must keep on held-out data: by metric the lowest value, or the highest of one that
/// is better the lower it is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Accept(pub BTreeMap<Metric, f64>);

impl Job {
    /// Reads `migrate.toml` of a folder, or a file of that form.
    ///
    /// # Errors
    /// If it is missing or holds something else.
    pub fn read(place: &Path) -> Result<Job> {
        let file = if place.is_file() { place.to_path_buf() } else { place.join(FILE) };
        if file.extension().is_some_and(|e| e == "pt2") {
            let model = file.display();
            bail!("{model} is a model, and no job: `headwater migrate --new {model}` writes a job for it");
        }
        let text = std::fs::read_to_string(&file).with_context(|| {
            let advice = "`headwater migrate --new MODEL` writes one";
            format!("cannot read {}: a job is a folder with a {FILE}; {advice}", file.display())
        })?;
        let File { model, mut train, amp, accept } = toml::from_str(&text).with_context(|| {
            format!("invalid settings in {} (docs/settings.md lists them all)", file.display())
        })?;
        let dir = file.parent().unwrap_or(Path::new(""));
        train.relative_to(dir);
        let full = std::fs::canonicalize(&file).unwrap_or_else(|_| file.clone());
        let folder = full.parent().and_then(Path::file_name);
        Ok(Job {
            name: folder.map_or("model".into(), |n| n.to_string_lossy().into_owned()),
            export: dir.join(&model.export),
            golden: model.golden.map(|g| dir.join(g)),
            train,
            amp,
            accept,
        })
    }

    /// True if the job names samples to train on.
    pub fn trains(&self) -> bool {
        !self.train.data.train.as_os_str().is_empty()
    }
}
