//! Files of a checkpoint: written once from front to back, hashed on the way, brought to disk before they
//! count.

use crate::data::to_safetensors;
use crate::error::{Error, Result};
use headwater_core::TensorType;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Opens a new file for writing; tests put a failing disk in its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Create(pub fn(&Path) -> std::io::Result<File>);

impl Default for Create {
    fn default() -> Self {
        Create(|path| File::create_new(path))
    }
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Written {
    /// Size.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

/// A tensor to write.
pub(super) struct Entry<S> {
    /// Name in the file.
    pub name: String,
    /// Dtype and shape.
    pub ty: TensorType,
    /// The place of its bytes.
    pub source: S,
}

struct Hashing<'a> {
    path: &'a Path,
    out: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl<'a> Hashing<'a> {
    fn new(create: Create, path: &'a Path) -> Result<Self> {
        let file = create.0(path).map_err(Error::io(path))?;
        Ok(Hashing { path, out: BufWriter::with_capacity(1 << 20, file), hash: Sha256::new(), bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(Error::io(self.path))
    }

    /// Brings the file to disk.
    fn finish(self) -> Result<Written> {
        let file = self.out.into_inner().map_err(|e| Error::io(self.path)(e.into_error()))?;
        file.sync_all().map_err(Error::io(self.path))?;
        Ok(Written { bytes: self.bytes, sha256: hex(&self.hash.finalize()) })
    }
}

/// Lowercase hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Writes a safetensors file (<https://github.com/huggingface/safetensors#format>), one tensor in memory at a
/// time: widest elements first, so that every tensor is aligned.
pub(super) fn write_tensors<S>(
    create: Create,
    path: &Path,
    mut entries: Vec<Entry<S>>,
    read: impl Fn(&S) -> Result<Vec<u8>>,
) -> Result<Written> {
    entries.sort_by(|a, b| b.ty.dtype.size().cmp(&a.ty.dtype.size()).then_with(|| a.name.cmp(&b.name)));
    let mut at = 0;
    let infos = entries.iter().map(|e| {
        let start = at;
        at += e.ty.bytes();
        let (dtype, shape) = (to_safetensors(e.ty.dtype), e.ty.shape.to_vec());
        (e.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, at) })
    });
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let refuse = |m: String| Error::checkpoint(path, m);
    let header = Metadata::new(Some(metadata), infos.collect()).map_err(|e| refuse(e.to_string()))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| refuse(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = Hashing::new(create, path)?;
    out.write(&(header.len() as u64).to_le_bytes())?;
    out.write(&header)?;
    for e in &entries {
        out.write(&read(&e.source)?)?;
    }
    out.finish()
}

/// Writes a value as JSON.
pub(super) fn write_json(create: Create, path: &Path, value: &impl Serialize) -> Result<Written> {
    let text = serde_json::to_vec_pretty(value).map_err(|e| Error::checkpoint(path, e.to_string()))?;
    let mut out = Hashing::new(create, path)?;
    out.write(&text)?;
    out.finish()
}
