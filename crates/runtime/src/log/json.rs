//! One JSON object a line, one line an event.

use crate::error::{Error, Result};
use crate::trainer::{Event, Observer};
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes every event to a file, whole lines at a time.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    out: File,
}

impl JsonLines {
    /// Starts a file, replacing an existing one.
    ///
    /// # Errors
    /// `Io`.
    pub fn create(path: &Path) -> Result<JsonLines> {
        JsonLines::begin(path, &[])
    }

    /// Goes on with the file of an interrupted run that resumes after `step` steps. Lines of later steps, and
    /// a line cut off at the end, are removed first. A run that begins (`step` 0) begins its file anew.
    ///
    /// # Errors
    /// `Io`.
    pub fn resume(path: &Path, step: u64) -> Result<JsonLines> {
        if step == 0 {
            return JsonLines::create(path);
        }
        let old = match fs::read(path) {
            Ok(old) => old,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(Error::io(path)(e)),
        };
        let lines: Vec<&[u8]> =
            old.split_inclusive(|&b| b == b'\n').filter(|line| keeps(line, step)).collect();
        JsonLines::begin(path, &lines)
    }

    /// Adds an event to a log that a run writes, from another thread. Only to a file: a pipe without a
    /// reader would block, and links are not followed.
    ///
    /// # Errors
    /// `Io`.
    pub fn add(path: &Path, event: &Event) -> Result<()> {
        if !fs::symlink_metadata(path).map_err(Error::io(path))?.is_file() {
            return Ok(());
        }
        let out = OpenOptions::new().append(true).open(path).map_err(Error::io(path))?;
        JsonLines { path: path.to_owned(), out }.event(event)
    }

    /// A file of these lines, under a name of its own until it is whole. Links are not followed, so that a
    /// folder from elsewhere cannot have other files overwritten. A device or a pipe is written to as it is.
    fn begin(path: &Path, lines: &[&[u8]]) -> Result<JsonLines> {
        let kind = fs::symlink_metadata(path).map(|m| m.file_type());
        if kind.as_ref().is_ok_and(|k| k.is_symlink()) {
            let message = "is a link, which no log follows: remove it, or name another file";
            return Err(Error::data(path, message));
        }
        if kind.is_ok_and(|k| !k.is_file() && !k.is_dir()) {
            let out = OpenOptions::new().write(true).open(path).map_err(Error::io(path))?;
            return Ok(JsonLines { path: path.to_owned(), out });
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let own = |i: u32| path.with_file_name(format!(".{name}.{}.{i}.tmp", std::process::id()));
        let mut free = (0..u32::MAX).map(own).filter(|p| fs::symlink_metadata(p).is_err());
        let temporary =
            free.next().ok_or_else(|| Error::data(path, "has too many temporary files beside it"))?;
        // Lines of other writers ([`JsonLines::add`]) stay whole.
        let file = OpenOptions::new().append(true).create_new(true).open(&temporary);
        let mut out = BufWriter::new(file.map_err(Error::io(&temporary))?);
        let written = lines.iter().try_for_each(|line| out.write_all(line)).and_then(|()| out.flush());
        let written =
            written.and_then(|()| out.get_ref().sync_all()).and_then(|()| fs::rename(&temporary, path));
        if let Err(e) = written {
            // The file written so far only takes space.
            let _ = fs::remove_file(&temporary);
            return Err(Error::io(path)(e));
        }
        let out = out.into_inner().map_err(|e| Error::io(path)(e.into_error()))?;
        Ok(JsonLines { path: path.to_owned(), out })
    }
}

/// True if a line is whole and speaks of nothing after `step`.
fn keeps(line: &[u8], step: u64) -> bool {
    let value: Option<serde_json::Value> = serde_json::from_slice(line).ok();
    let at = |v: &serde_json::Value| v.get("step").and_then(|s| s.as_u64());
    line.ends_with(b"\n") && value.is_some_and(|v| at(&v).is_none_or(|s| s <= step))
}

impl Observer for JsonLines {
    fn essential(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        // Counts by class would make the lines of evaluations as long as the rest of the log.
        let brief = match event {
            Event::Evaluation(e) => Some(Event::Evaluation(e.brief())),
            _ => None,
        };
        let event = brief.as_ref().unwrap_or(event);
        let mut line = serde_json::to_vec(event).map_err(|e| Error::io(&self.path)(e.into()))?;
        // The time of day, by which a line is joined with logs of others.
        if line.pop() == Some(b'}') {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
            line.extend(format!(",\"time\":{time:.3}}}\n").bytes());
        }
        self.out.write_all(&line).map_err(Error::io(&self.path))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn events_from_beside_a_run_stay_whole() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log.jsonl");
        let mut run = JsonLines::create(&log).unwrap();
        let said = |message: &str| Event::Warning { message: message.into() };
        run.event(&said("one")).unwrap();
        JsonLines::add(&log, &said("two, beside it")).unwrap();
        run.event(&said("3")).unwrap();
        let text = fs::read_to_string(&log).unwrap();
        let found: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let messages: Vec<&str> = found.iter().map(|l| l["message"].as_str().unwrap()).collect();
        assert_eq!(messages, ["one", "two, beside it", "3"]);
        assert!(JsonLines::add(&dir.path().join("none"), &said("x")).is_err());
    }

    #[test]
    fn a_log_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let (target, log) = (dir.path().join("thesis.tex"), dir.path().join("log.jsonl"));
        fs::write(&target, "years of work").unwrap();
        symlink(&target, &log).unwrap();
        for made in [JsonLines::create(&log), JsonLines::resume(&log, 3)] {
            let e = made.unwrap_err();
            assert!(e.to_string().contains("is a link"), "{e}");
        }
        // Nor one in the place of what was its temporary name.
        fs::remove_file(&log).unwrap();
        symlink(&target, dir.path().join("log.jsonl.tmp")).unwrap();
        fs::write(&log, "{\"event\":\"step\",\"step\":1}\n").unwrap();
        JsonLines::resume(&log, 3).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "years of work");
        assert_eq!(fs::read_to_string(&log).unwrap(), "{\"event\":\"step\",\"step\":1}\n");
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 3, "no temporary file stays");
        JsonLines::create(Path::new("/dev/null")).unwrap();
    }
}
