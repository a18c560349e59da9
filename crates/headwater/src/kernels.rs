//! Kernels of Ascend chips: the sources of a model's or an operator's, projects around the latter, and predicted times
//! of single ones.

pub mod operators;
mod project;

use crate::compile::bindings;
use crate::core::DType;
use crate::core::compile::{self, CompiledGraph, Goal, Options};
use crate::core::device::Device;
use crate::core::graph::{Builder, InputRole, Origin, OutputRole};
use crate::core::pass;
use crate::core::plan::{Bindings, Plan};
use crate::core::train::BucketSize;
use crate::core::{Attrs, Registry, TensorType};
use crate::model::BoundModel;
use anyhow::{Context, Result, bail, ensure};
use headwater_ascend::device::AscendSim;
use headwater_ascend::emit::emit;
use headwater_ascend::kernel::{Elem, Param, ParamKind, Pipe, Program, Value};
use headwater_ascend::kernels::{GatherRows, gather_rows};
use headwater_ascend::lower::{self, Arg, Distinct, Refusal};
use headwater_ascend::{Chip, timing};
use operators::Operator;
use project::Project;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The sources of a plan's kernels.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    /// Files, one for each distinct kernel.
    pub files: Vec<String>,
    /// Steps of the plan, and those by kernels.
    pub steps: (usize, usize),
    /// Steps without a kernel, by operator and reason.
    pub host: BTreeMap<String, usize>,
}

/// Writes the Ascend C source of each distinct kernel of a model's training step, or of its forward pass where it
/// returns no loss, into a folder.
///
/// # Errors
/// Refusals of the passes; a file that cannot be written.
pub fn write(
    bound: &BoundModel,
    chip: &'static Chip,
    options: Options,
    buckets: BucketSize,
    out: &Path,
) -> Result<Written> {
    let device = AscendSim::new(chip, false, 1);
    let goal = if compile::has_loss(&bound.graph) { Goal::Train } else { Goal::Forward };
    let options = Options { goal, ..options };
    let bind = |compiled: &CompiledGraph| Ok::<_, anyhow::Error>(bindings(compiled, &options, buckets));
    let plan = compile::compile(bound.graph.clone(), &options, device.target(), bind)?.into_plan()?;
    let (distinct, native, host) = lowered(chip, &plan);
    let sources = distinct.programs().iter().map(|program| (format!("{}.cpp", program.name), emit(program)));
    let files = write_files(out, sources.collect())?;
    Ok(Written { files, steps: (plan.steps.len(), native), host })
}

/// Writes files below a folder; their paths in it.
fn write_files(out: &Path, files: Vec<(String, String)>) -> Result<Vec<String>> {
    let make = |folder: &Path| {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
    };
    make(out)?;
    let mut written = Vec::new();
    for (name, text) in files {
        let path = out.join(&name);
        path.parent().map_or(Ok(()), make)?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        written.push(name);
    }
    Ok(written)
}

/// What was written of an operator.
#[derive(Clone, Debug, Serialize)]
pub struct Sources {
    /// Files, by their paths in the folder.
    pub files: Vec<String>,
    /// Names of the kernels.
    pub kernels: Vec<String>,
    /// Dtypes without a kernel, by dtype and shape, with the reason.
    pub refused: BTreeMap<String, String>,
}

/// Writes an operator's kernels for several shapes into a folder, in f16 and f32: the sources alone, or a whole project
/// that builds them with CANN and PyTorch.
///
/// `eps` is what RMS norm adds to the mean of squares.
///
/// # Errors
/// A shape that has a kernel in no dtype; a file that cannot be written.
pub fn write_operator(
    operator: Operator,
    chip: &Chip,
    shapes: &[Vec<u64>],
    eps: f32,
    project: bool,
    out: &Path,
) -> Result<Sources> {
    let variants = operator.variants(chip, shapes, eps)?;
    let programs = || variants.built.iter().flat_map(|v| &v.kernels).map(|(_, program)| program);
    let files = match project {
        true => Project { operator, chip, shapes, eps, variants: &variants }.files()?,
        false => programs().map(|program| (format!("{}.cpp", program.name), emit(program))).collect(),
    };
    Ok(Sources {
        files: write_files(out, files)?,
        kernels: programs().map(|program| program.name.clone()).collect(),
        refused: variants.refused,
    })
}

