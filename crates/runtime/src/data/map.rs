//! The bytes of a file, read or mapped into memory: the one place of this crate where the language's rules do
//! not suffice.

use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files up to this many bytes are read: whatever happens to them later is without consequence.
const READ: u64 = 64 << 20;

/// A whole file: a small one in memory, a large one read by the system as it is touched.
#[derive(Debug)]
pub struct Mapped {
    path: PathBuf,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Memory(Vec<u8>),
    Map { map: memmap2::Mmap, file: File, stamp: Stamp },
}

/// Properties that change when a file does.
#[derive(Debug, PartialEq)]
struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(meta: &fs::Metadata) -> Stamp {
        Stamp { bytes: meta.len(), modified: meta.modified().ok() }
    }
}

impl Mapped {
    /// Reads or maps a file. One that is mapped must not be shortened: the system ends a process that reads
    /// removed pages. [`Mapped::unchanged`] detects it if called before that.
    ///
    /// # Errors
    /// `Io` if it cannot be opened or mapped, `Data` if it is no file.
    pub fn open(path: &Path) -> Result<Mapped> {
        Mapped::read_up_to(path, READ)
    }

    fn read_up_to(path: &Path, limit: u64) -> Result<Mapped> {
        // Asked before it is opened: a pipe would wait for somebody to write to it.
        if !fs::metadata(path).map_err(Error::io(path))?.is_file() {
            return Err(Error::data(path, "is not a file"));
        }
        let mut file = File::open(path).map_err(Error::io(path))?;
        let stamp = Stamp::of(&file.metadata().map_err(Error::io(path))?);
        let content = if stamp.bytes <= limit {
            let mut bytes = Vec::with_capacity(stamp.bytes as usize);
            (&mut file).take(limit + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
            if bytes.len() as u64 != stamp.bytes {
                return Err(Error::data(path, "was changed while it was read"));
            }
            Content::Memory(bytes)
        } else {
            // SAFETY: the map is only read, as plain bytes, which have no invalid values. That nobody else
            // changes the file cannot be ensured on any system; it is stated above and in the user's
            // documentation.
            #[allow(unsafe_code)]
            let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Error::io(path))?;
            Content::Map { map, file, stamp }
        };
        Ok(Mapped { path: path.to_owned(), content })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Memory(bytes) => bytes,
            Content::Map { map, .. } => map,
        }
    }

    /// Appends some of its bytes. What is mapped is read through the file, so that one which was shortened
    /// meanwhile is an error here, and no signal.
    ///
    /// # Errors
    /// `Data` if the file no longer has them, `Io`.
    pub fn append(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        #[cfg(unix)]
        if let Content::Map { file, .. } = &self.content {
            use std::os::unix::fs::FileExt;
            let begin = out.len();
            out.resize(begin + range.len(), 0);
            return file.read_exact_at(&mut out[begin..], range.start as u64).map_err(|e| {
                let changed = self.unchanged().err();
                changed.unwrap_or_else(|| Error::io(&self.path)(e))
            });
        }
        let bytes = self.bytes().get(range);
        out.extend(bytes.ok_or_else(|| Error::data(&self.path, "is shorter than its header says"))?);
        Ok(())
    }

    /// Makes sure that the file is still what was opened. One that was replaced by another of its name is.
    ///
    /// # Errors
    /// `Data` if its size or the time of its last change differ, `Io`.
    pub fn unchanged(&self) -> Result<()> {
        let Content::Map { file, stamp, .. } = &self.content else { return Ok(()) };
        let now = Stamp::of(&file.metadata().map_err(Error::io(&self.path))?);
        if now != *stamp {
            let message = "was changed while in use: go on from the last checkpoint with the data as they were; \
                           write new data to another file, or rename it into place";
            return Err(Error::data(&self.path, message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_small_file_is_read_and_a_large_one_watched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        fs::write(&path, [1; 100]).unwrap();
        let (small, large) =
            (Mapped::read_up_to(&path, 100).unwrap(), Mapped::read_up_to(&path, 99).unwrap());
        assert_eq!((small.bytes(), large.bytes()), (&[1; 100][..], &[1; 100][..]));
        // Another file of the same name leaves the old one as it is.
        fs::write(dir.path().join("other"), [2; 100]).unwrap();
        fs::rename(dir.path().join("other"), &path).unwrap();
        large.unchanged().unwrap();
        assert_eq!(large.bytes(), [1; 100]);
        for map in [&small, &large] {
            let mut out = vec![7];
            map.append(98..100, &mut out).unwrap();
            assert_eq!(out, [7, 1, 1]);
            assert!(map.append(99..101, &mut out).is_err());
        }

        let watched = Mapped::read_up_to(&path, 99).unwrap();
        File::options().append(true).open(&path).unwrap().write_all(&[3]).unwrap();
        let e = watched.unchanged().unwrap_err();
        assert!(e.code() == "HW-R002" && e.to_string().contains("was changed while in use"), "{e}");
        small.unchanged().unwrap();

        // Shortened: an error, where reading the map would end the process.
        #[cfg(unix)]
        {
            File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
            let e = watched.append(50..60, &mut Vec::new()).unwrap_err();
            assert!(e.code() == "HW-R002" && e.to_string().contains("was changed while in use"), "{e}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(Mapped::open(&path).unwrap_err().to_string().contains("is not a file"));
    }
}
