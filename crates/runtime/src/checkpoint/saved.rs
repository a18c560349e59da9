//! A checkpoint that was saved: verified, and put back into a session.

use super::manifest::Manifest;
use super::share::{Held, verify_with};
use super::{AVERAGE, BEST, Entry, MANIFEST, PROGRESS, Progress, Source, contents, name};
use crate::average::Average;
use crate::data::{Dataset, Mapped};
use crate::error::{Error, Result};
use crate::session::Session;
use headwater_core::TensorType;
use headwater_core::ranks::Transport;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A checkpoint whose files have been found whole.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub(super) path: PathBuf,
    pub(super) progress: Progress,
    /// This rank's pieces, where several have shared its verification.
    pub(super) held: Option<Arc<Held>>,
}

impl Checkpoint {
    /// Opens a checkpoint and verifies every file against its manifest.
    ///
    /// # Errors
    /// `Checkpoint` if it is damaged, `Version` if it is whole but of another version, `Io` if the system
    /// refuses.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        Checkpoint::open_with(path, None)
    }

    /// The same by several ranks, each of which verifies a part; rank 0 calls this.
    pub(super) fn open_with(path: &Path, ranks: Option<&Arc<dyn Transport>>) -> Result<Checkpoint> {
        let damaged = |m: String| Error::checkpoint(path, m);
        let missing = |name: &str| damaged(format!("{name} is missing"));
        let read = |name: &str| {
            fs::read(path.join(name)).map_err(|e| match e.kind() {
                std::io::ErrorKind::NotFound => missing(name),
                _ => Error::io(&path.join(name))(e),
            })
        };
        let differs =
            |name: &str| damaged(format!("{name} is not what was written: its size or SHA-256 differs"));
        let manifest = Manifest::of(&read(MANIFEST)?, path)?;
        let progress = read(PROGRESS)?;
        if !manifest.files.get(PROGRESS).is_some_and(|w| w.is(&progress, manifest.piece())) {
            return Err(differs(PROGRESS));
        }
        // What the other ranks read is verified when all know what to look for.
        let shared = ranks.and_then(|ranks| Some((ranks, manifest.piece()?)));
        if shared.is_none() {
            for (name, written) in manifest.tensors() {
                let map = match Mapped::open(&path.join(name)) {
                    Err(Error::Io { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => {
                        return Err(missing(name));
                    }
                    opened => opened?,
                };
                if !written.is(map.bytes(), manifest.piece()) {
                    return Err(differs(name));
                }
            }
        }
        // It is what was written; settings that are not known here are another version's.
        let progress: Progress = serde_json::from_slice(&progress)
            .map_err(|e| Error::Version { path: path.to_owned(), message: format!("{PROGRESS}: {e}") })?;
        let named = path.file_name().map(|n| n.to_string_lossy());
        let named = named.and_then(|n| name::step(n.strip_prefix(BEST).unwrap_or(&n)));
        if [Some(manifest.step), Some(progress.step)] != [named; 2] || progress.applied > progress.step {
            let (inside, applied) = (progress.step, progress.applied);
            let message = format!(
                "its files contradict each other: step {inside} in {PROGRESS}, with {applied} updates, and {} in \
                 {MANIFEST}",
                manifest.step
            );
            return Err(damaged(message));
        }
        let held =
            shared.map(|(ranks, piece)| verify_with(ranks, path, &manifest, piece, &progress)).transpose()?;
        Ok(Checkpoint { path: path.to_owned(), progress, held: held.map(Arc::new) })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The position of the run.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Puts every tensor back into a session of the same model and optimizer, and averaged weights if the
    /// settings request them; a checkpoint of a run without any leaves the average to start again. Ranks that
    /// shared its verification restore it jointly, once.
    ///
    /// # Errors
    /// `Checkpoint` if names, dtypes or shapes differ.
    pub fn restore(&self, session: &mut Session, average: Option<&mut Average>) -> Result<()> {
        for (file, entries) in contents(session, None) {
            let wanted: HashMap<&str, &Entry<Source>> =
                entries.iter().map(|e| (e.name.as_str(), e)).collect();
            let begin = |have: usize| match have == entries.len() {
                true => Ok(()),
                false => {
                    let want = entries.len();
                    let message = format!("{file} has {have} tensors, this model and optimizer have {want}");
                    Err(Error::checkpoint(&self.path, message))
                }
            };
            let mut seen = Vec::new();
            self.each(file, begin, |name, ty, bytes| {
                let Some(e) = wanted.get(name) else { return Ok(()) };
                self.same(file, name, ty, &e.ty)?;
                seen.push(e.name.as_str());
                match &e.source {
                    Source::Tensor(t) => session.write(t, bytes),
                    Source::Moment(key) => session.write_moment(key, bytes),
                    // Restored by itself, below.
                    Source::Average(_) => Ok(()),
                }
            })?;
            self.complete(file, entries.iter().map(|e| e.name.as_str()), &seen)?;
        }
        if let Some(average) = average.filter(|_| self.has_average()) {
            let types: Vec<(String, TensorType)> =
                average.types().map(|(tensor, ty)| (tensor.name.clone(), ty)).collect();
            let wanted: HashMap<&str, &TensorType> = types.iter().map(|(n, ty)| (n.as_str(), ty)).collect();
            let mut found = HashMap::new();
            self.each(
                AVERAGE,
                |_| Ok(()),
                |name, ty, bytes| {
                    if let Some(want) = wanted.get(name) {
                        self.same(AVERAGE, name, ty, want)?;
                        found.insert(name.to_string(), bytes.to_vec());
                    }
                    Ok(())
                },
            )?;
            let seen: Vec<&str> = found.keys().map(String::as_str).collect();
            self.complete(AVERAGE, types.iter().map(|(name, _)| name.as_str()), &seen)?;
            average.restore(|name, _| Ok(found.get(name).cloned().unwrap_or_default()))?;
        }
        session.set_applied(self.progress.applied);
        Ok(())
    }

    fn has_average(&self) -> bool {
        self.held.as_ref().map_or_else(|| self.path.join(AVERAGE).exists(), |held| held.has(AVERAGE))
    }

    /// The tensors of a file, in order; `begin` receives their number first.
    fn each(
        &self,
        file: &str,
        mut begin: impl FnMut(usize) -> Result<()>,
        mut take: impl FnMut(&str, &TensorType, &[u8]) -> Result<()>,
    ) -> Result<()> {
        if let Some(held) = &self.held {
            return held.each(&self.path, file, &mut begin, &mut take);
        }
        let data = Dataset::open(&self.path.join(file))?;
        begin(data.columns().len())?;
        data.columns().iter().try_for_each(|c| take(&c.name, &c.ty, c.bytes()))
    }

    fn same(&self, file: &str, name: &str, have: &TensorType, want: &TensorType) -> Result<()> {
        match have == want {
            true => Ok(()),
            false => {
                let message = format!("{file}: {name} is {have}, the model has {want}");
                Err(Error::checkpoint(&self.path, message))
            }
        }
    }

    /// Refuses a file in which a tensor was not seen.
    fn complete<'a>(&self, file: &str, want: impl Iterator<Item = &'a str>, seen: &[&str]) -> Result<()> {
        let seen: std::collections::HashSet<&str> = seen.iter().copied().collect();
        match want.into_iter().find(|name| !seen.contains(name)) {
            None => Ok(()),
            Some(name) => Err(Error::checkpoint(&self.path, format!("{file}: {name} is missing"))),
        }
    }
}
