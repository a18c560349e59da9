//! Data sets: tensors in `.safetensors`, `.npz` or `.npy` files whose first dimension counts samples, Parquet
//! files, folders of images and of texts, and several files as one. Owns files, conversion, the order of
//! samples and the thread that reads ahead. Knows of the model only what its inputs are called.

mod augment;
mod blame;
mod convert;
mod feeding;
mod images;
mod loader;
mod map;
mod npy;
mod order;
mod settings;
mod shards;
mod table;
mod text;

pub use blame::located;
pub(crate) use blame::not_finite;
pub(crate) use convert::append;
pub use feeding::{Feeding, Lengths, Shapes, Types};
pub(crate) use loader::gather;
pub use loader::{Batch, Feed, Loader, feeds};
pub use map::Mapped;
pub use order::{LastBatch, Order, Sampler};
pub use settings::{AugmentConfig, Auto, Balanced, Buckets, Cast, ClassWeights, DataConfig};
pub use shards::files;

use crate::error::{Error, Result};
use headwater_core::{DType, Shape, TensorType};
use images::Images;
use shards::Shards;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Place of a column's bytes.
#[derive(Clone, Debug)]
enum Bytes {
    Mapped(Arc<Mapped>, Range<usize>),
    Owned(Arc<Vec<u8>>),
    /// Decoded when a batch needs them.
    Images(Arc<Images>),
    /// Classes of pixels, decoded when a batch needs them.
    Masks(Arc<Images>),
    /// In several files.
    Shards(Arc<Shards>),
    /// In a Parquet file.
    Table(Arc<table::Leaf>),
    /// One element of each of these, beside each other.
    Stacked(Arc<Vec<Column>>),
}

/// A tensor of a data set.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name in the file.
    pub name: String,
    /// Dtype and shape; the first dimension counts samples.
    pub ty: TensorType,
    bytes: Bytes,
}

impl Column {
    /// Row-major little-endian bytes; none of images, Parquet and several files, see [`Column::append`].
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map, range) => &map.bytes()[range.clone()],
            Bytes::Owned(bytes) => bytes,
            Bytes::Images(_) | Bytes::Masks(_) | Bytes::Shards(_) | Bytes::Table(_) | Bytes::Stacked(_) => {
                &[]
            }
        }
    }

    /// Bytes of a sample.
    fn stride(&self) -> usize {
        self.ty.shape.iter().skip(1).product::<usize>() * self.ty.dtype.size()
    }

    /// The value of a black pixel in each channel, of images.
    fn black(&self) -> Option<Vec<f64>> {
        match &self.bytes {
            Bytes::Images(images) => Some(images.black()),
            Bytes::Shards(shards) => shards.of(0).0.black(),
            Bytes::Table(leaf) => leaf.black(),
            Bytes::Mapped(..) | Bytes::Owned(_) | Bytes::Masks(_) | Bytes::Stacked(_) => None,
        }
    }

    /// Appends a sample's elements to `out`, converted to another dtype.
    ///
    /// # Errors
    /// `Data` or `Io` for an image that cannot be decoded, or a Parquet file that was changed.
    pub fn append(&self, sample: usize, to: DType, out: &mut Vec<u8>) -> Result<()> {
        let from = self.ty.dtype;
        match &self.bytes {
            Bytes::Shards(shards) => {
                let (column, sample) = shards.of(sample);
                column.append(sample, to, out)?;
            }
            Bytes::Table(leaf) => leaf.append(&self.ty, sample, to, out)?,
            Bytes::Stacked(parts) => {
                let mut values = Vec::new();
                parts.iter().try_for_each(|part| part.append(sample, from, &mut values))?;
                convert::append(from, to, &values, out);
            }
            Bytes::Masks(images) => {
                let mut values = Vec::new();
                images.append_mask(sample, &mut values)?;
                convert::append(from, to, &values, out);
            }
            Bytes::Images(images) if to == DType::F32 => images.append(sample, out)?,
            Bytes::Images(images) => {
                let mut values = Vec::new();
                images.append(sample, &mut values)?;
                convert::append(from, to, &values, out);
            }
            Bytes::Mapped(map, range) if from == to && from != DType::Bool => {
                let at = range.start + sample * self.stride();
                map.append(at..at + self.stride(), out)?;
            }
            Bytes::Mapped(map, range) => {
                let at = range.start + sample * self.stride();
                let mut bytes = Vec::new();
                map.append(at..at + self.stride(), &mut bytes)?;
                convert::append(from, to, &bytes, out);
            }
            Bytes::Owned(bytes) => {
                let at = sample * self.stride();
                let bytes = bytes.get(at..at + self.stride());
                convert::append(from, to, bytes.unwrap_or_default(), out);
            }
        }
        Ok(())
    }
}

