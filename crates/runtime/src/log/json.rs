//! One JSON object a line, one line an event.

use crate::error::{Error, Result};
use crate::trainer::{Event, Observer};
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes every event to a file, whole lines at a time.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    out: File,
}

impl JsonLines {
    /// Starts a file, in place of one that may stand there.
    ///
    /// # Errors
    /// `Io`.
    pub fn create(path: &Path) -> Result<JsonLines> {
        Ok(JsonLines { out: File::create(path).map_err(Error::io(path))?, path: path.to_owned() })
    }

    /// Goes on with the file of an interrupted run that resumes after `step` steps: lines of later steps, and
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
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        let mut out = BufWriter::new(File::create(&temporary).map_err(Error::io(&temporary))?);
        for line in old.split_inclusive(|&b| b == b'\n').filter(|line| keeps(line, step)) {
            out.write_all(line).map_err(Error::io(&temporary))?;
        }
        out.flush().map_err(Error::io(&temporary))?;
        fs::rename(&temporary, path).map_err(Error::io(path))?;
        let out = OpenOptions::new().append(true).open(path).map_err(Error::io(path))?;
        Ok(JsonLines { path: path.to_owned(), out })
    }
}

/// Whether a line is whole and speaks of nothing after `step`.
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
        let mut line = serde_json::to_vec(event).map_err(|e| Error::io(&self.path)(e.into()))?;
        line.push(b'\n');
        self.out.write_all(&line).map_err(Error::io(&self.path))
    }
}
