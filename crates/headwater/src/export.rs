//! Trained weights in forms that other programs read: safetensors under the names that they expect, or a
//! `.pt2` that `torch.export.load` opens.

use crate::core::graph::InputRole;
use crate::core::{DType, TensorType};
use crate::infer::Raw;
use crate::model::Model;
use crate::runtime::config::InitConfig;
use crate::runtime::data::to_safetensors;
use crate::runtime::session::Weights;
use crate::weights::{Mapping, Overlay, WeightFiles};
use anyhow::{Context, Result, ensure};
use safetensors::View;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Storages in an archive begin at multiples of this, so that they can be mapped.
const ALIGNMENT: u16 = 64;

/// A file that takes its name when it is whole.
pub(crate) struct Pending {
    temporary: PathBuf,
    end: PathBuf,
}

impl Pending {
    pub(crate) fn new(end: &Path, overwrite: bool) -> Result<Pending> {
        ensure!(overwrite || !end.exists(), "{} already exists: --overwrite replaces it", end.display());
        let mut name = end.file_name().context("the output has no file name")?.to_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        Ok(Pending { temporary: end.with_file_name(name), end: end.to_owned() })
    }

    /// The file that takes the name.
    pub(crate) fn end(&self) -> &Path {
        &self.end
    }

    /// The file under its temporary name, empty.
    pub(crate) fn create(&self) -> Result<std::fs::File> {
        std::fs::File::create(&self.temporary).with_context(|| format!("cannot write {}", self.end.display()))
    }

    pub(crate) fn finish(&self) -> Result<()> {
        std::fs::rename(&self.temporary, &self.end)
            .with_context(|| format!("cannot write {}", self.end.display()))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // After a rename it no longer exists; otherwise it is half of a file. Nothing more can be done if it
        // stays.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

/// A tensor on its way into a safetensors file.
struct Out<'a>(TensorType, &'a [u8]);

impl View for Out<'_> {
    fn dtype(&self) -> safetensors::Dtype {
        to_safetensors(self.0.dtype)
    }
    fn shape(&self) -> &[usize] {
        &self.0.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.1)
    }
    fn data_len(&self) -> usize {
        self.1.len()
    }
}

/// The trained parameters of weights: those that their checkpoint names, or that the model trains.
///
/// # Errors
/// If neither says which these are.
pub fn trained(weights: &WeightFiles, model: Option<&Model>) -> Result<HashSet<String>> {
    if !weights.run.trained.is_empty() {
        return Ok(weights.run.trained.iter().cloned().collect());
    }
    let model = model.with_context(|| {
        format!(
            "{} does not say which parameters were trained, for none was frozen or it is no checkpoint: name the model with --model",
            weights.path.display()
        )
    })?;
    let bound = model.bind(&crate::import::Dims::new().or_exported())?;
    let names = bound.graph.inputs.iter().filter_map(|i| match &i.role {
        InputRole::Parameter { trainable: true, aliases } => Some(std::iter::once(&i.name).chain(aliases)),
        _ => None,
    });
    Ok(names.flatten().cloned().collect())
}

/// Writes weights to a safetensors file, those of `only` if it is given, without the prefix `strip` where a
/// name has it. Tensors keep their dtypes. Returns the names.
///
/// # Errors
/// If two names become the same, if no name has the prefix or is one of `only`, or the file exists or cannot
/// be written.
pub fn safetensors(
    weights: &WeightFiles,
    strip: &str,
    only: Option<&HashSet<String>>,
    out: &Path,
    overwrite: bool,
) -> Result<Vec<String>> {
    let pending = Pending::new(out, overwrite)?;
    let mut tensors = BTreeMap::new();
    let mut stripped = 0;
    for (name, column) in weights.tensors().filter(|(name, _)| only.is_none_or(|only| only.contains(*name))) {
        let short = name.strip_prefix(strip);
        stripped += short.is_some() as usize;
        let short = short.unwrap_or(name).to_string();
        let twice = tensors.insert(short.clone(), Out(column.ty.clone(), column.bytes()));
        ensure!(twice.is_none(), "two tensors would be called {short} without the prefix {strip}");
    }
    ensure!(!tensors.is_empty(), "{} holds none of the trained parameters", weights.path.display());
    ensure!(stripped > 0, "no tensor of {} has the prefix {strip}", weights.path.display());
    let names = tensors.keys().cloned().collect();
    // Hugging Face's loaders require this entry.
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let failed = || format!("cannot write {}", out.display());
    // The library's file is for its owner alone; this one is as readable as any that is written.
    let made = std::fs::File::create(&pending.temporary).and_then(|f| f.metadata()).with_context(failed)?;
    safetensors::serialize_to_file(tensors, Some(metadata), &pending.temporary).with_context(failed)?;
    std::fs::set_permissions(&pending.temporary, made.permissions()).with_context(failed)?;
    pending.finish()?;
    Ok(names)
}

