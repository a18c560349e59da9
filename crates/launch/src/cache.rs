//! The cache of binaries: files named by everything that they depend on, each with the digest of its bytes. A
//! damaged or half-written entry is as good as none.

use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// A file that cannot be made, and the system's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {cause}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// Message of the system.
    pub cause: String,
}

/// A folder of binaries. Processes share it: entries appear by renaming, and those of one name are the same.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache in a folder, which is made when something is stored.
    pub fn new(folder: PathBuf) -> Cache {
        Cache { folder }
    }

    fn paths(&self, key: &str) -> (PathBuf, PathBuf) {
        (self.folder.join(format!("{key}.o")), self.folder.join(format!("{key}.sha256")))
    }

    /// The file of a key and its bytes, if they are whole.
    pub fn get(&self, key: &str) -> Option<(PathBuf, Vec<u8>)> {
        let (binary, digest) = self.paths(key);
        let stated = std::fs::read_to_string(digest).ok()?;
        let bytes = std::fs::read(&binary).ok()?;
        (digest_of(&bytes) == stated.trim()).then_some((binary, bytes))
    }

    /// Stores bytes under a key.
    ///
    /// # Errors
    /// The file that cannot be written.
    pub fn put(&self, key: &str, bytes: &[u8]) -> Result<PathBuf, FileError> {
        let failed =
            |path: &Path, e: std::io::Error| FileError { path: path.to_owned(), cause: e.to_string() };
        std::fs::create_dir_all(&self.folder).map_err(|e| failed(&self.folder, e))?;
        let (binary, digest) = self.paths(key);
        for (path, content) in [(&binary, bytes), (&digest, digest_of(bytes).as_bytes())] {
            let temporary = tempfile::NamedTempFile::new_in(&self.folder);
            let temporary = temporary.map_err(|e| failed(&self.folder, e))?;
            std::fs::write(temporary.path(), content).map_err(|e| failed(temporary.path(), e))?;
            temporary.as_file().sync_all().map_err(|e| failed(path, e))?;
            temporary.persist(path).map_err(|e| failed(path, e.error))?;
        }
        Ok(binary)
    }
}

fn digest_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_entries_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("a/b"));
        assert_eq!(cache.get("k"), None);
        let path = cache.put("k", b"bytes").unwrap();
        assert_eq!(cache.get("k"), Some((path.clone(), b"bytes".to_vec())));
        assert_eq!(cache.get("l"), None);
        for damage in [&b"byte"[..], b"", b"bytez"] {
            std::fs::write(&path, damage).unwrap();
            assert_eq!(cache.get("k"), None, "{damage:?}");
        }
        cache.put("k", b"bytes").unwrap();
        assert!(cache.get("k").is_some());
        // Only the two files are left.
        assert_eq!(std::fs::read_dir(folder.path().join("a/b")).unwrap().count(), 2);
    }
}