/// The tensors of a file.
#[derive(Clone, Debug)]
pub struct Dataset {
    path: PathBuf,
    columns: Vec<Column>,
    /// None for a folder.
    files: Vec<Arc<Mapped>>,
    /// Names of the labels of texts, if these are strings.
    classes: Option<Vec<String>>,
    /// Names of the labels of a table, by column of strings.
    words: BTreeMap<String, Vec<String>>,
    /// File and line of each sample of texts.
    places: Option<Arc<text::Places>>,
    /// Columns of Parquet and Arrow files that are no tensors, and what they hold.
    others: Vec<(String, String)>,
    /// Lengths of samples that were filled up.
    lengths: Option<Lengths>,
    /// By column and dtype, a value of the column that the dtype does not hold, for those that were
    /// requested.
    lost: Arc<Mutex<BTreeMap<(usize, DType), Option<Lost>>>>,
}

/// The first value that a dtype does not hold, with its sample.
type Lost = (usize, f64);

/// Samples that are looked through at a time.
const LOOK: usize = 4096;

impl Dataset {
    /// Opens a file by its ending: `.safetensors`, `.npz` or `.npy` (one tensor, called after the file); or a
    /// folder with an `images.toml`: `images` f32 `[n, channels, height, width]`, and `labels` i64 `[n]`; or
    /// a folder with a `text.toml`: `input_ids` i32 `[n, length]`, `attention_mask` bool, `labels`; or a
    /// `.parquet`, `.arrow`, `.feather`, `.csv` or `.tsv`, or a folder of them with a `table.toml`, which is
    /// also for a file of the folder named alone. A `*` in the file's name makes one data set of all that it
    /// matches. Uncompressed tensors stay in the file and are mapped; the file must not be changed meanwhile.
    ///
    /// # Errors
    /// `Io`, or `Data` for what the file does not hold as it should.
    pub fn open(path: &Path) -> Result<Dataset> {
        Dataset::open_columns(path, &|_| true)
    }