/// Writes the model's archive with other weights in it, everything else as it is.
///
/// # Errors
/// If the weights are not those of the model (every one must be there), or the file exists or cannot be
/// written.
pub fn archive(model: &Model, weights: &WeightFiles, out: &Path, overwrite: bool) -> Result<Mapping> {
    let pending = Pending::new(out, overwrite)?;
    let bound = model.bind(&crate::import::Dims::new().or_exported())?;
    let overlay = Overlay::new(&bound, weights, &InitConfig::default())?;
    let mapping = overlay.mapping.clone();
    ensure!(mapping.missing.is_empty(), "{}", mapping.lines().join("; "));
    // The tensors of each entry: tied and strided ones share a storage.
    let mut entries: HashMap<String, Vec<String>> = HashMap::new();
    for input in &bound.graph.inputs {
        if let Ok(stored) = model.program.stored(&input.name) {
            entries.entry(stored.entry).or_default().push(input.name.clone());
        }
    }
    let failed = || format!("cannot write {}", out.display());
    let source =
        std::fs::File::open(&model.path).with_context(|| format!("cannot read {}", model.path.display()))?;
    let mut zip = ZipArchive::new(source)?;
    let mut new = ZipWriter::new(std::fs::File::create(&pending.temporary).with_context(failed)?);
    for i in 0..zip.len() {
        let entry = zip.by_index_raw(i)?;
        let name = entry.name()?.to_string();
        let within = name.split_once('/').map_or(name.as_str(), |(_, rest)| rest);
        let Some(tensors) = entries.get(within) else {
            new.raw_copy_file(entry).with_context(failed)?;
            continue;
        };
        drop(entry);
        let mut bytes = model.program.stored(&tensors[0])?.storage.to_vec();
        for tensor in tensors {
            let stored = model.program.stored(tensor)?;
            let given = overlay.bytes(tensor).with_context(|| format!("no bytes for {tensor}"))?;
            let size = stored.dtype.size();
            for (at, element) in stored.layout.offsets().into_iter().zip(given.chunks_exact(size)) {
                bytes[at as usize * size..][..size].copy_from_slice(element);
            }
        }
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(bytes.len() >= u32::MAX as usize)
            .with_alignment(ALIGNMENT);
        new.start_file(&name, options).with_context(failed)?;
        new.write_all(&bytes).with_context(failed)?;
    }
    new.finish().with_context(failed)?.sync_all().with_context(failed)?;
    pending.finish()?;
    Ok(mapping)
}

/// Writes the outputs of a model sample by sample as they come: each one tensor `[samples, …]` of a
/// safetensors file.
pub struct Predictions {
    pending: Pending,
    names: Vec<String>,
    /// For each output its type for all samples, and a file of its bytes so far.
    parts: Vec<(TensorType, std::fs::File, PathBuf)>,
}

impl Predictions {
    /// Begins a file for these outputs.
    ///
    /// # Errors
    /// If it exists, or is neither `.safetensors` nor `.npz`.
    pub fn new(out: &Path, overwrite: bool, names: Vec<String>) -> Result<Predictions> {
        let ending = out.extension().and_then(|e| e.to_str());
        ensure!(
            matches!(ending, Some("safetensors" | "npz")),
            "{}: tensors are written as .safetensors or .npz, predictions also as .csv, .tsv or .parquet",
            out.display()
        );
        Ok(Predictions { pending: Pending::new(out, overwrite)?, names, parts: Vec::new() })
    }

