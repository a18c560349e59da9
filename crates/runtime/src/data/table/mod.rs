//! Parquet files as data sets: columns of numbers, lists and images. Row groups are decoded one at a time, checked
//! when a file is opened, and kept within a budget.
//!
//! A file alone gives its numbers, and lists of one length. A folder with a `table.toml` says how lists of several
//! lengths are filled up, and which columns hold images.

mod cache;
mod decode;
mod source;
#[cfg(test)]
mod tests;

use super::images::{self, Layout};
use super::{Bytes, Column, Lengths, Mapped, convert};
use crate::error::{Error, Result};
use decode::{Block, Fault};
use headwater_core::{Class, DType, Shape, Tensor, TensorType};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use serde::Deserialize;
use source::Source;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file that makes a folder a data set of Parquet files.
pub(super) const FILE: &str = "table.toml";

/// Bytes of the largest decoded column of a row group.
const GROUP: usize = 1 << 30;

/// Bytes of the largest packed column of a file, which is kept in memory.
const JOINED: usize = 2 << 30;

fn too_large() -> String {
    format!("takes its row group beyond {GROUP} bytes: write smaller row groups")
}

/// Contents of `table.toml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// Default: the folder's `.parquet`, sorted.
    files: Option<Vec<String>>,
    /// By column of lists.
    #[serde(default)]
    sequences: BTreeMap<String, Sequence>,
    /// By column of bytes.
    #[serde(default)]
    images: BTreeMap<String, images::Settings>,
}

/// Lists of several lengths as rows of one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sequence {
    /// Elements of a sample.
    length: usize,
    /// The element that fills shorter lists up; not if packed.
    pad: Option<toml::Value>,
    /// All lists of a file joined and cut into windows, rather than one list a sample.
    #[serde(default)]
    packed: bool,
    /// The element after each list, if packed. Default: there is none.
    end: Option<toml::Value>,
    /// Name of a column with the element that follows each, if packed. Default: there is none.
    next: Option<String>,
    /// Longer lists lose their end, rather than being refused.
    #[serde(default)]
    truncate: bool,
    /// Name of a column of bools, false at what fills up. Default: there is none.
    mask: Option<String>,
}

impl Sequence {
    /// Refuses settings that do not go together.
    fn check(&self) -> Result<(), String> {
        let odd = match self.packed {
            true => [("pad", self.pad.is_some()), ("truncate", self.truncate), ("mask", self.mask.is_some())],
            false => [("end", self.end.is_some()), ("next", self.next.is_some()), ("", false)],
        };
        match odd.iter().find(|o| o.1) {
            Some((name, _)) if self.packed => Err(format!("`{name}` does not go with `packed`")),
            Some((name, _)) => Err(format!("`{name}` goes with `packed` only")),
            None if !self.packed && self.pad.is_none() => Err("`pad` is missing, or `packed = true`".into()),
            None => Ok(()),
        }
    }
}

impl Settings {
    /// Settings and files of a folder.
    pub(super) fn open(folder: &Path) -> Result<(Settings, Vec<PathBuf>)> {
        let file = folder.join(FILE);
        let refuse = |m: String| Error::data(&file, m);
        let text = std::fs::read_to_string(&file).map_err(Error::io(&file))?;
        let settings: Settings = toml::from_str(&text).map_err(|e| refuse(e.to_string()))?;
        for (name, s) in &settings.sequences {
            s.check().map_err(|m| refuse(format!("[sequences.{name}]: {m}")))?;
        }
        if let Some((name, s)) = settings.sequences.iter().find(|(_, s)| !(1..=1 << 24).contains(&s.length)) {
            return Err(refuse(format!("`length` {} of `{name}` must be from 1 to {}", s.length, 1 << 24)));
        }
        let files = match &settings.files {
            Some(files) => {
                let named = files.iter().map(|f| super::files(&folder.join(f)));
                named.collect::<Result<Vec<_>>>()?.concat()
            }
            None => super::entries(folder)?
                .into_iter()
                .filter(|p| p.extension().is_some_and(|e| e == "parquet"))
                .collect(),
        };
        match files.is_empty() {
            true => Err(Error::data(folder, "holds no .parquet")),
            false => Ok((settings, files)),
        }
    }
}

