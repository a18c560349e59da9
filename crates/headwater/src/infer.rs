//! Forward runs of a model over a data file, batch by batch, for `eval` and `predict`.

use crate::core::device::Device;
use crate::core::graph::{InputRole, OutputRole};
use crate::core::{Graph, Tensor, TensorType};
use crate::import::Dims;
use crate::model::Model;
use crate::runtime::Dataset;
use crate::runtime::config::{DataConfig, InitConfig};
use crate::runtime::data::{Feeding, LastBatch, Loader, Order, Shapes, located};
use crate::runtime::session::{ProgramId, Session, SessionModel};
use crate::weights::{Mapping, Overlay, WeightFiles};
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Samples in a batch of a model that takes any number, where none is requested.
const BATCH: usize = 32;

/// The request.
#[derive(Clone, Debug, Default)]
pub struct InferRequest {
    /// Samples in a batch; by default as exported, or 32 where the model takes any number.
    pub batch: Option<usize>,
    /// Tensor of the file for each input of the model that is called differently, and buckets of length.
    pub data: DataConfig,
    /// Requested outputs, by position; none: all.
    pub outputs: Option<Vec<usize>>,
    /// True if outputs go to a file. Samples that fill no batch of a fixed size are then run beside repeated
    /// ones, rather than left out, and outputs of shorter batches are filled up with zeros.
    pub whole: bool,
    /// Weights in place of the archive's.
    pub weights: Option<InitConfig>,
    /// True if weights may lack tensors of the model: those of the archive replace them.
    pub partial: bool,
    /// True for the average of the weights that their run kept, rather than the weights themselves.
    pub average: bool,
}

/// A tensor as row-major little-endian bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw {
    /// Dtype and shape.
    pub ty: TensorType,
    /// The elements.
    pub bytes: Vec<u8>,
}

impl Raw {
    /// The numbers.
    pub fn tensor(&self) -> Tensor {
        Tensor::from_bytes(&self.ty, &self.bytes)
    }
}

/// A batch that was run.
pub struct Ran<'a> {
    /// The data set, and the number of the first of its samples.
    pub data: &'a Dataset,
    /// See `data`.
    pub first: usize,
    /// Samples in it.
    pub samples: usize,
    /// Tensors that were fed, by input; inputs that no requested output depends on are left out.
    pub inputs: BTreeMap<&'a str, Raw>,
    /// Requested outputs, in order.
    pub outputs: Vec<Raw>,
    /// Names of classes, by column: those that the weights were trained on, or else the data's.
    pub classes: &'a BTreeMap<String, Vec<String>>,
}

/// Summary of a run.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Samples that were run.
    pub samples: usize,
    /// Samples that were left out because they fill no batch.
    pub left_out: usize,
    /// Source of the weights, if not the archive.
    pub mapping: Option<Mapping>,
    /// In a sentence for people, which of a checkpoint's weights they are.
    pub chosen: Option<String>,
    /// Names of classes, by the column of the data that has labels of them: those that the weights were
    /// trained on, or else the data's.
    pub classes: BTreeMap<String, Vec<String>>,
    /// In a sentence for people, what of the data set was passed over.
    pub remark: Option<String>,
}

impl Done {
    /// Data and weights in sentences for people; nothing for the archive's weights.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let remark = self.remark.iter().map(|r| format!("note: {r}"));
        let mapped = self.mapping.iter().flat_map(|m| m.lines());
        remark.chain(self.chosen.clone()).chain(mapped)
    }
}

