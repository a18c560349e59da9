//! Runs a model forward over a data file, batch by batch: what `eval` and `predict` share.

use crate::core::device::Device;
use crate::core::graph::{InputRole, OutputRole};
use crate::core::{Graph, Tensor, TensorType};
use crate::import::Dims;
use crate::model::Model;
use crate::runtime::Dataset;
use crate::runtime::config::InitConfig;
use crate::runtime::data::{Feed, LastBatch, Loader, Order, Sampler, feeds, located};
use crate::runtime::session::{Model as SessionModel, ProgramId, Session};
use crate::weights::{Mapping, Overlay, WeightFiles};
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Samples in a batch of a model that takes any number, where none is asked for.
const BATCH: usize = 32;

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Samples in a batch; by default as exported, or 32 where the model takes any number.
    pub batch: Option<usize>,
    /// Tensor of the file for each input of the model that is called differently.
    pub names: BTreeMap<String, String>,
    /// Outputs that are wanted, by position; none: all.
    pub outputs: Option<Vec<usize>>,
    /// Whether samples that fill no batch of a fixed size are run beside repeated ones, rather than left out.
    pub pad: bool,
    /// Weights in place of the archive's.
    pub weights: Option<InitConfig>,
}

/// A batch that was run.
pub struct Ran<'a> {
    /// Samples in it.
    pub samples: usize,
    /// What was fed, by input; inputs that nothing wanted depends on are left out.
    pub inputs: BTreeMap<&'a str, Tensor>,
    /// Wanted outputs, in order.
    pub outputs: Vec<Tensor>,
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Samples that were run.
    pub samples: usize,
    /// Samples that were left out because they fill no batch.
    pub left_out: usize,
    /// Where the weights came from, if not from the archive.
    pub mapping: Option<Mapping>,
}

/// Runs the samples of a file, in its order, in evaluation mode, and hands each batch to `each`.
///
/// # Errors
/// What model, weights, data and device refuse, and those of `each`.
pub fn run(
    model: &Model,
    dims: Dims,
    data: &Path,
    asked: &Asked,
    device: Arc<dyn Device>,
    each: &mut dyn FnMut(Ran) -> Result<()>,
) -> Result<Done> {
    let data = Arc::new(Dataset::open(data)?);
    let exported = model.bind(&dims.clone().or_exported())?;
    let (fed, given, samples) = matched(&wanted(&exported.graph, asked)?, &data, &asked.names)?;
    // Where the model takes any number, the one that it was exported with is an example's.
    let batch = match asked.batch {
        Some(batch) => batch,
        None if model.batch(dims.clone(), given).is_ok() => BATCH.min(samples),
        None => given,
    };
    ensure!(batch > 0 && samples > 0, "{} holds no samples", data.path().display());
    let rebound = |n: usize| -> Result<Graph> {
        Ok(match n == given {
            true => exported.graph.clone(),
            false => model.bind(&model.batch(dims.clone(), n)?.or_exported())?.graph,
        })
    };
    let files =
        asked.weights.as_ref().and_then(|w| w.weights.as_deref()).map(WeightFiles::open).transpose()?;
    let overlay = match (&files, &asked.weights) {
        (Some(files), Some(init)) => Overlay::new(&exported, files, init)?,
        _ => Overlay::none(&exported),
    };
    let graph = rebound(batch)?;
    let mut session = Session::new(device, SessionModel { graph: &graph, weights: &overlay }, None)?;
    model.release();
    let mut programs: HashMap<usize, ProgramId> = HashMap::new();
    let rest = samples % batch;
    let fits = rest == 0 || rebound(rest).is_ok();
    let mut done = Done { mapping: files.is_some().then(|| overlay.mapping.clone()), ..Done::default() };
    ensure!(
        samples >= batch || fits || asked.pad,
        "{} has {samples} samples, which do not fill a batch of {batch}, and the model takes no other",
        data.path().display()
    );
    let mut parts = Vec::new();
    if samples >= batch || fits {
        let last = if fits { LastBatch::Keep } else { LastBatch::Drop };
        parts.push((Sampler::new(Order::Sequential, samples, batch, last)?, None));
    }
    if !fits && asked.pad {
        // The last samples, and the very last one again until the batch is full.
        let indices = (0..batch).map(|i| (samples - rest + i).min(samples - 1) as u32).collect();
        let order = Order::Recorded { indices: Arc::new(indices) };
        parts.push((Sampler::new(order, samples, batch, LastBatch::Keep)?, Some(rest)));
    }
    for (mut sampler, count) in parts {
        let batches = sampler.per_epoch() as usize;
        for b in Loader::new(data.clone(), fed.clone(), sampler.clone(), 0)?.take(batches) {
            let b = b?;
            let program = match programs.get(&b.samples) {
                Some(&program) => program,
                None => {
                    let graph = selected(rebound(b.samples)?, asked)?;
                    let program = session.evaluation_program(&graph)?;
                    *programs.entry(b.samples).or_insert(program)
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
                .map_err(|e| located(e, &data, &fed, &b, &sampler.batch(b.index).unwrap_or_default()))?;
            let samples = count.unwrap_or(b.samples);
            let inputs = fed.iter().zip(&b.inputs).filter_map(|(f, bytes)| {
                let (name, ty) = types.iter().find(|(n, _)| *n == f.input)?;
                Some((name.as_str(), cut(Tensor::from_bytes(ty, bytes), b.samples, samples)))
            });
            let inputs = inputs.collect();
            let outputs = (0..session.outputs(program).count())
                .map(|i| Ok(cut(session.output(program, i)?, b.samples, samples)))
                .collect::<Result<_>>()?;
            each(Ran { samples, inputs, outputs })?;
            done.samples += samples;
        }
    }
    done.left_out = samples - done.samples;
    Ok(done)
}

/// The first `samples` of a tensor that has `batch`.
fn cut(t: Tensor, batch: usize, samples: usize) -> Tensor {
    if samples == batch || t.shape().first() != Some(&batch) {
        return t;
    }
    let bytes = t.to_bytes();
    let mut shape = t.shape().to_vec();
    shape[0] = samples;
    let ty = TensorType::new(t.dtype(), shape);
    Tensor::from_bytes(&ty, &bytes[..ty.bytes()])
}

/// The graph with the wanted outputs alone.
fn selected(mut graph: Graph, asked: &Asked) -> Result<Graph> {
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

/// User inputs with their types, and whether a wanted output depends on them.
fn wanted(graph: &Graph, asked: &Asked) -> Result<Vec<(String, TensorType, bool)>> {
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

/// Feeds for the inputs that are needed or that the file has; the batch of the export, and the samples.
fn matched(
    inputs: &[(String, TensorType, bool)],
    data: &Dataset,
    names: &BTreeMap<String, String>,
) -> Result<(Vec<Feed>, usize, usize)> {
    let there = |name: &String| data.column(names.get(name).unwrap_or(name)).is_some();
    let used = inputs.iter().filter(|(name, _, needed)| *needed || there(name));
    Ok(feeds(used.map(|(name, ty, _)| (name.as_str(), ty)), data, names)?)
}
