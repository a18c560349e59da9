//! Parquet, Arrow and CSV files as data sets: columns of numbers, lists and images. Row groups and record
//! batches are decoded one at a time, checked when a file is opened, and kept within a budget.
//!
//! A file alone gives its numbers, and lists of one length. A `table.toml` beside it says how lists of
//! several lengths are filled up, which columns hold images, which strings are classes, and which columns
//! make a vector.

mod arrow;
mod block;
mod cache;
mod csv;
mod file;
mod format;
mod parquet;
mod source;
#[cfg(test)]
mod tests;

use super::images::{self, Layout};
use super::{Bytes, Column, Lengths, Mapped};
use crate::error::{Error, Result};
use block::Kind;
use file::Table;
pub(super) use file::{ENDINGS, Leaf};
use format::Field;
use headwater_core::{Class, DType, Shape, Tensor, TensorType};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that makes a folder a data set of Parquet and Arrow files.
pub(super) const FILE: &str = "table.toml";

/// Says so of a file whose ending is one of [`ENDINGS`].
pub(super) fn is_table(path: &Path) -> bool {
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known))
}

/// Says so of a table of text, whose cells say what its columns hold.
pub(super) fn is_text(path: &Path) -> bool {
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    ["csv", "tsv"].iter().any(|known| ending.eq_ignore_ascii_case(known))
}

/// The folder of a file of columns, if its `table.toml` is for the file too.
pub(super) fn folder(path: &Path) -> Option<&Path> {
    let folder = path.parent()?;
    // A file that is named alone is in the current directory.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    Some(folder).filter(|folder| is_table(path) && folder.join(FILE).is_file())
}

/// Contents of `table.toml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableSettings {
    /// Default: the folder's files of columns, sorted.
    files: Option<Vec<String>>,
    /// By column of lists.
    #[serde(default)]
    sequences: BTreeMap<String, Sequence>,
    /// By column of bytes.
    #[serde(default)]
    images: BTreeMap<String, images::ImageSettings>,
    /// By column of strings.
    #[serde(default)]
    classes: BTreeMap<String, ClassNames>,
    /// Tensors `[n, k]` of k columns of numbers each.
    #[serde(default)]
    vectors: BTreeMap<String, Vec<String>>,
}

/// The strings of a column, whose positions are the labels.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum ClassNames {
    /// Those that occur in the folder's files, sorted.
    Auto(super::settings::Auto),
    /// These.
    Listed(Vec<String>),
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
    /// Refuses settings that exclude each other.
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

impl TableSettings {
    /// Settings and files of a folder.
    pub(super) fn open(folder: &Path) -> Result<(TableSettings, Vec<PathBuf>)> {
        let file = folder.join(FILE);
        let refuse = |m: String| Error::data(&file, m);
        let text = std::fs::read_to_string(&file).map_err(Error::io(&file))?;
        let settings: TableSettings = toml::from_str(&text).map_err(|e| refuse(e.to_string()))?;
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
            None => super::entries(folder)?.into_iter().filter(|p| is_table(p)).collect(),
        };
        if files.is_empty() {
            return Err(Error::data(folder, "holds no .parquet, .arrow, .feather, .csv or .tsv"));
        }
        let mut settings = settings;
        settings.name_classes(&files)?;
        Ok((settings, files))
    }

    /// Lists the classes that no one has listed: the strings of all files, sorted. A file may lack a column
    /// of labels, as one to be predicted does; all files may not.
    fn name_classes(&mut self, files: &[PathBuf]) -> Result<()> {
        let file = files.first().map_or(Path::new(FILE), PathBuf::as_path);
        for (name, classes) in &self.classes {
            let ClassNames::Listed(all) = classes else { continue };
            let distinct: BTreeSet<&String> = all.iter().collect();
            if distinct.len() < all.len() {
                return Err(Error::data(file, format!("{FILE} lists a class of `{name}` twice")));
            }
        }
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let auto = self.classes.values().any(|c| matches!(c, ClassNames::Auto(_)));
        for path in files.iter().filter(|_| !self.classes.is_empty()) {
            let table = Table::open(path, &Arc::new(Mapped::open(path)?))?;
            for (name, classes) in &self.classes {
                let Some(at) = table.fields.iter().position(|f| f.words && f.path == *name) else { continue };
                let words = found.entry(name.clone()).or_default();
                if let ClassNames::Auto(_) = classes {
                    words.extend(table.words(at)?.distinct.iter().map(|w| w.to_string()));
                }
            }
            if !auto && self.classes.keys().all(|name| found.contains_key(name)) {
                break;
            }
        }
        for (name, classes) in &mut self.classes {
            let refuse = || no_strings(file, name);
            let words = found.remove(name).ok_or_else(refuse)?;
            if let ClassNames::Auto(_) = classes {
                *classes = ClassNames::Listed(words.into_iter().collect());
            }
        }
        Ok(())
    }

    /// Names of the classes of each column of strings that has some.
    pub(super) fn class_names(&self) -> BTreeMap<String, Vec<String>> {
        let listed = |(name, classes): (&String, &ClassNames)| match classes {
            ClassNames::Listed(all) => Some((name.clone(), all.clone())),
            ClassNames::Auto(_) => None,
        };
        self.classes.iter().filter_map(listed).collect()
    }
}