/// The distinct kernels of a plan, the steps that have some, and the others by operator and reason.
fn lowered(chip: &Chip, plan: &Plan) -> (Distinct, usize, BTreeMap<String, usize>) {
    let (mut distinct, mut native, mut host) = (Distinct::default(), 0, BTreeMap::new());
    for step in &plan.steps {
        let origin = plan.origins.get(step.origin.0 as usize).cloned().unwrap_or_default();
        match lower::step(chip, step, &origin) {
            Ok(lowered) => {
                native += 1;
                lowered.launches.iter().for_each(|launch| {
                    distinct.number(&launch.program);
                });
            }
            Err(Refusal(why)) => *host.entry(format!("{}: {why}", step.op)).or_default() += 1,
        }
    }
    (distinct, native, host)
}

/// A kernel to be timed.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Its name: one of [`NAMES`], or an operator of one tensor.
    pub name: String,
    /// Sizes: of the tensor; rows and columns for norms, rows of the table and their length for embeddings; rows, columns
    /// and terms of a sum for products; samples, heads, positions and size of a head for attention.
    pub shape: Vec<u64>,
    /// Type of the elements.
    pub dtype: DType,
    /// Indices of an embedding.
    pub indices: u64,
    /// Most cores to use.
    pub cores: Option<u32>,
}

/// Kernels with sizes of their own.
pub const NAMES: [&str; 7] =
    ["add", "rms_norm", "rms_norm_grad", "embedding", "embedding_grad", "matmul", "attention"];

/// Predicted times of one launch, in microseconds, named as in msprof's table.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// The kernel.
    pub kernel: String,
    /// Blocks.
    pub block_dim: u32,
    /// From the first core's start to the last one's end.
    pub task_duration: f64,
    /// Mean time of a core.
    pub core_time: f64,
    /// Mean busy time of each pipe.
    pub pipes: BTreeMap<&'static str, f64>,
    /// Bytes over the interface of the chip's memory.
    pub hbm_bytes: f64,
    /// Bytes that all copies move from and to global memory, caches included.
    pub moved_bytes: f64,
    /// A remark on how far the figures can be trusted.
    pub label: &'static str,
}

/// Predicts the launches of a kernel on a chip. Where data decide what runs, such as indices, they count as if each row
/// were used in turn.
///
/// # Errors
/// A name that is not known, a shape that the kernel refuses.
pub fn time(chip: &'static Chip, problem: &Problem) -> Result<Vec<Times>> {
    let mut turn = 0;
    let rows = problem.shape.first().copied().unwrap_or(1).max(1) as i64;
    let launches = launches(chip, problem)?;
    let times = launches.into_iter().map(|(program, blocks, args)| {
        let blocks = problem.cores.map_or(blocks, |cores| blocks.min(cores.max(1)));
        let mut loads = |view: &headwater_ascend::kernel::View<Value>| {
            turn += 1;
            Some(if view.elem.is_float() { Value::Float(1.0) } else { Value::Int(turn % rows) })
        };
        let launch = timing::Launch { blocks, args };
        let t = timing::predict(&program, chip, &launch, &mut loads).map_err(|f| anyhow::anyhow!("{f}"))?;
        Ok(Times {
            kernel: program.name.clone(),
            block_dim: blocks,
            task_duration: t.task,
            core_time: t.core,
            pipes: Pipe::ALL.iter().map(|p| (p.name(), t.pipe(*p))).collect(),
            hbm_bytes: t.bytes[0],
            moved_bytes: t.bytes[1],
            label: t.label(),
        })
    });
    times.collect()
}

/// A kernel, its blocks, and a value for each parameter.
type Timed = (Program, u32, Vec<Value>);