/// Treatment of the elements of a row.
#[derive(Clone, Debug)]
enum Kind {
    /// The one element.
    One,
    /// A list of this length.
    List(usize),
    /// A list filled up to `length` elements of the bytes `pad`.
    Padded { length: usize, pad: Vec<u8>, truncate: bool },
    /// True for each element of a list, false up to `length`.
    Mask { length: usize, truncate: bool },
    /// An encoded image.
    Image(Arc<Layout>),
    /// All elements of a list, with the bytes of one more behind them.
    Joined { end: Vec<u8> },
}

impl Kind {
    /// Appends a row's elements.
    fn row<T>(
        &self,
        block: &mut Block,
        row: usize,
        values: &[T],
        mut append: impl FnMut(&T, &mut Vec<u8>) -> Result<(), String>,
    ) -> Result<(), Fault> {
        let fault = |message| Fault { row: Some(row), message };
        let (length, truncate) = match *self {
            Kind::One | Kind::Image(_) => (1, false),
            Kind::Joined { .. } => (values.len(), false),
            Kind::List(length) => (length, false),
            Kind::Padded { length, truncate, .. } | Kind::Mask { length, truncate } => (length, truncate),
        };
        let fills = matches!(self, Kind::Padded { .. } | Kind::Mask { .. });
        let have = values.len();
        if have > length && !truncate || have < length && !fills {
            let advice = match fills {
                true => format!("more than `length`: raise it, or set `truncate = true` in {FILE}"),
                false => format!(
                    "the first has {length}: lists of several lengths need `length` and `pad` in a {FILE}"
                ),
            };
            return Err(fault(format!("has {have} elements, {advice}")));
        }
        let have = have.min(length);
        if fills {
            block.sizes.push(have as u32);
        }
        if block.bytes.len() + length * 8 > GROUP {
            return Err(fault(too_large()));
        }
        if let Kind::Mask { .. } = self {
            block.bytes.extend((0..length).map(|i| (i < have) as u8));
            return Ok(());
        }
        for value in &values[..have] {
            append(value, &mut block.bytes).map_err(|m| fault(format!("holds {m}")))?;
        }
        match self {
            Kind::Padded { pad, .. } => (have..length).for_each(|_| block.bytes.extend(pad)),
            Kind::Joined { end } => block.bytes.extend(end),
            _ => {}
        }
        Ok(())
    }
}

/// An open file.
struct Table {
    path: PathBuf,
    reader: SerializedFileReader<Source>,
    /// The rows of each row group begin at this one; at the end, their number.
    begins: Vec<usize>,
}

impl Table {
    fn open(path: &Path, map: &Arc<Mapped>) -> Result<Table> {
        let refuse = |m: String| Error::data(path, m);
        let open = || SerializedFileReader::new(Source(map.clone()));
        let reader = unless_panic(open)
            .map_err(refuse)?
            .map_err(|e| refuse(format!("{e}; write it again, or as .safetensors or .npz")))?;
        let mut begins = vec![0usize];
        for group in reader.metadata().row_groups() {
            let rows = usize::try_from(group.num_rows()).ok();
            let end = rows
                .and_then(|n| begins[begins.len() - 1].checked_add(n))
                .filter(|&n| n <= u32::MAX as usize);
            begins
                .push(end.ok_or_else(|| refuse(format!("claims {} rows in a row group", group.num_rows())))?);
        }
        Ok(Table { path: path.to_owned(), reader, begins })
    }

    fn rows(&self) -> usize {
        self.begins[self.begins.len() - 1]
    }
}