/// Runs the samples of a file, in its order, in evaluation mode, and hands each batch to `each`.
///
/// # Errors
/// Refusals of model, weights, data and device; errors of `each`.
pub fn run(
    model: &Model,
    dims: Dims,
    data: &Path,
    asked: &InferRequest,
    device: Arc<dyn Device>,
    each: &mut dyn FnMut(Ran) -> Result<()>,
) -> Result<Done> {
    let data = Arc::new(Dataset::open(data)?);
    let exported = model.bind(&dims.clone().or_exported())?;
    let inputs = used(&exported.graph, &data, asked)?;
    let given = inputs.first().and_then(|(_, ty)| ty.shape.first()).copied().unwrap_or(0);
    let rebound = |shapes: &Shapes| -> Result<Graph> {
        Ok(model.bind(&model.shaped(dims.clone(), shapes)?.or_exported())?.graph)
    };
    let types = |shapes: &Shapes| {
        let graph = rebound(shapes).map_err(|e| crate::runtime::Error::Rebind {
            batch: shapes.batch,
            cause: format!("{e:#}").into(),
        })?;
        let users = graph.inputs.iter().filter(|i| i.role == InputRole::User);
        let types = users.map(|i| (i.name.clone(), graph.ty(i.value).clone()));
        Ok(types.filter(|(name, _)| inputs.iter().any(|(n, _)| n == name)).collect())
    };
    // The batch of the export is an example's where the model takes any number.
    let any = asked.batch.is_none() && model.batch(dims.clone(), given).is_ok();
    let feeding = Feeding::new(data.clone(), &asked.data, &inputs, asked.batch, &types)?;
    let samples = feeding.samples();
    let feeding = if any { feeding.with_batch(BATCH.min(samples)) } else { feeding };
    let batch = feeding.batch();
    ensure!(batch > 0 && samples > 0, "{} holds no samples", data.path().display());
    let files = asked.weights.as_ref().and_then(|w| w.weights.as_deref());
    let files = files.map(|path| WeightFiles::choose(path, asked.average)).transpose()?;
    let overlay = match (&files, &asked.weights) {
        (Some(files), Some(init)) => Overlay::new(&exported, files, init)?,
        _ => Overlay::none(&exported),
    };
    let missing = &overlay.mapping.missing;
    ensure!(
        asked.partial || missing.is_empty(),
        "{} of the model's {} tensors are not in {}: {}; what the archive holds would stand in for them. Name all weights, map names \
         that differ with `names` under [init] in a settings file of `train`, or say --partial if the archive's are meant",
        missing.len(),
        missing.len() + overlay.mapping.taken,
        overlay.mapping.source.display(),
        overlay.mapping.lines()[1]
    );
    if files.is_none() || !overlay.mapping.missing.is_empty() {
        model.verify()?;
    }
    let graph = rebound(&feeding.largest())?;
    let full: Vec<Vec<usize>> = {
        let graph = selected(graph.clone(), asked)?;
        graph.outputs.iter().map(|o| graph.ty(o.value).shape.to_vec()).collect()
    };
    let mut session = Session::new(device, SessionModel { graph: &graph, weights: &overlay }, None)?;
    model.release();
    let mut programs: HashMap<Shapes, ProgramId> = HashMap::new();
    let rest = samples % batch;
    let fits = rest == 0 || rebound(&feeding.largest().with_batch(rest)).is_ok();
    let mapping = files.is_some().then(|| overlay.mapping.clone());
    let chosen = files.as_ref().and_then(WeightFiles::chosen);
    let trained = files.as_ref().map(|f| f.run.classes.clone()).unwrap_or_default();
    // Classes that a requested output depends on must be those of training; others need no names.
    let column = |input: &str| asked.data.names.get(input).map_or(input.to_string(), String::clone);
    let needed = wanted(&exported.graph, asked)?.into_iter().filter(|(_, _, needed)| *needed);
    let needed: HashSet<String> = needed.map(|(name, ..)| column(&name)).collect();
    let labels = trained.iter().filter(|(c, _)| needed.contains(*c)).map(|(c, n)| (c.clone(), n.clone()));
    if let Some(message) = data.unlike(&labels.collect()) {
        return Err(crate::runtime::Error::Feed(message).into());
    }
    let mut classes = data.all_classes();
    classes.extend(trained);
    let mut done =
        Done { mapping, chosen, classes: classes.clone(), remark: data.remark(), ..Done::default() };
    ensure!(
        samples >= batch || fits || asked.whole,
        "{} has {samples} samples, which do not fill a batch of {batch}, and the model takes no other",
        data.path().display()
    );
    let mut parts = Vec::new();
    if samples >= batch || fits {
        let last = if fits { LastBatch::Keep } else { LastBatch::Drop };
        parts.push((feeding.sampler(Order::Sequential, last)?, None));
    }
    if !fits && asked.whole {
        // The last samples, and the very last one again until the batch is full.
        let indices = (0..batch).map(|i| (samples - rest + i).min(samples - 1) as u32).collect();
        let order = Order::Recorded { indices: Arc::new(indices) };
        parts.push((feeding.sampler(order, LastBatch::Keep)?, Some(rest)));
    }
    for (mut sampler, count) in parts {
        let batches = sampler.per_epoch() as usize;
        for b in Loader::new(feeding.clone(), sampler.clone(), 0)?.take(batches) {
            let b = b?;
            let fed = feeding.feeds(b.bucket);
            let shapes = feeding.shapes(b.bucket, b.samples);
            let program = match programs.get(&shapes) {
                Some(&program) => program,
                None => {
                    let graph = selected(rebound(&shapes)?, asked)?;
                    let program = session.evaluation_program(&graph)?;
                    *programs.entry(shapes).or_insert(program)
                }
            };
            let types: Vec<(String, TensorType)> =
                session.inputs(program).map(|(n, t)| (n.to_string(), t.clone())).collect();
            let bytes = types.iter().map(|(name, ty)| {
                let given = fed.iter().position(|f| f.input == *name);
                given.map_or_else(|| vec![0; ty.bytes()], |i| b.inputs[i].clone())
            });
            session.set_rng(0, b.index)?;
            session
                .evaluate(program, &bytes.collect::<Vec<_>>())
                .map_err(|e| located(e, &feeding, &b, &sampler.batch(b.index).unwrap_or_default()))?;
            let samples = count.unwrap_or(b.samples);
            let inputs = fed.iter().zip(&b.inputs).filter_map(|(f, bytes)| {
                let (name, ty) = types.iter().find(|(n, _)| *n == f.input)?;
                Some((name.as_str(), cut(Raw { ty: ty.clone(), bytes: bytes.clone() }, b.samples, samples)))
            });
            let inputs = inputs.collect();
            let outputs = (0..session.outputs(program).count()).map(|i| {
                let (ty, bytes) = session.raw_output(program, i)?;
                let raw = cut(Raw { ty: ty.clone(), bytes }, b.samples, samples);
                Ok(if asked.whole { filled(raw, &full[i]) } else { raw })
            });
            let outputs = outputs.collect::<Result<_>>()?;
            each(Ran { data: &data, first: done.samples, samples, inputs, outputs, classes: &classes })?;
            done.samples += samples;
        }
    }
    done.left_out = samples - done.samples;
    Ok(done)
}

