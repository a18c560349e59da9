//! Checkpoints: directories `step-<n>` that hold everything a run needs to go on bit for bit.
//!
//! | file | what |
//! |---|---|
//! | `model.safetensors` | parameters (their f32 masters, where they have such) and persistent buffers under their PyTorch names, tied ones under each name: what `load_state_dict` takes |
//! | `state.safetensors` | moments as `exp_avg.<parameter>`, buffers that are not persistent |
//! | `ema.safetensors` | if the settings request it: the model's file with averaged parameters, in f32 or wider |
//! | `progress.json` | steps done, optimizer steps applied, loss scales, what evaluations have shown, settings |
//! | `manifest.json` | size of each of these, and SHA-256 of each piece of 8 MiB |
//!
//! The files are the same whatever the number of ranks that write them ([`share`]). Those of format 1, which
//! had one hash for each file, are still read. A checkpoint is written under another name, brought to disk
//! file by file, and then renamed, which is atomic. A kill or a full disk at any moment leaves the earlier
//! checkpoints whole, and whatever else is left is removed by the next run. A damaged checkpoint is renamed
//! to `damaged-step-<n>`. A run that cannot go on saves `diverged-step-<n>`. Neither is resumed from, nor
//! ever removed. `best-step-<n>` is that of the best evaluation, of which there is one.

mod file;
mod manifest;
mod name;
mod pieces;
mod saved;
mod share;
mod space;

use crate::average::Average;
use crate::config::TrainConfig;
use crate::course::Course;
use crate::error::{Error, Result};
use crate::session::{ModelTensor, Session};
use crate::together::all;
use file::{Disk, Entry, write_json};
use headwater_core::graph::InputRole;
use headwater_core::ranks::Transport;
use headwater_core::train::StateKey;
use manifest::{Manifest, Written};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use name::written;
use name::{BEST, DAMAGED, DIVERGED, LOCK, REPLACED, TEMPORARY};
pub use saved::Checkpoint;
pub(crate) use share::{Ask, follow};

const MODEL: &str = "model.safetensors";
const STATE: &str = "state.safetensors";
/// Weights averaged over the run, if its settings request them.
pub const AVERAGE: &str = "ema.safetensors";
/// The position of the run, as JSON.
pub const PROGRESS: &str = "progress.json";
const MANIFEST: &str = "manifest.json";

/// The position of a run, beside its tensors. The data's position and the key of random numbers follow from
/// `step`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Optimizer steps applied: those whose gradients were finite.
    pub applied: u64,
    /// State of the loss scale, of each loss.
    #[serde(default)]
    pub scaler: Vec<crate::scaler::ScalerState>,
    /// The course of held-out evaluations so far.
    #[serde(default)]
    pub course: Course,
    /// Names of classes, by the column of the training data that has labels of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, Vec<String>>,
    /// Names of the parameters that are trained, where others are frozen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trained: Vec<String>,
    /// The settings of the run.
    pub config: TrainConfig,
}

/// A directory of checkpoints, used by one run at a time.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    keep: usize,
    _lock: File,
    disk: Disk,
}

/// Findings of resuming.
#[derive(Clone, Debug)]
pub struct Found {
    /// The newest whole checkpoint, if the run got far enough to save one.
    pub checkpoint: Option<Checkpoint>,
    /// Damaged newer ones; see [`Store::set_aside`].
    pub damaged: Vec<PathBuf>,
}

impl Store {
    /// A directory for a new run; made if it does not exist.
    ///
    /// # Errors
    /// `Checkpoint` if it holds checkpoints already, `Io`.
    pub fn create(dir: &Path, keep: usize) -> Result<Store> {
        let store = Store::open(dir, keep)?;
        if let Some((_, path)) = store.list()?.pop() {
            let message = "already exists: resume it, or choose another directory";
            return Err(Error::checkpoint(&path, message));
        }
        Ok(store)
    }

    /// The directory of a run to go on with, and its newest whole checkpoint. Nothing is changed but what a
    /// killed run left half done.
    ///
    /// # Errors
    /// `Checkpoint` if there is no checkpoint or none is whole, `Version` if the newest is of another
    /// version, `Io`.
    pub fn resume(dir: &Path, keep: usize) -> Result<(Store, Found)> {
        Store::resume_with(dir, keep, None)
    }

