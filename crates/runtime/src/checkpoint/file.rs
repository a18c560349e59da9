//! Files of a checkpoint: written once, by one process or in parts by several, hashed on the way, and brought
//! to disk before they count.

use super::manifest::Written;
use super::pieces::{Hashes, PIECE};
use crate::data::to_safetensors;
use crate::error::{Error, Result};
use headwater_core::TensorType;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

/// How files come to disk; tests put a failing disk in its place, or end the process in the middle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    /// Opens a file for writing, new or begun by another rank.
    pub open: fn(&Path) -> std::io::Result<File>,
    /// Called before each change of what is on disk.
    pub before: fn(&'static str),
    /// Bytes of a piece.
    pub piece: u64,
}

impl Default for Disk {
    fn default() -> Self {
        let open = |path: &Path| File::options().write(true).create(true).truncate(false).open(path);
        Disk { open, before: |_| {}, piece: PIECE }
    }
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

/// A safetensors file (<https://github.com/huggingface/safetensors#format>) that may be written in parts: the widest
/// elements come first, so that every tensor is aligned.
pub(super) struct Image<S> {
    header: Vec<u8>,
    entries: Vec<Entry<S>>,
    /// Bytes of the file.
    pub bytes: u64,
}

impl<S> Image<S> {
    /// # Errors
    /// `Checkpoint` if the tensors make no such file; `path` is for the message.
    pub fn new(path: &Path, mut entries: Vec<Entry<S>>) -> Result<Image<S>> {
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
        let text = Metadata::new(Some(metadata), infos.collect()).map_err(|e| refuse(e.to_string()))?;
        let mut text = serde_json::to_vec(&text).map_err(|e| refuse(e.to_string()))?;
        text.resize(text.len().next_multiple_of(8), b' ');
        let header = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
        let bytes = (header.len() + at) as u64;
        Ok(Image { header, entries, bytes })
    }

    /// Writes the bytes of `part`, which begins with a piece, one tensor in memory at a time, and brings them
    /// to disk. Returns the hash of each piece.
    pub fn write(
        &self,
        disk: Disk,
        path: &Path,
        part: Range<u64>,
        read: impl Fn(&S) -> Result<Vec<u8>>,
    ) -> Result<Vec<String>> {
        if part.is_empty() {
            return Ok(Vec::new());
        }
        let mut out = Hashing::new(disk, path, part.start)?;
        let mut end = 0;
        // The part of the next so many bytes that belongs here.
        let mut within = |bytes: usize| {
            let begin = end;
            end += bytes as u64;
            let cut = |at: u64| (at.clamp(begin, end) - begin) as usize;
            cut(part.start)..cut(part.end)
        };
        out.write(&self.header[within(self.header.len())])?;
        for e in &self.entries {
            let own = within(e.ty.bytes());
            if !own.is_empty() {
                out.write(&read(&e.source)?[own])?;
            }
        }
        out.finish()
    }
}

struct Hashing<'a> {
    path: &'a Path,
    disk: Disk,
    out: BufWriter<File>,
    hashes: Hashes,
}

impl<'a> Hashing<'a> {
    fn new(disk: Disk, path: &'a Path, from: u64) -> Result<Self> {
        (disk.before)("open");
        let mut file = (disk.open)(path).map_err(Error::io(path))?;
        if from > 0 {
            file.seek(SeekFrom::Start(from)).map_err(Error::io(path))?;
        }
        let capacity = disk.piece.min(1 << 20) as usize;
        let out = BufWriter::with_capacity(capacity, file);
        Ok(Hashing { path, disk, out, hashes: Hashes::new(disk.piece) })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hashes.update(bytes);
        for block in bytes.chunks(self.disk.piece as usize) {
            (self.disk.before)("write");
            self.out.write_all(block).map_err(Error::io(self.path))?;
        }
        Ok(())
    }

    /// Brings the file to disk.
    fn finish(self) -> Result<Vec<String>> {
        (self.disk.before)("flush");
        let file = self.out.into_inner().map_err(|e| Error::io(self.path)(e.into_error()))?;
        (self.disk.before)("sync");
        file.sync_all().map_err(Error::io(self.path))?;
        Ok(self.hashes.finish())
    }
}

/// Writes a value as JSON.
pub(super) fn write_json(disk: Disk, path: &Path, value: &impl Serialize) -> Result<Written> {
    let text = serde_json::to_vec_pretty(value).map_err(|e| Error::checkpoint(path, e.to_string()))?;
    let mut out = Hashing::new(disk, path, 0)?;
    out.write(&text)?;
    Ok(Written::new(text.len() as u64, out.finish()?))
}
