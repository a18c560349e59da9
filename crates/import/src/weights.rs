//! Tensors of state: views of raw little-endian storages in the archive, or of memory that the caller keeps.

use crate::archive::{AGAIN, Archive, Bytes};
use crate::error::{Result, refuse, shown};
use crate::schema::{self, Payload, Payloads, SymInt, TensorMeta};
use headwater_core::{DType, Layout, Shape};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes that a tensor may have beyond [`EXPAND_RATIO`] times its storage (stored `expand`s repeat elements).
const EXPAND_BASE: usize = 1 << 20;
const EXPAND_RATIO: usize = 64;

/// A tensor of the archive: a layout over a storage. Cheap to clone; the bytes stay in the memory map.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// Element type. Complex numbers are pairs of floats in a last dimension of 2.
    pub dtype: DType,
    /// Layout of the elements in `storage`, in elements; all are within it.
    pub layout: Layout,
    /// The storage, shared by tensors that share memory.
    pub storage: Bytes,
    /// Entry of the archive that the storage is.
    pub entry: String,
}

impl StoredTensor {
    /// The elements in row-major order if they are stored so, without a copy.
    pub fn contiguous(&self) -> Option<&[u8]> {
        if !self.layout.is_contiguous() {
            return None;
        }
        // Within the storage: checked on construction.
        let start = self.layout.offset as usize * self.dtype.size();
        self.storage.get(start..start + self.layout.shape.numel() * self.dtype.size())
    }

    /// The elements in row-major order, little-endian. A bool is 0 or 1 whatever byte is stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = match self.contiguous() {
            Some(bytes) => bytes.to_vec(),
            None => {
                let size = self.dtype.size();
                let mut out = Vec::with_capacity(self.layout.shape.numel() * size);
                for at in walk(&self.layout) {
                    let at = at as usize * size;
                    out.extend_from_slice(&self.storage[at..at + size]);
                }
                out
            }
        };
        if self.dtype == DType::Bool {
            out.iter_mut().for_each(|b| *b = (*b != 0) as u8);
        }
        out
    }

    /// First and one past the last byte of the storage that the tensor uses.
    pub fn extent(&self) -> (usize, usize) {
        extent(self.dtype, &self.layout)
    }
}

/// A tensor whose memory the caller keeps.
#[derive(Debug, Clone)]
pub struct GivenTensor {
    /// PyTorch name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Layout of the elements in the storage, in elements.
    pub layout: Layout,
    /// Identity of the storage, such as its address: tensors with the same one share memory.
    pub storage: u64,
    /// Size of the storage in bytes.
    pub storage_bytes: usize,
}

/// The place of a tensor in a storage. Every element is within it.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub dtype: DType,
    pub layout: Layout,
    /// Identity of the storage.
    pub storage: String,
    /// Bytes of the storage.
    pub length: usize,
}

impl Placed {
    /// True if this is the same memory seen in the same way: a tied weight.
    pub fn same_as(&self, other: &Placed) -> bool {
        self.storage == other.storage && self.dtype == other.dtype && self.layout == other.layout
    }

    /// First and one past the last byte of the storage that the tensor uses.
    pub fn extent(&self) -> (usize, usize) {
        extent(self.dtype, &self.layout)
    }

    /// # Errors
    /// `Weights` if an element is outside of the storage.
    fn given(tensor: GivenTensor) -> Result<Placed> {
        let GivenTensor { name, dtype, layout, storage, storage_bytes: length } = tensor;
        let bad = |what: String| refuse!(Weights, "tensor `{}`: {what}", shown(&name));
        if layout.shape.rank() != layout.strides.len() {
            return Err(bad(format!("{} has {} strides", layout.shape, layout.strides.len())));
        }
        let strides = layout.strides.iter().map(|&s| usize::try_from(s)).collect::<Result<Vec<_>, _>>();
        let (Ok(strides), Ok(offset)) = (strides, usize::try_from(layout.offset)) else {
            return Err(bad("strides and offset must not be negative".into()));
        };
        check_extent(dtype, dtype.size(), &layout.shape, &strides, offset, length).map_err(bad)?;
        // As for stored ones: nothing is asked of the offset and the strides of no elements.
        let layout = if layout.shape.contains(&0) { Layout::contiguous(&layout.shape) } else { layout };
        Ok(Placed { dtype, layout, storage: storage.to_string(), length })
    }
}