    /// The same with other ranks that read the checkpoint too, each its part; they call [`follow`].
    ///
    /// # Errors
    /// As [`Store::resume`]; `Ranks` if another rank cannot read its part.
    pub(crate) fn resume_with(
        dir: &Path,
        keep: usize,
        ranks: Option<&Arc<dyn Transport>>,
    ) -> Result<(Store, Found)> {
        let nothing =
            || Error::checkpoint(dir, "there is no checkpoint to resume; to begin a run, do not resume");
        if !dir.is_dir() {
            return Err(nothing());
        }
        let store = Store::open(dir, keep)?;
        let mut found = Found { checkpoint: None, damaged: Vec::new() };
        let mut why = None;
        for (_, path) in store.list()?.into_iter().rev() {
            match Checkpoint::open_with(&path, ranks) {
                Ok(c) => {
                    found.checkpoint = Some(c);
                    break;
                }
                Err(e @ Error::Checkpoint { .. }) => {
                    found.damaged.push(path);
                    why = Some(e);
                }
                Err(e) => return Err(e),
            }
        }
        match (&found.checkpoint, why) {
            (Some(_), _) => Ok((store, found)),
            (None, Some(damage)) => Err(damage),
            (None, None) => Err(nothing()),
        }
    }

    /// True if a directory has a checkpoint, whole or not.
    ///
    /// # Errors
    /// `Io` if it cannot be read; one that does not exist has none.
    pub fn any(dir: &Path) -> Result<bool> {
        match dir.exists() {
            true => Ok(!list(dir)?.is_empty()),
            false => Ok(false),
        }
    }

    /// Removes all checkpoints of a directory, if no run is saving there.
    ///
    /// # Errors
    /// `Checkpoint` if another run is saving there, or if there is something that no run writes: nothing is
    /// removed then. `Io`.
    pub fn clear(dir: &Path) -> Result<()> {
        if !dir.exists() {
            return Ok(());
        }
        if let Some((name, path)) = entries(dir)?.into_iter().find(|(name, _)| !written(name)) {
            return Err(Error::checkpoint(
                &path,
                format!("`{name}` is nothing that a run writes; move it away"),
            ));
        }
        let store = Store::open(dir, 1)?;
        for (name, path) in entries(dir)? {
            if name != LOCK {
                store.remove(&path)?;
            }
        }
        Ok(())
    }