    /// As [`Dataset::open`], for those who read some of the tensors only: a compressed one that is not read
    /// has a type, and no bytes.
    ///
    /// # Errors
    /// As [`Dataset::open`].
    pub fn open_columns(path: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Dataset> {
        if shards::is_pattern(path) {
            return Dataset::of_shards(path, wanted);
        }
        if path.join(text::FILE).is_file() {
            let texts = text::Texts::open(path)?;
            let (classes, places) = (texts.classes, texts.places.map(Arc::new));
            let (columns, lengths) = (texts.columns, texts.lengths);
            return Ok(Dataset { columns, classes, places, lengths, ..Dataset::empty(path) });
        }
        if path.join(table::FILE).is_file() {
            let (settings, files) = table::TableSettings::open(path)?;
            return Dataset::of_tables(path, files, &settings, wanted);
        }
        if path.is_dir() {
            return Dataset::of_images(path);
        }
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
        if let Some(folder) = table::folder(path) {
            let (settings, _) = table::TableSettings::open(folder)?;
            return Dataset::of_tables(path, vec![path.to_owned()], &settings, wanted);
        }
        if table::is_table(path) {
            return Dataset::of_table(path, &table::TableSettings::default(), wanted);
        }
        let map = Arc::new(Mapped::open(path)?);
        let columns = match ending.as_str() {
            "safetensors" => safetensors_columns(path, &map)?,
            "npz" => npy::npz(path, &map, wanted)?,
            "npy" => {
                let name = path.file_stem().and_then(|s| s.to_str()).unwrap_or("data").to_string();
                vec![npy::mapped(path, name, &map, 0..map.bytes().len())?]
            }
            other => {
                let message = format!(
                    "`.{other}` is no kind of data file: it must be .safetensors, .npz, .npy, .parquet, .arrow, .feather, .csv or .tsv, or a folder of images, texts or such tables"
                );
                return Err(Error::data(path, message));
            }
        };
        Ok(Dataset { columns, files: vec![map], ..Dataset::empty(path) })
    }

    fn empty(path: &Path) -> Dataset {
        Dataset {
            path: path.to_owned(),
            columns: Vec::new(),
            files: Vec::new(),
            classes: None,
            words: BTreeMap::new(),
            places: None,
            others: Vec::new(),
            lengths: None,
            lost: Arc::default(),
        }
    }

    fn of_table(
        path: &Path,
        settings: &table::TableSettings,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Dataset> {
        let map = Arc::new(Mapped::open(path)?);
        let table::Columns { columns, others, lengths } = table::columns(path, &map, settings, wanted)?;
        Ok(Dataset { columns, others, lengths, files: vec![map], ..Dataset::empty(path) })
    }

    fn of_tables(
        path: &Path,
        files: Vec<PathBuf>,
        settings: &table::TableSettings,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Dataset> {
        let sets = files.iter().map(|f| Dataset::of_table(f, settings, wanted));
        let joined = Dataset::join(path, files.clone(), sets.collect::<Result<Vec<_>>>()?)?;
        Ok(Dataset { words: settings.class_names(), ..joined })
    }

    fn of_shards(pattern: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Dataset> {
        let paths = shards::files(pattern)?;
        if let Some(folder) = paths.first().and_then(|first| table::folder(first)) {
            let (settings, _) = table::TableSettings::open(folder)?;
            return Dataset::of_tables(pattern, paths, &settings, wanted);
        }
        let sets = paths.iter().map(|p| Dataset::open_columns(p, wanted)).collect::<Result<Vec<_>>>()?;
        Dataset::join(pattern, paths, sets)
    }

    /// One data set of several, those of `paths`.
    fn join(path: &Path, paths: Vec<PathBuf>, sets: Vec<Dataset>) -> Result<Dataset> {
        let files = sets.iter().flat_map(|s| s.files.iter().cloned()).collect();
        let others = sets.first().map_or(Vec::new(), |s| s.others.clone());
        let lengths = sets.iter().map(Dataset::lengths).collect::<Option<Vec<_>>>();
        let lengths = lengths.filter(|l| !l.is_empty()).map(|all| Lengths {
            of: Arc::new(all.iter().flat_map(|l| l.of.iter().copied()).collect()),
            columns: all[0].columns.clone(),
        });
        Ok(Dataset { columns: shards::join(paths, &sets)?, files, others, lengths, ..Dataset::empty(path) })
    }

    /// The first value of a column that a dtype does not hold as it is. Samples are read once, up to it.
    fn lost(&self, column: usize, to: DType) -> Result<Option<Lost>> {
        let known = |map: &Mutex<BTreeMap<(usize, DType), Option<Lost>>>| {
            map.lock().ok().and_then(|map| map.get(&(column, to)).copied())
        };
        if let Some(lost) = known(&self.lost) {
            return Ok(lost);
        }
        let ty = &self.columns[column].ty;
        let samples = ty.shape.first().copied().unwrap_or(0);
        let (mut found, mut bytes): (Option<Lost>, Vec<u8>) = (None, Vec::new());
        for begin in (0..samples).step_by(LOOK) {
            bytes.clear();
            let end = samples.min(begin + LOOK);
            (begin..end).try_for_each(|s| self.columns[column].append(s, ty.dtype, &mut bytes))?;
            let each = ty.shape[1..].iter().product::<usize>().max(1);
            found = convert::lost(ty.dtype, to, &bytes).map(|(at, value)| (begin + at / each, value));
            if found.is_some() {
                break;
            }
        }
        if let Ok(mut map) = self.lost.lock() {
            map.insert((column, to), found);
        }
        Ok(found)
    }

    /// The contents of a column that is no tensor.
    fn other(&self, name: &str) -> Option<&str> {
        self.others.iter().find(|(n, _)| n == name).map(|(_, holds)| holds.as_str())
    }

    fn of_images(path: &Path) -> Result<Dataset> {
        let images = Arc::new(Images::open(path)?);
        let [channels, height, width] = images.shape();
        let ty = TensorType::new(DType::F32, [images.len(), channels, height, width]);
        let mut columns = Vec::new();
        if let Some(labels) = &images.labels {
            let bytes = labels.iter().flat_map(|l| l.to_le_bytes()).collect();
            let ty = TensorType::new(DType::I64, [labels.len()]);
            columns.push(Column { name: "labels".into(), ty, bytes: Bytes::Owned(Arc::new(bytes)) });
        }
        if images.masks.is_some() {
            let ty = TensorType::new(DType::U8, [images.len(), height, width]);
            columns.push(Column { name: "masks".into(), ty, bytes: Bytes::Masks(images.clone()) });
        }
        columns.insert(0, Column { name: "images".into(), ty, bytes: Bytes::Images(images) });
        Ok(Dataset { columns, ..Dataset::empty(path) })
    }

    /// Names of the classes in the order of their labels, of a folder of images or texts.
    pub fn classes(&self) -> Option<&[String]> {
        self.classes.as_deref().or_else(|| {
            self.columns.iter().find_map(|c| match &c.bytes {
                Bytes::Images(images) if !images.classes.is_empty() => Some(&images.classes[..]),
                _ => None,
            })
        })
    }

    /// Classes of this data set and of another where both name those of a column, and differently.
    pub fn other_classes<'a>(&'a self, other: &'a Dataset) -> Option<(&'a [String], &'a [String])> {
        let columns = self.words.keys().map(String::as_str).chain(["labels"]);
        let both = columns.filter_map(|c| Some((self.class_names(c)?, other.class_names(c)?)));
        both.into_iter().find(|(ours, theirs)| ours != theirs)
    }

    /// Names of the classes of a column of labels, in the order of the labels.
    pub fn class_names(&self, column: &str) -> Option<&[String]> {
        let own = || self.classes().filter(|_| ["labels", "masks"].contains(&column));
        self.words.get(column).map(Vec::as_slice).or_else(own)
    }

    /// The names of the classes of all columns that have such.
    pub fn all_classes(&self) -> BTreeMap<String, Vec<String>> {
        let named = |c: &Column| Some((c.name.clone(), self.class_names(&c.name)?.to_vec()));
        self.columns.iter().filter_map(named).collect()
    }

    /// In a sentence, a column whose labels mean other classes here than those a model was trained on;
    /// `trained` has these by column.
    pub fn unlike(&self, trained: &BTreeMap<String, Vec<String>>) -> Option<String> {
        let other = |(column, names): (&String, &Vec<String>)| {
            let here = self.class_names(column).filter(|here| *here != names.as_slice())?;
            let quoted: Vec<String> = names.iter().map(|n| format!("{n:?}")).collect();
            Some(format!(
                "the classes of {column} are {} in {}, and {} where the model was trained: their numbers are not the same. Write \
                 `classes = [{}]` into the folder's images.toml or text.toml, or below [classes] of its table.toml",
                here.join(", "),
                self.path.display(),
                names.join(", "),
                quoted.join(", ")
            ))
        };
        trained.iter().find_map(other)
    }

    /// In a sentence, what of the data set was passed over when it was opened.
    pub fn remark(&self) -> Option<String> {
        self.columns.iter().find_map(|c| match &c.bytes {
            Bytes::Images(images) => images.remark.clone(),
            _ => None,
        })
    }

    /// The file of a sample, of a folder of images; below the folder.
    pub fn sample_name(&self, sample: usize) -> Option<String> {
        self.columns.iter().find_map(|c| match &c.bytes {
            Bytes::Images(images) => {
                let file = images.file(sample);
                Some(file.strip_prefix(&self.path).unwrap_or(file).display().to_string())
            }
            _ => None,
        })
    }

    /// A sample's place, for messages: its file, or its number in the data set's.
    pub fn place(&self, column: usize, sample: usize) -> String {
        let name = &self.columns[column].name;
        if let Some(place) = self.places.as_ref().and_then(|p| p.place(sample)) {
            return format!("`{name}` of {place}");
        }
        match &self.columns[column].bytes {
            Bytes::Images(images) | Bytes::Masks(images) => images.file(sample).display().to_string(),
            Bytes::Shards(shards) => shards.place(name, sample),
            _ => format!("sample {sample} of `{}` in {}", self.columns[column].name, self.path.display()),
        }
    }

    /// The lengths of the samples, if a `text.toml` or `table.toml` has them filled up.
    pub fn lengths(&self) -> Option<&Lengths> {
        self.lengths.as_ref()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure that the files are still what was opened. Images are read when they are needed, and not
    /// watched.
    ///
    /// # Errors
    /// `Data` if it was changed, `Io`.
    pub fn unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| file.unchanged())
    }

    /// All tensors, in the file's order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// A tensor by name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|c| c.name == name)
    }
}

/// Tensors that a safetensors file may have. The `safetensors` crate takes about 1 KB for each while it
/// parses the header.
const MAX_TENSORS: usize = 1 << 17;

/// Bytes of the longest header that the `safetensors` crate reads.
const MAX_HEADER: usize = 100_000_000;

/// Number of entries in the header of a safetensors file, counted without keeping any; 0 if it is no header.
fn header_entries(bytes: &[u8]) -> usize {
    struct Entries(usize);
    impl<'de> serde::Deserialize<'de> for Entries {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
            from.deserialize_map(Entries(0))
        }
    }
    impl<'de> serde::de::Visitor<'de> for Entries {
        type Value = Entries;

        fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str("a table of tensors")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(
            mut self,
            mut map: A,
        ) -> std::result::Result<Entries, A::Error> {
            while map.next_entry::<serde::de::IgnoredAny, serde::de::IgnoredAny>()?.is_some() {
                self.0 += 1;
            }
            Ok(self)
        }
    }
    let header = bytes.split_first_chunk::<8>().and_then(|(length, rest)| {
        let length = usize::try_from(u64::from_le_bytes(*length)).ok().filter(|n| *n <= MAX_HEADER)?;
        rest.get(..length)
    });
    header.and_then(|h| serde_json::from_slice::<Entries>(h).ok()).map_or(0, |e| e.0)
}

/// A safetensors file, refused if it has far too many tensors.
///
/// # Errors
/// The fault of the file.
pub fn safetensors_file(bytes: &[u8]) -> std::result::Result<safetensors::SafeTensors<'_>, String> {
    check_entries(bytes)?;
    safetensors::SafeTensors::deserialize(bytes).map_err(|e| e.to_string())
}

/// The header of a safetensors file of which only the beginning has been read, and the offset of its end;
/// `None` if it is not complete yet. The tensors follow each other without gaps.
///
/// # Errors
/// The fault of the header.
pub(crate) fn safetensors_header(
    bytes: &[u8],
) -> std::result::Result<Option<(usize, safetensors::tensor::Metadata)>, String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return Ok(None) };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_HEADER {
        return Err(format!("its header has {length} bytes, more than {MAX_HEADER}"));
    }
    let Some(header) = rest.get(..length) else { return Ok(None) };
    check_entries(bytes)?;
    let metadata = serde_json::from_slice(header).map_err(|e| e.to_string())?;
    Ok(Some((8 + length, metadata)))
}