/// The first `samples` of a tensor that has `batch`.
fn cut(raw: Raw, batch: usize, samples: usize) -> Raw {
    if samples == batch || raw.ty.shape.first() != Some(&batch) {
        return raw;
    }
    let mut shape = raw.ty.shape.to_vec();
    shape[0] = samples;
    let (ty, mut bytes) = (TensorType::new(raw.ty.dtype, shape), raw.bytes);
    bytes.truncate(ty.bytes());
    Raw { ty, bytes }
}

/// A batch of samples that are as large as those of `full`, of which it may have a first part in each
/// dimension; zeros after it.
fn filled(raw: Raw, full: &[usize]) -> Raw {
    let shape = raw.ty.shape.to_vec();
    if shape.len() != full.len() || shape.is_empty() || shape[1..] == full[1..] {
        return raw;
    }
    let all: Vec<usize> = std::iter::once(shape[0]).chain(full[1..].iter().copied()).collect();
    let size = raw.ty.dtype.size();
    let row = shape[shape.len() - 1];
    let mut out = vec![0; all.iter().product::<usize>() * size];
    let mut index = vec![0; shape.len()];
    for source in raw.bytes.chunks_exact((row * size).max(1)) {
        let at = index.iter().zip(&all).fold(0, |at, (i, n)| at * n + i) * size;
        out[at..at + source.len()].copy_from_slice(source);
        for d in (0..shape.len() - 1).rev() {
            index[d] += 1;
            if index[d] < shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
    Raw { ty: TensorType::new(raw.ty.dtype, all), bytes: out }
}

/// The graph with the requested outputs alone.
fn selected(mut graph: Graph, asked: &InferRequest) -> Result<Graph> {
    graph.outputs.retain(|o| o.role == OutputRole::User);
    if let Some(wanted) = &asked.outputs {
        let all = graph.outputs.clone();
        graph.outputs = wanted
            .iter()
            .map(|&i| {
                let o = all.get(i).cloned();
                o.with_context(|| format!("the model has no output {i}: it returns {} values", all.len()))
            })
            .collect::<Result<_>>()?;
    }
    Ok(graph)
}

/// User inputs with their types, and whether a requested output depends on them.
fn wanted(graph: &Graph, asked: &InferRequest) -> Result<Vec<(String, TensorType, bool)>> {
    let graph = selected(graph.clone(), asked)?;
    let mut needed: HashSet<u32> = graph.outputs.iter().map(|o| o.value.0).collect();
    for node in graph.nodes.iter().rev() {
        if node.outputs.iter().any(|v| needed.contains(&v.0)) {
            needed.extend(node.operands().map(|v| v.0));
        }
    }
    let users = graph.inputs.iter().filter(|i| i.role == InputRole::User);
    Ok(users.map(|i| (i.name.clone(), graph.ty(i.value).clone(), needed.contains(&i.value.0))).collect())
}

/// Inputs that are fed: those that are needed, and others that the file has.
fn used(graph: &Graph, data: &Dataset, asked: &InferRequest) -> Result<Vec<(String, TensorType)>> {
    let there = |name: &String| data.column(asked.data.names.get(name).unwrap_or(name)).is_some();
    let used = wanted(graph, asked)?.into_iter().filter(|(name, _, needed)| *needed || there(name));
    Ok(used.map(|(name, ty, _)| (name, ty)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::DType;

    #[test]
    fn shorter_outputs_are_filled_up_with_zeros() {
        let t = Tensor::float(DType::F32, [2, 2, 2], (1..=8).map(f64::from).collect());
        let raw = Raw { ty: t.ty.clone(), bytes: t.to_bytes() };
        let long = filled(raw.clone(), &[9, 3, 2]);
        assert_eq!(long.ty.shape[..], [2, 3, 2]);
        assert_eq!(long.tensor().floats(), [1., 2., 3., 4., 0., 0., 5., 6., 7., 8., 0., 0.]);
        let square = filled(raw.clone(), &[9, 3, 3]);
        assert_eq!(square.tensor().floats()[..9], [1., 2., 0., 3., 4., 0., 0., 0., 0.]);
        assert_eq!(filled(raw.clone(), &[9, 2, 2]), raw);
        assert_eq!(cut(raw, 2, 1).tensor().floats(), [1., 2., 3., 4.]);
    }
}