/// A column of an open file.
pub(super) struct Leaf {
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
    fn new(table: Arc<Table>, name: String, leaf: usize, dtype: Option<DType>, kind: Kind) -> Leaf {
        static KEYS: AtomicU64 = AtomicU64::new(0);
        let key = KEYS.fetch_add(1, Ordering::Relaxed);
        Leaf { table, name, leaf, dtype, kind, key }
    }

    /// Appends a sample's elements to `out`, converted to `to`; `ty` is the column's.
    ///
    /// # Errors
    /// `Data`, naming file, column and row.
    pub(super) fn append(&self, ty: &TensorType, sample: usize, to: DType, out: &mut Vec<u8>) -> Result<()> {
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
    pub(super) fn black(&self) -> Option<Vec<f64>> {
        match &self.kind {
            Kind::Image(layout) => Some(layout.black()),
            _ => None,
        }
    }

    /// Decodes all row groups once: afterwards only a file that was changed is refused. Returns the elements of each row,
    /// where rows are filled up.
    fn validate(&self) -> Result<Vec<u32>> {
        let mut sizes = Vec::new();
        for group in 0..self.table.begins.len() - 1 {
            sizes.extend(&cache::get((self.key, group), || self.block(group))?.sizes);
        }
        Ok(sizes)
    }

    /// The elements of all rows, one after the other.
    fn joined(&self) -> Result<Vec<u8>> {
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
        let decode = || {
            let reader = self.table.reader.get_row_group(group)?;
            decode::decode(reader.as_ref(), self.leaf, rows, self.dtype, &self.kind)
        };
        let fault = match unless_panic(decode) {
            Ok(Ok(block)) => return Ok(block),
            Ok(Err(fault)) => fault,
            Err(message) => Fault { row: None, message },
        };
        Err(match fault.row {
            None => self.wrong(None, &format!("row group {group}: {}", fault.message)),
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
    catch_unwind(AssertUnwindSafe(f)).map_err(|_| "is damaged: its decoder stopped at it".into())
}

/// A column's name: a list's own, or the fields of structs joined by dots.
fn name(column: &ColumnDescriptor) -> Result<String, String> {
    let parts = column.path().parts();
    match column.max_rep_level() {
        0 => Ok(parts.join(".")),
        1 if parts.len() <= 3 => Ok(parts[0].clone()),
        _ => Err("lists of lists or structs".into()),
    }
}

/// The columns of a file.
pub(super) struct Columns {
    pub(super) columns: Vec<Column>,
    /// Columns that are no tensors, and what they hold.
    pub(super) others: Vec<(String, String)>,
    /// Elements of each row before it was filled up: the most in any wanted column.
    pub(super) lengths: Option<Lengths>,
}

/// The columns of a file. Those that are wanted are decoded once, to check them.
pub(super) fn columns(
    path: &Path,
    map: &Arc<Mapped>,
    settings: &Settings,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Columns> {
    let table = Arc::new(Table::open(path, map)?);
    let schema = table.reader.metadata().file_metadata().schema_descr_ptr();
    let unknown = |known: &dyn Fn(&String) -> bool| {
        let named = settings.sequences.keys().chain(settings.images.keys()).find(|name| !known(name));
        let refuse = |name| format!("has no column `{name}` of numbers or bytes, which {FILE} names");
        named.map_or(Ok(()), |name| Err(Error::data(path, refuse(name))))
    };
    unknown(&|wanted| schema.columns().iter().any(|c| name(c).is_ok_and(|name| name == *wanted)))?;
    let (mut columns, mut others): (Vec<Column>, Vec<(String, String)>) = (Vec::new(), Vec::new());
    let (mut filled, mut lengths): (Vec<String>, Vec<u32>) = (Vec::new(), Vec::new());
    for (at, column) in schema.columns().iter().enumerate() {
        let path_name = column.path().string();
        let found = name(column).and_then(|name| Ok((name, decode::dtype(column)?)));
        let (name, dtype) = match found {
            Ok(found) => found,
            Err(holds) => {
                others.push((path_name, holds));
                continue;
            }
        };
        let image = settings.images.get(&name);
        if dtype.is_none() && image.is_none() {
            others.push((name, format!("bytes, and [images] of a {FILE} does not name it")));
            continue;
        }
        if columns.iter().any(|c| c.name == name) {
            return Err(Error::data(path, format!("`{name}` stands in the file twice")));
        }
        if let Some((sequence, dtype)) = settings.sequences.get(&name).filter(|s| s.packed).zip(dtype) {
            let wants = wanted(&name) || sequence.next.as_deref().is_some_and(wanted);
            columns.extend(packed(&table, at, name, dtype, sequence, column.max_rep_level(), wants)?);
            continue;
        }
        for (name, kind, dtype) in kinds(&table, at, column, name, dtype, settings)? {
            let mut sizes = vec![table.rows()];
            match &kind {
                Kind::One => {}
                Kind::List(length) | Kind::Padded { length, .. } | Kind::Mask { length, .. } => {
                    sizes.push(*length)
                }
                Kind::Image(layout) => sizes.extend(layout.shape()),
                Kind::Joined { .. } => {}
            }
            let shape = Shape::new(&sizes);
            let ty = match kind {
                Kind::Mask { .. } => TensorType::new(DType::Bool, shape),
                _ => TensorType::new(dtype.unwrap_or(DType::F32), shape),
            };
            if ty.shape.checked_numel().and_then(|n| n.checked_mul(8)).is_none_or(|n| n > isize::MAX as usize)
            {
                return Err(Error::data(path, format!("`{name}`: {ty} is larger than memory can be")));
            }
            if matches!(kind, Kind::Padded { .. } | Kind::Mask { .. }) {
                filled.push(name.clone());
            }
            let leaf = Leaf::new(table.clone(), name.clone(), at, dtype, kind);
            if wanted(&name) {
                let sizes = leaf.validate()?;
                lengths.resize(lengths.len().max(sizes.len()), 0);
                lengths.iter_mut().zip(sizes).for_each(|(most, size)| *most = size.max(*most));
            }
            columns.push(Column { name, ty, bytes: Bytes::Table(Arc::new(leaf)) });
        }
    }
    unknown(&|name| columns.iter().any(|c| c.name == *name))?;
    if columns.is_empty() {
        let others: Vec<String> =
            others.iter().map(|(name, holds)| format!("`{name}` holds {holds}")).collect();
        return Err(Error::data(path, format!("has no column of numbers: {}", others.join("; "))));
    }
    let lengths = (!filled.is_empty()).then(|| Lengths { of: Arc::new(lengths), columns: filled });
    Ok(Columns { columns, others, lengths })
}

/// The columns that are made of one of the file: itself, and the mask of a padded list.
fn kinds(
    table: &Arc<Table>,
    at: usize,
    column: &ColumnDescriptor,
    name: String,
    dtype: Option<DType>,
    settings: &Settings,
) -> Result<Vec<(String, Kind, Option<DType>)>> {
    let refuse = |m: String| Error::data(&table.path, format!("`{name}`: {m}"));
    if let (None, Some(image)) = (dtype, settings.images.get(&name)) {
        let layout = Layout::new(image.clone()).map_err(refuse)?;
        return match column.max_rep_level() {
            0 => Ok(vec![(name, Kind::Image(Arc::new(layout)), None)]),
            _ => Err(refuse("holds lists of images, which are not supported".into())),
        };
    }
    let dtype_of = dtype.unwrap_or(DType::F32);
    match (column.max_rep_level(), settings.sequences.get(&name)) {
        (0, None) => Ok(vec![(name, Kind::One, dtype)]),
        (0, Some(_)) => Err(refuse(format!("holds no lists, {FILE} names it below [sequences]"))),
        (_, None) => {
            let group = table.begins.windows(2).position(|w| w[0] < w[1]);
            let first = || match group {
                None => Ok(0),
                Some(group) => decode::first_length(table.reader.get_row_group(group)?.as_ref(), at),
            };
            let fault = |f: Fault| match (f.row, group) {
                (Some(row), Some(group)) => {
                    let row = table.begins[group] + row;
                    Error::data(&table.path, format!("`{name}` of row {row} {}", f.message))
                }
                _ => refuse(f.message),
            };
            let length = unless_panic(first).map_err(refuse)?.map_err(fault)?;
            Ok(vec![(name, Kind::List(length), dtype)])
        }
        (_, Some(s)) => {
            let pad = s.pad.as_ref().ok_or_else(|| refuse("`pad` is missing".into()))?;
            let pad = element("pad", pad, dtype_of).map_err(refuse)?;
            let (length, truncate) = (s.length, s.truncate);
            let mut made = Vec::new();
            if let Some(mask) = &s.mask {
                made.push((mask.clone(), Kind::Mask { length, truncate }, dtype));
            }
            made.insert(0, (name, Kind::Padded { length, pad, truncate }, dtype));
            Ok(made)
        }
    }
}

/// Windows of all lists of a column joined, and what follows each element. Of one that nobody wants there is the type of
/// no samples.
fn packed(
    table: &Arc<Table>,
    at: usize,
    name: String,
    dtype: DType,
    s: &Sequence,
    nesting: i16,
    wanted: bool,
) -> Result<Vec<Column>> {
    let refuse = |m: String| Error::data(&table.path, format!("`{name}`: {m}"));
    if nesting == 0 {
        return Err(refuse(format!("holds no lists, {FILE} names it below [sequences]")));
    }
    let end = s.end.as_ref().map(|e| element("end", e, dtype)).transpose().map_err(refuse)?;
    let end = end.unwrap_or_default();
    let all = match wanted {
        true => Leaf::new(table.clone(), name.clone(), at, Some(dtype), Kind::Joined { end }).joined()?,
        false => Vec::new(),
    };
    let size = dtype.size();
    // Each window is followed by an element, which is the last label of the one before.
    let ahead = s.next.is_some() as usize;
    let samples = (all.len() / size).saturating_sub(ahead) / s.length;
    if samples == 0 && wanted {
        return Err(refuse(format!("the lists hold no sample of {} elements", s.length)));
    }
    let ty = TensorType::new(dtype, [samples, s.length]);
    let column = |name: &str, first: usize| {
        let bytes = all[first * size..][..ty.bytes()].to_vec();
        Column { name: name.into(), ty: ty.clone(), bytes: Bytes::Owned(Arc::new(bytes)) }
    };
    let next = s.next.iter().map(|next| column(next, ahead.min(all.len() / size)));
    Ok(std::iter::once(column(&name, 0)).chain(next).collect())
}

/// The bytes of a number of the settings.
fn element(setting: &str, value: &toml::Value, dtype: DType) -> Result<Vec<u8>, String> {
    let wrong = || format!("`{setting}` is {value}, which is no {dtype}");
    let tensor = match (value, dtype.class()) {
        (toml::Value::Integer(x), Class::Int) => {
            let (low, high) = dtype.int_range();
            if !(low..=high).contains(x) {
                return Err(wrong());
            }
            Tensor::int(dtype, [1], vec![*x])
        }
        (toml::Value::Boolean(x), Class::Bool) => Tensor::int(dtype, [1], vec![*x as i64]),
        (toml::Value::Integer(x), Class::Float) => {
            Tensor::float(DType::F64, [1], vec![*x as f64]).cast(dtype)
        }
        (toml::Value::Float(x), Class::Float) => Tensor::float(DType::F64, [1], vec![*x]).cast(dtype),
        _ => return Err(wrong()),
    };
    Ok(tensor.to_bytes())
}