    /// Adds the outputs of a batch of `samples`.
    ///
    /// # Errors
    /// If an output is not one value a sample, or the disk refuses.
    pub fn add(&mut self, samples: usize, outputs: &[Raw]) -> Result<()> {
        // NumPy has no bf16; f32 has all of its numbers.
        let npz = self.pending.end.extension().is_some_and(|e| e == "npz");
        for (i, raw) in outputs.iter().enumerate() {
            let wide = (npz && raw.ty.dtype == DType::BF16).then(|| {
                let t = raw.tensor().cast(DType::F32);
                Raw { bytes: t.to_bytes(), ty: t.ty }
            });
            let (Raw { ty: own, bytes }, name) = (wide.as_ref().unwrap_or(raw), &self.names[i]);
            let first = own.shape.first().copied();
            ensure!(
                first == Some(samples),
                "{name} is {own}, not one value for each of {samples} samples: choose others with --outputs"
            );
            if self.parts.len() == i {
                let path = self.pending.temporary.with_extension(format!("{i}.part"));
                let file = std::fs::File::create(&path)
                    .with_context(|| format!("cannot write {}", self.pending.end.display()))?;
                let ty = TensorType::new(own.dtype, with_first(&own.shape, 0));
                self.parts.push((ty, file, path));
            }
            let (ty, file, path) = &mut self.parts[i];
            ensure!(ty.shape[1..] == own.shape[1..], "{name} changes its shape from batch to batch");
            file.write_all(bytes).with_context(|| format!("cannot write {}", path.display()))?;
            ty.shape = with_first(&ty.shape, ty.shape[0] + samples).into();
        }
        Ok(())
    }

    /// Completes the file. Returns names and types.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn finish(mut self) -> Result<Vec<(String, TensorType)>> {
        let failed = || format!("cannot write {}", self.pending.end.display());
        let npz = self.pending.end.extension().is_some_and(|e| e == "npz");
        let file = std::fs::File::create(&self.pending.temporary).with_context(failed)?;
        let mut out = std::io::BufWriter::new(file);
        if npz {
            let mut zip = ZipWriter::new(&mut out);
            for (name, (ty, _, path)) in self.names.iter().zip(&self.parts) {
                let options = SimpleFileOptions::default()
                    .compression_method(CompressionMethod::Stored)
                    .large_file(ty.bytes() >= u32::MAX as usize);
                zip.start_file(format!("{name}.npy"), options).with_context(failed)?;
                zip.write_all(&npy_head(ty)).with_context(failed)?;
                std::io::copy(&mut std::fs::File::open(path)?, &mut zip).with_context(failed)?;
            }
            zip.finish().with_context(failed)?;
        } else {
            let mut at = 0;
            let mut head = serde_json::Map::new();
            for (name, (ty, ..)) in self.names.iter().zip(&self.parts) {
                let dtype = serde_json::to_value(to_safetensors(ty.dtype))?;
                let entry = serde_json::json!({
                    "dtype": dtype, "shape": ty.shape.to_vec(), "data_offsets": [at, at + ty.bytes()],
                });
                head.insert(name.clone(), entry);
                at += ty.bytes();
            }
            let mut head = serde_json::to_vec(&head)?;
            head.resize(head.len().next_multiple_of(8), b' ');
            out.write_all(&(head.len() as u64).to_le_bytes()).with_context(failed)?;
            out.write_all(&head).with_context(failed)?;
            for (_, _, path) in &self.parts {
                std::io::copy(&mut std::fs::File::open(path)?, &mut out).with_context(failed)?;
            }
        }
        out.flush().with_context(failed)?;
        self.pending.finish()?;
        let types: Vec<TensorType> = self.parts.iter().map(|(ty, ..)| ty.clone()).collect();
        Ok(std::mem::take(&mut self.names).into_iter().zip(types).collect())
    }
}

impl Drop for Predictions {
    fn drop(&mut self) {
        // Parts are of no use without the whole.
        self.parts.iter().for_each(|(_, _, path)| drop(std::fs::remove_file(path)));
    }
}

/// A shape with another first dimension.
fn with_first(shape: &[usize], first: usize) -> Vec<usize> {
    std::iter::once(first).chain(shape[1..].iter().copied()).collect()
}

/// The head of an `.npy` file, version 1.0.
fn npy_head(ty: &TensorType) -> Vec<u8> {
    let descr = match ty.dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 | DType::BF16 => "<f4",
        DType::F64 => "<f8",
    };
    let shape: String = ty.shape.iter().map(|n| format!("{n}, ")).collect();
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The data begin at a multiple of 64.
    let whole = (10 + text.len() + 1).next_multiple_of(64);
    text.extend(std::iter::repeat_n(' ', whole - 11 - text.len()));
    text.push('\n');
    let mut head = b"\x93NUMPY\x01\x00".to_vec();
    head.extend((text.len() as u16).to_le_bytes());
    head.extend(text.as_bytes());
    head
}