    /// Renames damaged checkpoints to `damaged-step-<n>`, where they count no longer and are never removed.
    /// Returns where they are now.
    ///
    /// # Errors
    /// `Io`.
    pub fn set_aside(&self, damaged: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let free = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let number = name.strip_prefix("step-").unwrap_or(&name);
            let first = std::iter::once(format!("{DAMAGED}{number}"));
            let mut names = first.chain((2..).map(|again| format!("{DAMAGED}{number}-{again}")));
            names.find_map(|name| Some(self.dir.join(name)).filter(|to| fs::symlink_metadata(to).is_err()))
        };
        let moved = damaged.iter().filter_map(|path| {
            let to = free(path)?;
            Some(fs::rename(path, &to).map_err(Error::io(path)).map(|()| to))
        });
        moved.collect()
    }

    fn open(dir: &Path, keep: usize) -> Result<Store> {
        make_dir(dir)?;
        let path = dir.join(LOCK);
        let lock = File::options().create(true).append(true).open(&path).map_err(Error::io(&path))?;
        // A file system without locks protects nobody, but is no reason not to train. A child process that is
        // just being started shares the lock until it runs its own program: try again.
        let mut tries = 20;
        while let Err(TryLockError::WouldBlock) = lock.try_lock() {
            tries -= 1;
            if tries == 0 {
                return Err(Error::checkpoint(dir, "another run is saving here"));
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let store = Store { dir: dir.to_owned(), keep: keep.max(1), _lock: lock, disk: Disk::default() };
        // Left over from a run that was killed while saving or removing.
        for (name, path) in entries(dir)?.into_iter().filter(|(_, path)| path.is_dir()) {
            if name.starts_with(TEMPORARY) {
                fs::remove_dir_all(&path).map_err(Error::io(&path))?;
            } else if let Some(name) = name.strip_prefix(REPLACED) {
                let end = dir.join(name);
                if end.exists() {
                    fs::remove_dir_all(&path).map_err(Error::io(&path))?;
                } else {
                    fs::rename(&path, &end).map_err(Error::io(&path))?;
                }
            }
        }
        Ok(store)
    }

    /// Checkpoints by step, whole or not, oldest first.
    pub fn list(&self) -> Result<Vec<(u64, PathBuf)>> {
        list(&self.dir)
    }

    /// Saves a run and removes the oldest checkpoints beyond those to keep. Returns the checkpoint's
    /// directory.
    ///
    /// # Errors
    /// `Checkpoint` if the disk is full, `Io` if it fails: the checkpoints before are untouched.
    pub fn save(&self, state: Snapshot) -> Result<PathBuf> {
        let progress = state.progress;
        let end = self.save_as(&name::of(progress.step), state)?;
        let all: Vec<_> = self.list()?.into_iter().filter(|(step, _)| *step <= progress.step).collect();
        for (_, old) in &all[..all.len().saturating_sub(self.keep)] {
            self.remove(old)?;
        }
        Ok(end)
    }

    /// Saves a run that cannot go on, as `diverged-step-<n>`: no run resumes from it, and it is never
    /// removed.
    ///
    /// # Errors
    /// As [`Store::save`].
    pub fn save_diverged(&self, state: Snapshot) -> Result<PathBuf> {
        self.save_as(&format!("{DIVERGED}{:08}", state.progress.step), state)
    }

    /// Saves the run with the best evaluation so far, as `best-step-<n>`, and removes the one before.
    ///
    /// # Errors
    /// As [`Store::save`].
    pub fn save_best(&self, state: Snapshot) -> Result<PathBuf> {
        let end = self.save_as(&format!("{BEST}{}", name::of(state.progress.step)), state)?;
        let best = |name: &str| name.strip_prefix(BEST).is_some_and(|rest| name::step(rest).is_some());
        for (_, path) in entries(&self.dir)?.iter().filter(|(name, path)| best(name) && *path != end) {
            self.remove(path)?;
        }
        Ok(end)
    }

    /// Makes sure that the disk has space for a checkpoint of a session.
    ///
    /// # Errors
    /// `Checkpoint` if it has not. A file system that does not say how much is free is taken to have enough.
    pub fn room(&self, session: &Session, average: Option<&Average>) -> Result<()> {
        let files = contents(session, average);
        // A header's line for each tensor, and the two JSON files.
        let need: u64 = files
            .iter()
            .flat_map(|(_, entries)| entries)
            .map(|e| e.ty.bytes() as u64 + 128 + e.name.len() as u64)
            .sum::<u64>()
            + (16 << 10);
        match space::free(&self.dir) {
            Some(free) if free < need => {
                let message = format!(
                    "a checkpoint takes {need} bytes, the disk has {free} left: make room, or save elsewhere"
                );
                Err(Error::checkpoint(&self.dir, message))
            }
            _ => Ok(()),
        }
    }

    fn save_as(&self, name: &str, state: Snapshot) -> Result<PathBuf> {
        let end = self.dir.join(name);
        let temporary = self.temporary(&end);
        let saved = self.write(state, &temporary, &end);
        if saved.is_err() {
            // Files written so far only take space; the error counts, not whether this succeeds.
            let _ = fs::remove_dir_all(&temporary);
        }
        saved.map(|()| end)
    }

    /// Writes a checkpoint to `dir`, and renames it to `end`.
    fn write(&self, state: Snapshot, dir: &Path, end: &Path) -> Result<()> {
        let begun = self.room(state.session, state.average).and_then(|()| {
            (self.disk.before)("make the directory");
            fs::create_dir(dir).map_err(|e| full(Error::io(dir)(e), end))
        });
        let files = share::write(self.disk, state, begun.map(|()| Some(dir.to_owned())));
        let finished =
            self.finish(state.progress, files.map_err(|e| full(e, end))?, dir, end).map_err(|e| full(e, end));
        match state.ranks {
            None => finished,
            Some(ranks) => all(ranks, finished, |m| Error::checkpoint(end, m)).map(drop),
        }
    }

    /// Writes what one rank writes alone, and gives the checkpoint its name.
    fn finish(
        &self,
        progress: &Progress,
        mut files: BTreeMap<String, Written>,
        dir: &Path,
        end: &Path,
    ) -> Result<()> {
        files.insert(PROGRESS.to_string(), write_json(self.disk, &dir.join(PROGRESS), progress)?);
        write_json(self.disk, &dir.join(MANIFEST), &Manifest::new(progress.step, self.disk.piece, files))?;
        sync_dir(dir)?;
        // One of the same step stays until the new one has replaced it, whatever happens in between.
        let name = end.file_name().unwrap_or_default().to_string_lossy();
        let before = self.dir.join(format!("{REPLACED}{name}"));
        let replaces = end.exists();
        if replaces {
            (self.disk.before)("rename the old");
            fs::rename(end, &before).map_err(Error::io(end))?;
        }
        (self.disk.before)("rename the new");
        fs::rename(dir, end).map_err(Error::io(end))?;
        (self.disk.before)("sync the names");
        sync_dir(&self.dir)?;
        if replaces {
            self.remove(&before)?;
        }
        Ok(())
    }

    fn temporary(&self, of: &Path) -> PathBuf {
        let name = of.file_name().unwrap_or_default().to_string_lossy();
        let number = name.strip_prefix("step-").unwrap_or(&name);
        self.dir.join(format!("{TEMPORARY}{number}-{}", std::process::id()))
    }

    /// Removes a checkpoint; renamed first, so that half of one is never taken for a whole.
    fn remove(&self, path: &Path) -> Result<()> {
        let mut gone = self.temporary(path).into_os_string();
        gone.push("-removed");
        (self.disk.before)("remove");
        fs::rename(path, &gone).map_err(Error::io(path))?;
        let gone = Path::new(&gone);
        match fs::symlink_metadata(gone).is_ok_and(|m| m.is_dir()) {
            true => fs::remove_dir_all(gone),
            false => fs::remove_file(gone),
        }
        .map_err(Error::io(path))
    }
}

/// Writes this rank's part of a checkpoint that rank 0 saves.
///
/// # Errors
/// As [`Store::save`]; all ranks end at the same step, and rank 0 says why.
pub(crate) fn assist(state: Snapshot) -> Result<()> {
    assist_on(Disk::default(), state)
}

fn assist_on(disk: Disk, state: Snapshot) -> Result<()> {
    share::write(disk, state, Ok(None))?;
    match state.ranks {
        None => Ok(()),
        Some(ranks) => all(ranks, Ok(()), |m| Error::checkpoint(Path::new("the checkpoint"), m)).map(drop),
    }
}

/// Says what a full disk means for a run.
fn full(e: Error, end: &Path) -> Error {
    match e {
        Error::Io { cause, .. } if cause.kind() == std::io::ErrorKind::StorageFull => {
            let advice = "the checkpoints before are whole; make room and resume";
            Error::checkpoint(end, format!("cannot be saved, the disk is full: {advice}"))
        }
        e => e,
    }
}

/// Everything that a checkpoint saves.
#[derive(Clone, Copy)]
pub struct Snapshot<'a> {
    /// The model on its device, with the optimizer's state.
    pub session: &'a Session,
    /// The position of the run.
    pub progress: &'a Progress,
    /// The averaged weights, where there are any.
    pub average: Option<&'a Average>,
    /// The ranks that write it jointly, each its part; all have the same state.
    pub ranks: Option<&'a dyn Transport>,
}