fn no_strings(path: &Path, name: &str) -> Error {
    Error::data(path, format!("has no column `{name}` of strings, which {FILE} names below [classes]"))
}

/// Labels of a column of strings: positions in the list of classes.
fn labels(table: &Table, at: usize, name: &str, classes: &[String]) -> Result<Column> {
    let position: BTreeMap<&str, i64> = classes.iter().zip(0..).map(|(c, i)| (c.as_str(), i)).collect();
    let words = table.words(at)?;
    let labels: Vec<Option<&i64>> = words.distinct.iter().map(|word| position.get(&**word)).collect();
    let mut bytes = Vec::with_capacity(8 * words.rows.len());
    for (row, &word) in words.rows.iter().enumerate() {
        let label = labels[word as usize].ok_or_else(|| {
            let message = format!(
                "`{name}` of row {row} is \"{}\", which is none of its [classes] in {FILE}: {}",
                words.distinct[word as usize],
                classes.join(", ")
            );
            Error::data(&table.path, message)
        })?;
        bytes.extend(label.to_le_bytes());
    }
    let ty = TensorType::new(DType::I64, [bytes.len() / 8]);
    Ok(Column { name: name.into(), ty, bytes: Bytes::Owned(Arc::new(bytes)) })
}

/// A tensor of several columns of numbers, in f64 unless they have one dtype.
fn vector(path: &Path, name: &str, parts: &[String], columns: &[Column]) -> Result<Column> {
    let refuse = |m: String| Error::data(path, format!("{FILE}, `{name}` below [vectors]: {m}"));
    let part = |part: &String| {
        let found = columns.iter().find(|c| c.name == *part && c.ty.shape.rank() == 1);
        found.cloned().ok_or_else(|| refuse(format!("there is no column `{part}` of single numbers")))
    };
    let parts = parts.iter().map(part).collect::<Result<Vec<Column>>>()?;
    let first = parts.first().ok_or_else(|| refuse("names no column".into()))?.ty.clone();
    let dtype = if parts.iter().all(|p| p.ty.dtype == first.dtype) { first.dtype } else { DType::F64 };
    let ty = TensorType::new(dtype, [first.shape[0], parts.len()]);
    Ok(Column { name: name.into(), ty, bytes: Bytes::Stacked(Arc::new(parts)) })
}

/// The columns of a file.
pub(super) struct Columns {
    pub(super) columns: Vec<Column>,
    /// Columns that are no tensors, and what they hold.
    pub(super) others: Vec<(String, String)>,
    /// Elements of each row before it was filled up: the most in any requested column.
    pub(super) lengths: Option<Lengths>,
}