fn extent(dtype: DType, layout: &Layout) -> (usize, usize) {
    let strided = layout.shape.iter().zip(&layout.strides);
    let last: usize = strided.map(|(&d, &s)| d.saturating_sub(1) * s as usize).sum();
    let (start, size) = (layout.offset as usize, dtype.size());
    let elements = if layout.shape.numel() == 0 { 0 } else { last + 1 };
    (start * size, (start + elements) * size)
}

/// The parameters, buffers and constants of a program.
#[derive(Debug)]
pub(crate) enum Tensors {
    /// The weights of an archive.
    Stored(Arc<Archive>, Weights),
    /// In memory that the caller keeps, by name.
    Given(HashMap<String, Placed>),
}

impl Tensors {
    /// Tensors that the caller keeps.
    ///
    /// # Errors
    /// `Name` for two of one name, `Weights` for one that exceeds its storage.
    pub fn given(tensors: impl IntoIterator<Item = GivenTensor>) -> Result<Tensors> {
        let mut given = HashMap::new();
        for tensor in tensors {
            let name = tensor.name.clone();
            if given.insert(name.clone(), Placed::given(tensor)?).is_some() {
                return Err(refuse!(Name, "two tensors named `{}` were given", shown(&name)));
            }
        }
        Ok(Tensors::Given(given))
    }

    /// The place of a tensor, and its content where the program has that.
    ///
    /// # Errors
    /// `Missing`, `Pickle`, `DType`, `Weights`.
    pub fn find(&self, name: &str) -> Result<(Placed, Option<StoredTensor>)> {
        match self {
            Tensors::Stored(archive, weights) => {
                let stored = weights.get(archive, name)?;
                let (dtype, layout) = (stored.dtype, stored.layout.clone());
                let (storage, length) = (stored.entry.clone(), stored.storage.len());
                Ok((Placed { dtype, layout, storage, length }, Some(stored)))
            }
            Tensors::Given(given) => {
                let placed = given.get(name);
                let none = || refuse!(Missing, "no tensor named `{}` was given", shown(name));
                Ok((placed.ok_or_else(none)?.clone(), None))
            }
        }
    }

    /// Refuses tensors whose total is out of proportion to the file, or to the storages: each may repeat
    /// elements and be compressed.
    ///
    /// # Errors
    /// `Budget`.
    pub fn check_total<'a>(&self, tensors: impl Iterator<Item = &'a Placed> + Clone) -> Result<()> {
        let held = match self {
            Tensors::Stored(archive, _) => archive.file_bytes(),
            Tensors::Given(_) => {
                let storages: HashMap<&str, usize> =
                    tensors.clone().map(|t| (&t.storage[..], t.length)).collect();
                storages.into_values().fold(0, usize::saturating_add)
            }
        };
        let of = |t: &Placed| t.layout.shape.numel().saturating_mul(t.dtype.size());
        let total = tensors.map(of).fold(0, usize::saturating_add);
        if total > held.saturating_mul(EXPAND_RATIO).saturating_add(TOTAL_BASE) {
            return Err(refuse!(
                Budget,
                "the tensors have {total} bytes, out of proportion to the {held} that hold them; store them uncompressed, without \
                 `expand`"
            ));
        }
        Ok(())
    }
}

/// The parameters, buffers and constants of an archive, by name. Tensors are read on demand.
#[derive(Debug)]
pub struct Weights {
    payloads: HashMap<String, (&'static str, Payload)>,
}

impl Weights {
    /// Reads the weights' and constants' configurations of a model.
    pub(crate) fn read(archive: &Archive, model: &str) -> Result<Self> {
        let mut payloads = HashMap::new();
        for folder in ["data/weights/", "data/constants/"] {
            let kind = folder.trim_start_matches("data/").trim_end_matches('/');
            let name = format!("{folder}{model}_{kind}_config.json");
            // A model without constants may lack that configuration.
            if !archive.contains(&name) {
                if archive.contains(&format!("{folder}{model}.pt")) {
                    let what = "PyTorch 2.8 has written this archive, with its tensors as pickles";
                    return Err(refuse!(Version, "{what}: {AGAIN}"));
                }
                continue;
            }
            let config: Payloads = archive.json(&name)?;
            for (key, payload) in config.config.0 {
                // PyTorch looks weights up first; a constant of the same name is another object.
                payloads.entry(key).or_insert((folder, payload));
            }
        }
        Ok(Weights { payloads })
    }

