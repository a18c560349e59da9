//! Kernels of NVIDIA's GPUs without one: compiled into a cache, or written as CUDA C.

use super::{Written, write_files};
use crate::compile::bindings;
use crate::conformance::{self, DTYPES};
use crate::core::compile::{self, CompiledGraph, Goal, Options};
use crate::core::device::Device;
use crate::core::ops::OpDef;
use crate::core::plan::Plan;
use crate::core::train::BucketSize;
use crate::model::BoundModel;
use crate::runtime::session::{Planned, Training};
use anyhow::{Context, Result, bail};
use headwater_cuda::Offline;
use headwater_cuda::host::{Compiler, Installation};
use headwater_cuda::offline::Kernels;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A cache that was filled.
#[derive(Clone, Debug, Serialize)]
pub struct Filled {
    /// The cache's folder.
    pub folder: PathBuf,
    /// Distinct kernels, and those that were not there yet.
    pub kernels: usize,
    /// Kernels that were compiled.
    pub compiled: usize,
    /// Version of NVRTC.
    pub nvrtc: (i32, i32),
    /// Steps of the plans, and those by kernels.
    pub steps: (usize, usize),
    /// Steps without a kernel, by operator and reason.
    pub host: BTreeMap<String, usize>,
}

/// The kind of GPU that a device is.
fn offline(device: &dyn Device) -> Result<Offline> {
    match device.name().strip_prefix("cuda:").filter(|arch| arch.starts_with("sm_")) {
        Some(arch) => Ok(Offline::new(arch)?),
        None => bail!("--cache is for --device cuda:sm_XY, such as cuda:sm_90, not for `{}`", device.name()),
    }
}

/// Compiles the kernels of a model's training step with its update, and of its evaluation, into the cache in
/// a folder. Of a model that returns no loss, those of its forward pass.
///
/// # Errors
/// A device that is no kind of GPU, no NVRTC, refusals of the passes, and a cache that cannot be written.
pub fn fill(bound: &BoundModel, settings: &Training, device: &dyn Device, folder: &Path) -> Result<Filled> {
    let gpu = offline(device)?;
    let (graph, target) = (&bound.graph, gpu.target());
    let properties = settings.precision.properties(target)?;
    let buckets = settings.bucket_size.unwrap_or_else(|| BucketSize::of_ranks(settings.mesh.ranks()));
    let mut plans: Vec<Plan> = Vec::new();
    let mut add = |goal| {
        let options = Options { goal, precision: properties.clone(), ..Options::default() };
        let bind = |made: &CompiledGraph| Ok::<_, anyhow::Error>(bindings(made, &options, buckets));
        plans.push(compile::compile(graph.clone(), &options, target, bind)?.into_plan()?);
        anyhow::Ok(())
    };
    if compile::has_loss(graph) {
        add(Goal::Evaluate)?;
        let planned = Planned::training(graph, settings, target, None)?;
        plans.extend([Some(planned.plan()), planned.update_plan()].into_iter().flatten().cloned());
    } else {
        add(Goal::Forward)?;
    }
    filled(&gpu, &Kernels::of(&plans), folder)
}

/// Compiles the kernels of operators and their gradients, for the cases on which they are tested, into the
/// cache in a folder.
///
/// # Errors
/// As [`fill`].
pub fn fill_operators(operators: &[&'static OpDef], device: &dyn Device, folder: &Path) -> Result<Filled> {
    let gpu = offline(device)?;
    let mut plans = Vec::new();
    for op in operators {
        plans.extend(conformance::plans(op, &DTYPES, gpu.target())?);
    }
    filled(&gpu, &Kernels::of(&plans), folder)
}

fn filled(gpu: &Offline, kernels: &Kernels, folder: &Path) -> Result<Filled> {
    // The place where a run with HEADWATER_CACHE looks.
    let folder = folder.join("cuda");
    let compiler = Compiler::find(&Installation::find(), gpu.arch(), Some(folder.clone()))
        .context("kernels are compiled by NVRTC, which needs no GPU (docs/cuda.md)")?;
    let compiled = kernels.compile(&compiler)?;
    Ok(Filled {
        folder,
        kernels: compiled.binaries.len(),
        compiled: compiled.fresh,
        nvrtc: compiler.version(),
        steps: kernels.steps,
        host: kernels.host.clone(),
    })
}

/// Writes the CUDA C source of each distinct kernel of a model's training step, or of its forward pass where
/// it returns no loss, into a folder, with the header that each includes.
///
/// # Errors
/// Refusals of the passes; a file that cannot be written.
pub fn write_model(
    bound: &BoundModel,
    arch: &str,
    options: Options,
    buckets: BucketSize,
    out: &Path,
) -> Result<Written> {
    let gpu = Offline::new(arch)?;
    let goal = if compile::has_loss(&bound.graph) { Goal::Train } else { Goal::Forward };
    let options = Options { goal, ..options };
    let bind = |compiled: &CompiledGraph| Ok::<_, anyhow::Error>(bindings(compiled, &options, buckets));
    let plan = compile::compile(bound.graph.clone(), &options, gpu.target(), bind)?.into_plan()?;
    written(Kernels::of([&plan]), out)
}

/// Writes the CUDA C sources of an operator and its gradients, for the cases on which it is tested, in f32,
/// f16 and bf16.
///
/// # Errors
/// An operator that there is not; refusals of the passes; a file that cannot be written.
pub fn write_operator(name: &str, arch: &str, out: &Path) -> Result<Written> {
    let gpu = Offline::new(arch)?;
    let mut plans = Vec::new();
    for op in conformance::chosen(name)? {
        plans.extend(conformance::plans(op, &DTYPES, gpu.target())?);
    }
    written(Kernels::of(&plans), out)
}

fn written(kernels: Kernels, out: &Path) -> Result<Written> {
    let files = write_files(out, kernels.files())?;
    Ok(Written { files, steps: kernels.steps, host: kernels.host })
}