fn check_entries(bytes: &[u8]) -> std::result::Result<(), String> {
    let tensors = header_entries(bytes);
    if tensors > MAX_TENSORS {
        return Err(format!(
            "has {tensors} tensors, more than {MAX_TENSORS}: save samples in few tensors whose first dimension counts them"
        ));
    }
    Ok(())
}

fn safetensors_columns(path: &Path, map: &Arc<Mapped>) -> Result<Vec<Column>> {
    let file = safetensors_file(map.bytes()).map_err(|m| Error::data(path, m))?;
    let base = map.bytes().as_ptr() as usize;
    let mut columns = Vec::new();
    for (name, view) in file.tensors() {
        let dtype = from_safetensors(view.dtype()).ok_or_else(|| {
            Error::data(path, format!("tensor {name} is of dtype {:?}, which is not supported", view.dtype()))
        })?;
        let start = view.data().as_ptr() as usize - base;
        let bytes = Bytes::Mapped(map.clone(), start..start + view.data().len());
        columns.push(Column { name, ty: TensorType::new(dtype, view.shape()), bytes });
    }
    columns.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(columns)
}

/// The dtype of a safetensors file, if it is one of ours.
pub fn from_safetensors(d: safetensors::Dtype) -> Option<DType> {
    use safetensors::Dtype as S;
    Some(match d {
        S::BOOL => DType::Bool,
        S::U8 => DType::U8,
        S::I8 => DType::I8,
        S::I16 => DType::I16,
        S::I32 => DType::I32,
        S::I64 => DType::I64,
        S::F16 => DType::F16,
        S::BF16 => DType::BF16,
        S::F32 => DType::F32,
        S::F64 => DType::F64,
        _ => return None,
    })
}

/// The dtype as safetensors calls it.
pub fn to_safetensors(d: DType) -> safetensors::Dtype {
    use safetensors::Dtype as S;
    match d {
        DType::Bool => S::BOOL,
        DType::U8 => S::U8,
        DType::I8 => S::I8,
        DType::I16 => S::I16,
        DType::I32 => S::I32,
        DType::I64 => S::I64,
        DType::F16 => S::F16,
        DType::BF16 => S::BF16,
        DType::F32 => S::F32,
        DType::F64 => S::F64,
    }
}

/// A folder's entries, sorted by name; hidden ones are passed over.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = std::fs::read_dir(folder).map_err(Error::io(folder))?;
    let mut all = read.map(|e| e.map(|e| e.path()).map_err(Error::io(folder))).collect::<Result<Vec<_>>>()?;
    all.retain(|p| p.file_name().is_some_and(|n| !n.to_string_lossy().starts_with('.')));
    all.sort();
    Ok(all)
}

/// Bytes of one sample of a column; `None` for a scalar, which has no samples.
fn sample(ty: &TensorType) -> Option<(usize, Shape)> {
    let (samples, rest) = ty.shape.split_first()?;
    Some((*samples, Shape::new(rest)))
}