/// The place of the bytes of a saved tensor.
#[derive(Clone)]
enum Source {
    Tensor(ModelTensor),
    Moment(StateKey),
    /// By position among the averaged tensors.
    Average(usize),
}

/// The tensors of each file.
fn contents(session: &Session, average: Option<&Average>) -> Vec<(&'static str, Vec<Entry<Source>>)> {
    let (mut model, mut state) = (Vec::new(), Vec::new());
    let entry = |name: &str, t: &ModelTensor| Entry {
        name: name.to_string(),
        ty: t.ty.clone(),
        source: Source::Tensor(t.clone()),
    };
    for t in session.tensors() {
        match &t.role {
            InputRole::Parameter { aliases, .. } => {
                model.extend(std::iter::once(&t.name).chain(aliases).map(|name| entry(name, t)));
            }
            InputRole::Buffer { persistent: true } => model.push(entry(&t.name, t)),
            InputRole::Buffer { persistent: false } => state.push(entry(&t.name, t)),
            _ => {}
        }
    }
    for (key, ty) in session.moments() {
        state.push(Entry { name: key.to_string(), ty, source: Source::Moment(key) });
    }
    let averaged = average.map(|average| {
        let mut entries = Vec::new();
        for e in &model {
            let Source::Tensor(t) = &e.source else { continue };
            let found = average.types().enumerate().find(|(_, (a, _))| a.name == t.name);
            let (ty, source) = match found {
                Some((i, (_, ty))) => (ty, Source::Average(i)),
                None => (e.ty.clone(), e.source.clone()),
            };
            entries.push(Entry { name: e.name.clone(), ty, source });
        }
        (AVERAGE, entries)
    });
    [(MODEL, model), (STATE, state)].into_iter().chain(averaged).collect()
}

/// The contents of a directory, by name.
fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io(dir))? {
        let entry = entry.map_err(Error::io(dir))?;
        out.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    Ok(out)
}

/// Checkpoints of a directory by step, whole or not, oldest first.
fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let found = entries(dir)?.into_iter().filter(|(_, path)| path.is_dir());
    let mut all: Vec<_> = found.filter_map(|(name, path)| Some((name::step(&name)?, path))).collect();
    all.sort();
    Ok(all)
}

/// Makes a directory that does not exist, so that it survives a loss of power.
fn make_dir(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if parent != dir {
        make_dir(parent)?;
    }
    match fs::create_dir(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::io(dir)(e)),
        _ => sync_dir(parent),
    }
}

/// Brings the names in a directory to disk.
fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(Error::io(dir))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_ranks;
