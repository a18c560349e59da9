//! A mapped file as the `parquet` crate reads one: a file that was shortened meanwhile is an error, and no
//! signal.

use super::super::Mapped;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};
use std::io::{BufReader, Read};
use std::sync::Arc;

/// The file.
#[derive(Clone)]
pub(super) struct Source(pub(super) Arc<Mapped>);

impl Length for Source {
    fn len(&self) -> u64 {
        self.0.bytes().len() as u64
    }
}

impl ChunkReader for Source {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let at = usize::try_from(start).unwrap_or(usize::MAX);
        Ok(BufReader::new(From { map: self.0.clone(), at }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<bytes::Bytes> {
        let end = usize::try_from(start).ok().and_then(|s| Some(s..s.checked_add(length)?));
        let range = end.filter(|r| r.end <= self.0.bytes().len());
        let range = range.ok_or_else(|| ParquetError::EOF("a part of it leaves the file".into()))?;
        let mut out = Vec::new();
        self.0.append(range, &mut out).map_err(|e| ParquetError::General(e.to_string()))?;
        Ok(out.into())
    }
}

/// Reads from a place of the file to its end.
pub(super) struct From {
    map: Arc<Mapped>,
    at: usize,
}

impl Read for From {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.map.bytes().len().saturating_sub(self.at).min(out.len());
        let mut bytes = Vec::new();
        self.map
            .append(self.at..self.at + n, &mut bytes)
            .map_err(|e| std::io::Error::other(e.to_string()))?;
        out[..n].copy_from_slice(&bytes);
        self.at += n;
        Ok(n)
    }
}
