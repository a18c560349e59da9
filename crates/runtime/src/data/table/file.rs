//! An open file of columns, whatever its format, and its columns as those who feed samples read them.

use super::super::{Mapped, convert};
use super::arrow::Arrow;
use super::block::{Block, Fault, Kind};
use super::cache;
use super::csv::Csv;
use super::format::{Field, Format, Words};
use super::parquet::Parquet;
use crate::error::{Error, Result};
use headwater_core::{DType, TensorType};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the largest packed column of a file, which is kept in memory.
const JOINED: usize = 2 << 30;

/// Endings of files of columns.
pub(in super::super) const ENDINGS: [&str; 5] = ["parquet", "arrow", "feather", "csv", "tsv"];

/// An open file.
pub(super) struct Table {
    pub(super) path: PathBuf,
    format: Box<dyn Format>,
    pub(super) fields: Vec<Field>,
    /// The rows of each group begin at this one; at the end, their number.
    pub(super) begins: Vec<usize>,
}

impl Table {
    pub(super) fn open(path: &Path, map: &Arc<Mapped>) -> Result<Table> {
        let refuse = |m: String| Error::data(path, m);
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        let open = || -> Result<(Box<dyn Format>, Vec<Field>), String> {
            let format: Box<dyn Format> = match ending.to_str() {
                Some("parquet") => Box::new(Parquet::open(map)?),
                Some("csv") => Box::new(Csv::open(map, false)?),
                Some("tsv") => Box::new(Csv::open(map, true)?),
                _ => Box::new(Arrow::open(map)?),
            };
            let fields = format.fields();
            Ok((format, fields))
        };
        let (format, fields) = unless_panic(open)
            .and_then(|opened| opened)
            .map_err(|e| refuse(format!("{e}; write it again, or as .safetensors or .npz")))?;
        let mut begins = vec![0usize];
        for claimed in format.groups() {
            let end = usize::try_from(claimed)
                .ok()
                .and_then(|n| begins[begins.len() - 1].checked_add(n))
                .filter(|&n| n <= u32::MAX as usize);
            begins.push(end.ok_or_else(|| refuse(format!("claims {claimed} rows in a group of them")))?);
        }
        Ok(Table { path: path.to_owned(), format, fields, begins })
    }

    pub(super) fn rows(&self) -> usize {
        self.begins[self.begins.len() - 1]
    }

    /// The strings of a column, of all rows.
    pub(super) fn words(&self, leaf: usize) -> Result<Words> {
        let name = &self.fields[leaf].path;
        let mut all = Words::default();
        for (group, ends) in self.begins.windows(2).enumerate() {
            let done = unless_panic(|| self.format.words(group, leaf, ends[1] - ends[0], &mut all));
            let done = done.map_err(|m| Error::data(&self.path, format!("`{name}`: {m}")))?;
            done.map_err(|f| match f.row {
                Some(row) => {
                    Error::data(&self.path, format!("`{name}` of row {} {}", ends[0] + row, f.message))
                }
                None => Error::data(&self.path, format!("`{name}`: {}", f.message)),
            })?;
        }
        Ok(all)
    }

    /// Elements of the first row, in a column of lists.
    pub(super) fn first_length(&self, leaf: usize, name: &str) -> Result<usize> {
        let Some(group) = self.begins.windows(2).position(|w| w[0] < w[1]) else { return Ok(0) };
        let fault = |f: Fault| match f.row {
            Some(row) => {
                Error::data(&self.path, format!("`{name}` of row {} {}", self.begins[group] + row, f.message))
            }
            None => Error::data(&self.path, format!("`{name}`: {}", f.message)),
        };
        let first = unless_panic(|| self.format.first_length(group, leaf));
        first.map_err(|m| Error::data(&self.path, format!("`{name}`: {m}")))?.map_err(fault)
    }
}

/// A column of an open file.
pub(in super::super) struct Leaf {
    table: Arc<Table>,
    name: String,
    /// Its position in the file.
    leaf: usize,
    dtype: Option<DType>,
    kind: Kind,
    /// Key of its decoded blocks in the cache.
    key: u64,
}

