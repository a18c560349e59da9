//! The folder that a migration writes into: used by one process at a time. Files that no migration writes are
//! never removed.

use super::Begin;
use crate::runtime::Store;
use anyhow::{Context, Result, bail};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// Locked while a migration works in the folder. It is never removed: a process that waits for it would lock
/// a removed file.
const LOCK: &str = ".lock";
/// Checkpoints of the training run, and of that in mixed precision.
const RUN: &str = "run";
const MIXED: &str = "run.mixed";
/// Event files of TensorBoard.
const BOARD: &str = "tensorboard";
/// Everything else that a migration writes.
const FILES: [&str; 4] = ["log.jsonl", "log.mixed.jsonl", "report.html", "report.json"];

/// A locked folder; the system releases it however the process ends.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Takes a folder, which is made if it does not exist, before anything in it is read or changed.
    ///
    /// # Errors
    /// If another migration works there, or the system refuses.
    pub fn lock(path: &Path) -> Result<Folder> {
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        let file = path.join(LOCK);
        let lock = File::options().create(true).append(true).open(&file);
        let lock = lock.with_context(|| format!("cannot open {}", file.display()))?;
        // A file system without locks protects nobody, but is no reason not to work.
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            bail!(
                "another migration is working in {}: wait for it, or choose another folder with --out",
                path.display()
            );
        }
        Ok(Folder { path: path.to_owned(), _lock: lock })
    }

    /// Makes sure that the folder is empty, or that there is something to go on with. Results of an earlier
    /// migration are removed on request, and nothing else.
    ///
    /// # Errors
    /// If it holds something that may not be removed; nothing is removed then.
    pub fn clear(&self, begin: Begin) -> Result<()> {
        let found = entries(&self.path)?;
        let shown = self.path.display();
        match begin {
            Begin::Resume if !found.iter().any(|name| name == "report.json") => {
                bail!("{shown} has no migration to resume; to begin one, leave out --resume");
            }
            Begin::Resume => return Ok(()),
            _ if found.is_empty() => return Ok(()),
            Begin::Anew => bail!(
                "{shown} already exists: choose another folder with --out, replace it with --overwrite, or go on with \
                 --resume"
            ),
            Begin::Overwrite => {}
        }
        let foreign = |name: &str| {
            bail!("{shown} contains `{name}`, which no migration writes; choose another folder with --out")
        };
        for name in &found {
            let known = [RUN, MIXED, BOARD].contains(&name.as_str())
                || FILES.contains(&name.as_str())
                || leftover(name);
            if !known {
                return foreign(name);
            }
        }
        let (run, board) = (self.path.join(RUN), self.path.join(BOARD));
        let events = entries(&board)?;
        if let Some(name) = events.iter().find(|name| !name.starts_with("events.out.tfevents.")) {
            return foreign(&format!("{BOARD}/{name}"));
        }
        // Checkpoints are removed under the lock of the run that may save them.
        Store::clear(&run)?;
        Store::clear(&self.path.join(MIXED))?;
        events.iter().try_for_each(|name| remove(&board.join(name)))?;
        let leftovers = found.iter().map(String::as_str).filter(|name| leftover(name));
        FILES.into_iter().chain(leftovers).try_for_each(|name| remove(&self.path.join(name)))
    }
}

/// True for a file that a process which was killed left while it wrote one of [`FILES`]:
/// `.report.html.77.tmp`.
fn leftover(name: &str) -> bool {
    let inner = name.strip_prefix('.').and_then(|n| n.strip_suffix(".tmp"));
    inner.is_some_and(|inner| {
        let rest = FILES.iter().find_map(|file| inner.strip_prefix(file)?.strip_prefix('.'));
        rest.is_some_and(|rest| {
            rest.split('.').all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
    })
}

/// Names in a folder but the lock's; none where there is no folder.
fn entries(dir: &Path) -> Result<Vec<String>> {
    let read = match fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| format!("cannot read {}", dir.display()))?,
    };
    let mut names = Vec::new();
    for entry in read {
        let entry = entry.with_context(|| format!("cannot read {}", dir.display()))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name != LOCK);
    names.sort();
    Ok(names)
}

/// Removes a file or a folder, a link without what it points to; a missing one counts as removed.
fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    #[test]
    fn a_folder_is_used_by_one_and_keeps_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let first = Folder::lock(&out).unwrap();
        let refused = Folder::lock(&out).unwrap_err().to_string();
        assert!(refused.contains("another migration is working in"), "{refused}");
        first.clear(Begin::Overwrite).unwrap();
        assert!(out.join(LOCK).exists());
        assert!(Folder::lock(&out).is_err(), "still the same lock");
        drop(first);
        Folder::lock(&out).unwrap().clear(Begin::Anew).unwrap();
    }

    #[test]
    fn earlier_results_go_only_when_asked_and_foreign_files_never() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path();
        for file in [
            "report.html",
            "report.json",
            ".report.html.4711.tmp",
            ".log.jsonl.4711.0.tmp",
            "log.jsonl",
            "tensorboard/events.out.tfevents.1.2.headwater",
            "run/step-00000300/model.safetensors",
            "run/.old-step-00000300/model.safetensors",
            "run/.tmp-step-00000301-77/model.safetensors",
            "run/damaged-step-00000200/model.safetensors",
            "run/.lock",
            "run.mixed/step-00000001/model.safetensors",
        ] {
            touch(&out.join(file));
        }
        let folder = Folder::lock(out).unwrap();
        let refused = folder.clear(Begin::Anew).unwrap_err().to_string();
        assert!(refused.contains("--overwrite"), "{refused}");
        for foreign in [
            "notes.txt",
            ".report.html.mine.tmp",
            ".notes.4711.tmp",
            "run/step-by-step/thesis.tex",
            "run/step-",
            "tensorboard/mine",
        ] {
            touch(&out.join(foreign));
            let refused = folder.clear(Begin::Overwrite).unwrap_err().to_string();
            assert!(refused.contains(foreign.split("/thesis").next().unwrap()), "{foreign}: {refused}");
            assert!(
                out.join("run/step-00000300/model.safetensors").exists() && out.join("report.html").exists()
            );
            remove(&out.join(foreign.trim_end_matches("/thesis.tex"))).unwrap();
        }
        folder.clear(Begin::Overwrite).unwrap();
        assert_eq!(entries(out).unwrap(), [RUN, MIXED, BOARD]);
        assert!(entries(&out.join(RUN)).unwrap().is_empty() && out.join("run/.lock").exists());
        assert!(out.join(LOCK).exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_goes_and_its_target_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (out, target) = (dir.path().join("out"), dir.path().join("target"));
        touch(&target.join("file"));
        fs::create_dir_all(out.join(RUN)).unwrap();
        std::os::unix::fs::symlink(&target, out.join("run/step-00000001")).unwrap();
        std::os::unix::fs::symlink(target.join("file"), out.join("log.jsonl")).unwrap();
        Folder::lock(&out).unwrap().clear(Begin::Overwrite).unwrap();
        assert!(target.join("file").exists() && !out.join("log.jsonl").exists());
    }
}