    /// The tensor stored under a name.
    ///
    /// # Errors
    /// `Missing`, `Pickle`, `DType`, `Weights`.
    pub fn get(&self, archive: &Archive, name: &str) -> Result<StoredTensor> {
        let (folder, payload) = self
            .payloads
            .get(name)
            .ok_or_else(|| refuse!(Missing, "the archive stores no tensor named `{}`", shown(name)))?;
        let Some(meta) = payload.tensor_meta.as_ref().filter(|_| !payload.use_pickle) else {
            return Err(refuse!(
                Pickle,
                "`{}` is stored as a pickle, which is never opened; export plain tensors",
                shown(name)
            ));
        };
        if payload.path_name.contains('/') {
            return Err(refuse!(Entries, "`{}` is not the name of a storage", shown(&payload.path_name)));
        }
        let entry = format!("{folder}{}", payload.path_name);
        stored(archive, entry, meta, name)
    }

    /// Reads every storage through and compares checksums.
    ///
    /// # Errors
    /// `Missing`, `Unpack`.
    pub fn verify(&self, archive: &Archive) -> Result<()> {
        let mut entries: Vec<_> =
            self.payloads.values().map(|(f, p)| format!("{f}{}", p.path_name)).collect();
        entries.sort_unstable();
        entries.dedup();
        entries.iter().try_for_each(|e| archive.verify(e))
    }
}

/// As [`Layout::offsets`], lazily: a stored `expand` may have far more elements than bytes.
pub(crate) fn walk(layout: &Layout) -> impl Iterator<Item = isize> + '_ {
    let mut index = vec![0usize; layout.shape.rank()];
    let mut next = (layout.shape.numel() > 0).then_some(layout.offset);
    std::iter::from_fn(move || {
        let at = next?;
        let mut to = at;
        next = (0..index.len()).rev().find_map(|d| {
            index[d] += 1;
            to += layout.strides[d];
            if index[d] < layout.shape[d] {
                return Some(to);
            }
            to -= layout.strides[d] * layout.shape[d] as isize;
            index[d] = 0;
            None
        });
        Some(at)
    })
}

/// Bytes that all tensors of a model may have beyond [`EXPAND_RATIO`] times the size of what holds them.
const TOTAL_BASE: usize = 64 << 20;

/// A plain size or stride.
fn fixed(x: &SymInt) -> Option<usize> {
    match x {
        SymInt::AsInt(i) => usize::try_from(*i).ok(),
        SymInt::AsExpr(_) => None,
    }
}

fn stored(archive: &Archive, entry: String, meta: &TensorMeta, name: &str) -> Result<StoredTensor> {
    let bad = |what: String| refuse!(Weights, "stored tensor `{}`: {what}", shown(name));
    let Element { dtype, complex } = element(meta, name)?;
    let unit = if complex { 2 * dtype.size() } else { dtype.size() };
    if meta.sizes.len() != meta.strides.len() {
        return Err(bad(format!("{} sizes but {} strides", meta.sizes.len(), meta.strides.len())));
    }
    let all = |v: &[SymInt]| v.iter().map(fixed).collect::<Option<Vec<_>>>();
    let (Some(sizes), Some(strides), Some(offset)) =
        (all(&meta.sizes), all(&meta.strides), fixed(&meta.storage_offset))
    else {
        return Err(bad("sizes, strides and offset must be plain numbers that are not negative".into()));
    };
    let shape = Shape::from(sizes);
    let length = usize::try_from(archive.size(&entry)?).map_err(|_| bad("storage too large".into()))?;
    check_extent(dtype, unit, &shape, &strides, offset, length).map_err(bad)?;
    let strides = strides.iter().map(|&s| s as isize).collect();
    let offset = if shape.contains(&0) { 0 } else { offset as isize };
    let mut layout = Layout { shape, strides, offset };
    if complex {
        let pairs = pairs(&layout);
        layout = pairs.ok_or_else(|| bad(format!("{} is larger than memory can be", layout.shape)))?;
    }
    let storage = archive.entry(&entry)?;
    Ok(StoredTensor { dtype, layout, storage, entry })
}