impl std::fmt::Debug for Leaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.name, self.table.path.display())
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        cache::forget(self.key);
    }
}

impl Leaf {
    pub(super) fn new(
        table: Arc<Table>,
        name: String,
        leaf: usize,
        dtype: Option<DType>,
        kind: Kind,
    ) -> Leaf {
        static KEYS: AtomicU64 = AtomicU64::new(0);
        let key = KEYS.fetch_add(1, Ordering::Relaxed);
        Leaf { table, name, leaf, dtype, kind, key }
    }

    /// Appends a sample's elements to `out`, converted to `to`; `ty` is the column's.
    ///
    /// # Errors
    /// `Data`, naming file, column and row.
    pub(in super::super) fn append(
        &self,
        ty: &TensorType,
        sample: usize,
        to: DType,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let group = self.table.begins.partition_point(|&b| b <= sample).saturating_sub(1);
        let row = sample - self.table.begins[group];
        let block = cache::get((self.key, group), || self.block(group))?;
        if let Kind::Image(layout) = &self.kind {
            let begin = row.checked_sub(1).map_or(0, |before| block.ends[before]);
            let mut values = Vec::new();
            let image = &block.bytes[begin..block.ends[row]];
            layout.append(image, &mut values).map_err(|m| self.wrong(Some(sample), &m))?;
            convert::append(DType::F32, to, &values, out);
            return Ok(());
        }
        let stride = ty.shape.iter().skip(1).product::<usize>() * ty.dtype.size();
        convert::append(ty.dtype, to, &block.bytes[row * stride..(row + 1) * stride], out);
        Ok(())
    }

    /// The value of a black pixel in each channel, of images.
    pub(in super::super) fn black(&self) -> Option<Vec<f64>> {
        match &self.kind {
            Kind::Image(layout) => Some(layout.black()),
            _ => None,
        }
    }

    /// Decodes all groups once: afterwards only a file that was changed is refused. Returns the elements of
    /// each row, where rows are filled up.
    pub(super) fn validate(&self) -> Result<Vec<u32>> {
        let mut sizes = Vec::new();
        for group in 0..self.table.begins.len() - 1 {
            sizes.extend(&cache::get((self.key, group), || self.block(group))?.sizes);
        }
        Ok(sizes)
    }

    /// The elements of all rows, concatenated.
    pub(super) fn joined(&self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        for group in 0..self.table.begins.len() - 1 {
            all.extend(self.block(group)?.bytes);
            if all.len() > JOINED {
                return Err(
                    self.wrong(None, &format!("has more than {JOINED} bytes to pack: split the file"))
                );
            }
        }
        Ok(all)
    }

    fn block(&self, group: usize) -> Result<Block> {
        let rows = self.table.begins[group + 1] - self.table.begins[group];
        let decode = || self.table.format.decode(group, self.leaf, rows, self.dtype, &self.kind);
        let fault = match unless_panic(decode) {
            Ok(Ok(block)) => return Ok(block),
            Ok(Err(fault)) => fault,
            Err(message) => Fault { row: None, message },
        };
        Err(match fault.row {
            None => self.wrong(
                None,
                &format!(
                    "rows {} to {}: {}",
                    self.table.begins[group],
                    self.table.begins[group + 1],
                    fault.message
                ),
            ),
            Some(row) => self.wrong(Some(self.table.begins[group] + row), &fault.message),
        })
    }

    fn wrong(&self, row: Option<usize>, message: &str) -> Error {
        let place = row.map_or(String::new(), |row| format!(" of row {row}"));
        Error::data(&self.table.path, format!("`{}`{place} {message}", self.name))
    }
}

/// The result of `f`; a panic of the decoder, which a damaged file can cause, is a message.
fn unless_panic<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    crate::quiet::unless_panic(f).ok_or_else(|| "is damaged: its decoder stopped at it".into())
}