fn launches(chip: &'static Chip, problem: &Problem) -> Result<Vec<Timed>> {
    let Problem { name, shape, dtype, indices, .. } = problem;
    let elem = Elem::of(*dtype).with_context(|| format!("the chip has no {dtype}"))?;
    let matrix = || -> Result<(u64, u64)> {
        ensure!(shape.len() == 2, "`{name}` takes a shape of rows and columns, such as 4096x4096");
        Ok((shape[0], shape[1]))
    };
    let zeros = |program: Program| {
        let args = program.params.iter().map(|p: &Param| match p.kind {
            ParamKind::Float => Value::Float(0.0),
            _ => Value::Int(0),
        });
        let args = args.collect();
        (program, chip.vector_cores, args)
    };
    let found = |f: Box<headwater_ascend::Finding>| anyhow::anyhow!("{}", f.message);
    if let Some(operator) = Operator::from_name(name) {
        let sizes = match operator {
            Operator::EmbeddingGrad => {
                let (rows, dim) = matrix()?;
                [*indices, rows, dim]
            }
            _ => operator.sizes(shape)?,
        };
        let kernels = operator.kernels(chip.arch, elem, Elem::I32, sizes, 1e-6).map_err(found)?;
        return Ok(kernels.into_iter().map(|(_, program)| zeros(program)).collect());
    }
    Ok(match name.as_str() {
        "embedding" => {
            let (rows, dim) = matrix()?;
            let shape = GatherRows { elem, index: Elem::I32, indices: *indices, rows, dim };
            vec![zeros(gather_rows(chip.arch, &shape).map_err(found)?)]
        }
        name => operator(chip, name, shape, *dtype)?,
    })
}

/// The launches of an operator: of a product, of attention, or of any operator of one tensor.
fn operator(chip: &'static Chip, name: &str, shape: &[u64], dtype: DType) -> Result<Vec<Timed>> {
    let registry = Registry::standard();
    let Some(op) = registry.by_name(name) else {
        bail!("there is no kernel or operator `{name}`: kernels are {}", NAMES.join(", "));
    };
    let shape: Vec<usize> = shape.iter().map(|&s| s as usize).collect();
    let (operands, attrs) = match name {
        "matmul" => {
            let [m, n, k] = shape[..] else {
                bail!("`matmul` takes rows, columns and terms, such as 4096x4096x4096")
            };
            (vec![Some(vec![m, k]), Some(vec![k, n])], Attrs::new())
        }
        "attention" => {
            let [.., e] = shape[..] else {
                bail!("`attention` takes samples, heads, positions and size of a head")
            };
            let tensor = || Some(shape.clone());
            (
                vec![tensor(), tensor(), tensor(), None, None],
                Attrs::new().with("scale", 1.0 / (e as f64).sqrt()),
            )
        }
        _ => (vec![Some(shape)], Attrs::new()),
    };
    let mut b = Builder::new();
    let inputs: Vec<_> = (operands.into_iter().enumerate())
        .map(|(i, shape)| {
            shape.map(|shape| b.input(format!("x{i}"), TensorType::new(dtype, shape), InputRole::User))
        })
        .collect();
    let outs = b.apply(op, &inputs, attrs).with_context(|| format!("`{name}` of such tensors"))?;
    outs.iter().enumerate().for_each(|(i, &v)| b.output(format!("y{i}"), v, OutputRole::User));
    let graph = pass::decompose::decompose(b.finish())?;
    let device = AscendSim::new(chip, false, 1);
    let plan = pass::plan(&graph, &Bindings::simple(&graph), device.target())?;
    let mut all = Vec::new();
    for step in &plan.steps {
        let lowered = lower::step(chip, step, &Origin::default());
        let lowered =
            lowered.map_err(|Refusal(why)| anyhow::anyhow!("`{}` has no kernel: {why}", step.op))?;
        for launch in lowered.launches {
            let args = launch.args.iter().map(|arg| match arg {
                Arg::Float(x) => Value::Float(*x),
                Arg::Int(x) => Value::Int(*x),
                _ => Value::Int(0),
            });
            let args = args.collect();
            all.push((Program::clone(&launch.program), launch.blocks, args));
        }
    }
    Ok(all)
}
