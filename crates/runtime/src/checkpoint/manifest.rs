//! The manifest of a checkpoint: its files, with what proves that they are whole.

use super::pieces::{self, Hashes, hex};
use super::{AVERAGE, MANIFEST, MODEL, PROGRESS, STATE};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// The format that is written: a hash for each piece of a file, whatever program wrote it.
const FORMAT: &str = "headwater-checkpoint-2";
/// One that is still read: a hash for each file.
const WHOLE: &str = "headwater-checkpoint-1";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: String,
    pub step: u64,
    /// Bytes of a piece; absent in the first format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    piece: Option<u64>,
    pub files: BTreeMap<String, Written>,
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Written {
    /// Size.
    pub bytes: u64,
    /// SHA-256 in hexadecimal, in the first format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    /// SHA-256 of each piece.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<String>,
}

impl Written {
    pub fn new(bytes: u64, pieces: Vec<String>) -> Written {
        Written { bytes, sha256: None, pieces }
    }

    /// True if this is the file's content.
    pub fn is(&self, content: &[u8], piece: Option<u64>) -> bool {
        let Some(piece) = piece else {
            return content.len() as u64 == self.bytes
                && self.sha256.as_deref() == Some(&hex(&Sha256::digest(content)));
        };
        let mut hashes = Hashes::new(piece);
        hashes.update(content);
        content.len() as u64 == self.bytes && hashes.finish() == self.pieces
    }
}

/// The beginning of manifests of all formats.
#[derive(Deserialize)]
struct Format {
    format: String,
}

impl Manifest {
    pub fn new(step: u64, piece: u64, files: BTreeMap<String, Written>) -> Manifest {
        Manifest { format: FORMAT.into(), step, piece: Some(piece), files }
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// `Checkpoint` if it is damaged, `Version` if it is of another version; `path` is the checkpoint.
    pub fn of(text: &[u8], path: &Path) -> Result<Manifest> {
        let damaged = |m: String| Error::checkpoint(path, m);
        // The format first: the rest of another one may look otherwise.
        let Format { format } =
            serde_json::from_slice(text).map_err(|e| damaged(format!("{MANIFEST}: {e}")))?;
        if ![FORMAT, WHOLE].contains(&format.as_str()) {
            let message = format!("has format {format:?}, not {FORMAT:?} or {WHOLE:?}");
            return Err(Error::Version { path: path.to_owned(), message });
        }
        let manifest: Manifest =
            serde_json::from_slice(text).map_err(|e| damaged(format!("{MANIFEST}: {e}")))?;
        if (manifest.piece.is_some(), manifest.piece == Some(0)) != (format == FORMAT, false) {
            return Err(damaged(format!("{MANIFEST} has pieces of {:?} bytes", manifest.piece)));
        }
        for name in [MODEL, STATE, PROGRESS] {
            if !manifest.files.contains_key(name) {
                return Err(damaged(format!("{MANIFEST} does not list {name}")));
            }
        }
        if let Some(piece) = manifest.piece {
            let wrong = |w: &Written| w.pieces.len() as u64 != pieces::count(w.bytes, piece);
            if let Some((name, _)) = manifest.files.iter().find(|(_, w)| wrong(w)) {
                return Err(damaged(format!("{MANIFEST} has not a hash for each piece of {name}")));
            }
        }
        Ok(manifest)
    }

    /// Bytes of a piece, if the files have such.
    pub fn piece(&self) -> Option<u64> {
        self.piece
    }

    /// The files of tensors that this version reads.
    pub fn tensors(&self) -> impl Iterator<Item = (&'static str, &Written)> {
        [MODEL, STATE, AVERAGE].into_iter().filter_map(|name| Some((name, self.files.get(name)?)))
    }
}