/// The columns of a file. Those that are requested are decoded once, to check them.
pub(super) fn columns(
    path: &Path,
    map: &Arc<Mapped>,
    settings: &TableSettings,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Columns> {
    let table = Arc::new(Table::open(path, map)?);
    let unknown = |known: &dyn Fn(&String) -> bool| {
        let named = settings.sequences.keys().chain(settings.images.keys()).find(|name| !known(name));
        let refuse = |name| format!("has no column `{name}` of numbers or bytes, which {FILE} names");
        named.map_or(Ok(()), |name| Err(Error::data(path, refuse(name))))
    };
    unknown(&|wanted| table.fields.iter().any(|f| f.found.as_ref().is_ok_and(|(name, _)| name == wanted)))?;
    let (mut columns, mut others): (Vec<Column>, Vec<(String, String)>) = (Vec::new(), Vec::new());
    let (mut filled, mut lengths): (Vec<String>, Vec<u32>) = (Vec::new(), Vec::new());
    for (at, field) in table.fields.iter().enumerate() {
        if let Some(ClassNames::Listed(classes)) = settings.classes.get(&field.path).filter(|_| field.words) {
            columns.push(labels(&table, at, &field.path, classes)?);
            continue;
        }
        if settings.classes.contains_key(&field.path) {
            let message = format!(
                "`{}` holds no strings here, where {FILE} lists classes for it: its numbers would be other labels than \
                 those of the strings in other files",
                field.path
            );
            return Err(Error::data(path, message));
        }
        let (name, dtype) = match &field.found {
            Ok((name, dtype)) => (name.clone(), *dtype),
            Err(holds) => {
                others.push((field.path.clone(), holds.clone()));
                continue;
            }
        };
        let image = settings.images.get(&name);
        if dtype.is_none() && image.is_none() {
            others.push((name, format!("bytes, and [images] of a {FILE} does not name it")));
            continue;
        }
        if let Some((sequence, dtype)) = settings.sequences.get(&name).filter(|s| s.packed).zip(dtype) {
            let wants = wanted(&name) || sequence.next.as_deref().is_some_and(wanted);
            columns.extend(packed(&table, at, name, dtype, sequence, field.list, wants)?);
            continue;
        }
        for (name, kind, dtype) in kinds(&table, at, field, name, dtype, settings)? {
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
    for (name, parts) in &settings.vectors {
        columns.push(vector(path, name, parts, &columns)?);
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = columns.iter().find(|c| !names.insert(c.name.as_str())) {
        let message = format!(
            "has two columns `{}`, those counted that {FILE} makes by [vectors], `mask` and `next`: rename one of them",
            twice.name
        );
        return Err(Error::data(path, message));
    }
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
    field: &Field,
    name: String,
    dtype: Option<DType>,
    settings: &TableSettings,
) -> Result<Vec<(String, Kind, Option<DType>)>> {
    let refuse = |m: String| Error::data(&table.path, format!("`{name}`: {m}"));
    if let (None, Some(image)) = (dtype, settings.images.get(&name)) {
        let layout = Layout::new(image.clone()).map_err(refuse)?;
        if layout.has_masks() {
            return Err(refuse(
                "`masks` is for folders of images: a table has a column of lists for them".into(),
            ));
        }
        return match field.list {
            false => Ok(vec![(name, Kind::Image(Arc::new(layout)), None)]),
            true => Err(refuse("holds lists of images, which are not supported".into())),
        };
    }
    let dtype_of = dtype.unwrap_or(DType::F32);
    match (field.list, settings.sequences.get(&name)) {
        (false, None) => Ok(vec![(name, Kind::One, dtype)]),
        (false, Some(_)) => Err(refuse(format!("holds no lists, {FILE} names it below [sequences]"))),
        (true, None) => Ok(vec![(name.clone(), Kind::List(table.first_length(at, &name)?), dtype)]),
        (true, Some(s)) => {
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

/// Windows of all lists of a column joined, and what follows each element. One that is not requested has the
/// type of zero samples.
fn packed(
    table: &Arc<Table>,
    at: usize,
    name: String,
    dtype: DType,
    s: &Sequence,
    list: bool,
    wanted: bool,
) -> Result<Vec<Column>> {
    let refuse = |m: String| Error::data(&table.path, format!("`{name}`: {m}"));
    if !list {
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
