//! Settings of a training run from a file: `train.toml`, or the `[train]` table of a `migrate.toml`.

use crate::runtime::TrainConfig;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;

/// A job's file, of which training takes one table.
#[derive(Deserialize)]
struct Job {
    train: TrainConfig,
}

/// Reads the settings of a training run, at the top of the file or under `[train]`. Paths in it are relative
/// to its folder.
///
/// # Errors
/// If the file cannot be read or a setting is not known; the message points at it.
pub fn read(path: &Path) -> Result<TrainConfig> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let wrong = || format!("invalid settings in {} (docs/settings.md lists them all)", path.display());
    let table: toml::Table = toml::from_str(&text).with_context(wrong)?;
    let mut config = match table.get("train") {
        Some(toml::Value::Table(_)) => toml::from_str::<Job>(&text).with_context(wrong)?.train,
        _ => toml::from_str(&text).with_context(wrong)?,
    };
    config.relative_to(path.parent().unwrap_or(Path::new("")));
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn settings_stand_at_the_top_or_under_train() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.toml");
        let settings = "steps = 3\n[data]\ntrain = 'a.npz'\norder = 'a.npz:order'\n";
        let job = "[model]\nexport = 'm.pt2'\n[train]\nsteps = 3\n[train.data]\ntrain = 'a.npz'\norder = 'a.npz:order'\n";
        for text in [settings, job] {
            std::fs::write(&file, text).unwrap();
            let c = read(&file).unwrap();
            assert_eq!((c.steps, c.data.train), (Some(3), dir.path().join("a.npz")));
            let order = c.data.order.unwrap();
            assert_eq!(PathBuf::from(order), dir.path().join("a.npz:order"));
        }
        for wrong in ["step = 3", "[train]\nstep = 3", "steps = "] {
            std::fs::write(&file, wrong).unwrap();
            let message = format!("{:#}", read(&file).unwrap_err());
            assert!(message.contains("x.toml") && message.contains('^'), "{message}");
        }
    }
}