/// Refuses elements of `unit` bytes that are not all within a storage of `length` bytes, or are out of
/// proportion to it.
fn check_extent(
    dtype: DType,
    unit: usize,
    shape: &Shape,
    strides: &[usize],
    offset: usize,
    length: usize,
) -> Result<(), String> {
    // One past the last element, in elements; nothing is needed of the storage if there are no elements.
    let end = if shape.contains(&0) {
        Some(0)
    } else {
        shape
            .iter()
            .zip(strides)
            .try_fold(offset, |end, (&d, &s)| end.checked_add((d - 1).checked_mul(s)?))
            .and_then(|last| last.checked_add(1))
    };
    let bytes = shape.checked_numel().and_then(|n| n.checked_mul(unit));
    let (Some(end), Some(bytes)) = (end.and_then(|e| e.checked_mul(unit)), bytes) else {
        return Err(format!("{shape} is larger than memory can be"));
    };
    if end > length {
        return Err(format!("{dtype}{shape} needs {end} bytes of a storage of {length}"));
    }
    if bytes > length.saturating_mul(EXPAND_RATIO).saturating_add(EXPAND_BASE) {
        return Err(format!("{dtype}{shape} has {bytes} bytes, out of proportion to {length} stored"));
    }
    Ok(())
}

/// The layout of complex numbers as pairs of real ones: a last dimension of 2. `None` if it reaches beyond
/// memory.
pub(crate) fn pairs(layout: &Layout) -> Option<Layout> {
    let twice = |s: &isize| s.checked_mul(2);
    Some(Layout {
        shape: layout.shape.iter().copied().chain([2]).collect(),
        strides: layout.strides.iter().map(twice).chain([Some(1)]).collect::<Option<_>>()?,
        offset: twice(&layout.offset)?,
    })
}

/// The kind of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Element {
    /// Dtype of a number.
    pub dtype: DType,
    /// An element is a pair of numbers: real and imaginary part.
    pub complex: bool,
}

/// The element type that metadata names.
///
/// # Errors
/// `DType`: unknown, not supported, or not a dense tensor.
pub(crate) fn element(meta: &TensorMeta, name: &str) -> Result<Element> {
    if meta.layout != schema::STRIDED {
        return Err(refuse!(DType, "`{}` is not a dense tensor (layout {})", shown(name), meta.layout));
    }
    element_of(meta.dtype).map_err(|what| refuse!(DType, "`{}` is of {what}", shown(name)))
}

/// True for the codes of PyTorch's `ScalarType` that are of complex numbers.
pub(crate) fn is_complex(code: u64) -> bool {
    matches!(code, 9..=11)
}

/// The element type of a code of PyTorch's `ScalarType`, or a word for what it stands for.
pub(crate) fn element_of(code: u64) -> Result<Element, String> {
    let dtype = match code {
        1 => DType::U8,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 | 9 => DType::F16,
        7 | 10 => DType::F32,
        8 | 11 => DType::F64,
        12 => DType::Bool,
        13 => DType::BF16,
        28 | 34 | 35 => return Err("an unsigned 16-, 32- or 64-bit dtype, which is not supported".into()),
        29..=33 => return Err("an 8-bit floating-point dtype, which is not supported".into()),
        _ => return Err(format!("an unknown dtype (code {code})")),
    };
    Ok(Element { dtype, complex: is_complex(code) })
}

/// As [`element_of`], of real numbers alone.
pub(crate) fn dtype_of(code: u64) -> Result<DType, String> {
    match element_of(code)? {
        Element { dtype, complex: false } => Ok(dtype),
        _ => Err("a complex dtype, which is not supported here".into()),
    }
}
