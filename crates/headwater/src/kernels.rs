//! Kernels of Ascend chips: the sources of a model's or an operator's, projects around the latter, and
//! predicted times of single ones. `cuda` has those of NVIDIA's GPUs.

pub mod cuda;
mod index;
pub mod operators;
mod project;

use crate::bench::embedding_grad::Distribution;
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
use headwater_ascend::device::{AscendSim, predict};
use headwater_ascend::emit::emit;
use headwater_ascend::kernel::{Elem, Param, ParamKind, Pipe, Program, Value};
use headwater_ascend::kernels::{EmbeddingGrad, GatherRows, Rung, gather_rows};
use headwater_ascend::lower::{self, Distinct, Refusal, embedding_grads};
use headwater_ascend::{Chip, timing};
use index::Index;
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

/// Writes the Ascend C source of each distinct kernel of a model's training step, or of its forward pass
/// where it returns no loss, into a folder, with an index of the launches (`kernels.json`, README.md).
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
    let (distinct, native, host, index) = lowered(chip, &plan);
    let sources = distinct.programs().iter().map(|program| (format!("{}.cpp", program.name), emit(program)));
    let files = write_files(out, sources.collect())?;
    write_files(out, index.files(chip))?;
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

/// Sources written for an operator.
#[derive(Clone, Debug, Serialize)]
pub struct Sources {
    /// Files, by their paths in the folder.
    pub files: Vec<String>,
    /// Names of the kernels.
    pub kernels: Vec<String>,
    /// Dtypes without a kernel, by dtype and shape, with the reason.
    pub refused: BTreeMap<String, String>,
}

/// Writes an operator's kernels for several shapes into a folder, in f16 and f32: the sources alone, or a
/// whole project that builds them with CANN and PyTorch.
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
    let programs = || variants.built.iter().flat_map(|v| &v.kernels).map(|k| &k.program);
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

/// The distinct kernels of a plan, the steps that have some, the others by operator and reason, and the index
/// of all.
fn lowered(chip: &Chip, plan: &Plan) -> (Distinct, usize, BTreeMap<String, usize>, Index) {
    let (mut distinct, mut native, mut host) = (Distinct::default(), 0, BTreeMap::new());
    let mut index = Index::default();
    for step in &plan.steps {
        let origin = plan.origin(step);
        match lower::step(chip, true, step, &origin) {
            Ok(lowered) => {
                native += 1;
                let mut names = Vec::new();
                for launch in &lowered.launches {
                    let number = distinct.number(&launch.program);
                    names.push(distinct.programs()[number].name.clone());
                }
                index.launches(plan, step, &lowered, &names);
            }
            Err(Refusal(why)) => {
                index.host(plan, step, &why);
                *host.entry(format!("{}: {why}", step.op)).or_default() += 1;
            }
        }
    }
    (distinct, native, host, index)
}

/// A kernel to be timed.
#[derive(Clone, Debug)]
pub struct KernelProblem {
    /// Its name: one of [`NAMES`], or an operator of one tensor.
    pub name: String,
    /// Sizes: of the tensor; rows and columns for norms; indices, rows of the table and columns for
    /// embeddings; rows, columns and terms of a sum for products; samples, heads, positions and size of a
    /// head for attention.
    pub shape: Vec<u64>,
    /// Type of the elements.
    pub dtype: DType,
    /// Most cores to use.
    pub cores: Option<u32>,
}

/// Kernels with sizes of their own.
pub const NAMES: [&str; 7] =
    ["add", "rms_norm", "rms_norm_grad", "embedding", "embedding_grad", "matmul", "attention"];

/// Predicted times of one launch, in microseconds, named as in msprof's table.
#[derive(Clone, Debug, Serialize)]
pub struct KernelTimes {
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

/// Predicts the launches of a kernel on a chip. Where data decide what runs, such as indices, they count as
/// if each row were used in turn.
///
/// # Errors
/// A name that is not known, a shape that the kernel refuses.
pub fn time(chip: &'static Chip, problem: &KernelProblem) -> Result<Vec<KernelTimes>> {
    let mut turn = 0;
    let rows = problem.shape.iter().rev().nth(1).copied().unwrap_or(1).max(1) as i64;
    if problem.name == "embedding_grad" {
        let rungs = embedding_grad(chip, problem, Distribution::Turn, &[Rung::Pipelined])?;
        return Ok(rungs.into_iter().flat_map(|rung| rung.launches).collect());
    }
    let launches = launches(chip, problem)?;
    let times = launches.into_iter().map(|(program, blocks, args)| {
        let blocks = problem.cores.map_or(blocks, |cores| blocks.min(cores.max(1)));
        let mut loads = |view: &headwater_ascend::kernel::View<Value>| {
            turn += 1;
            Some(if view.elem.is_float() { Value::Float(1.0) } else { Value::Int(turn % rows) })
        };
        let launch = timing::Launch { blocks, args };
        let t = timing::predict(&program, chip, &launch, &mut loads).map_err(|f| anyhow::anyhow!("{f}"))?;
        Ok(KernelTimes::of(&program, blocks, &t))
    });
    times.collect()
}

impl KernelTimes {
    fn of(program: &Program, blocks: u32, t: &timing::Timing) -> KernelTimes {
        KernelTimes {
            kernel: program.name.clone(),
            block_dim: blocks,
            task_duration: t.task,
            core_time: t.core,
            pipes: Pipe::ALL.iter().map(|p| (p.name(), t.pipe(*p))).collect(),
            hbm_bytes: t.bytes[0],
            moved_bytes: t.bytes[1],
            label: t.label(),
        }
    }
}

/// A rung of the ladder of an embedding's gradient, predicted.
#[derive(Clone, Debug, Serialize)]
pub struct RungTimes {
    /// Its number, from 1.
    pub rung: usize,
    /// The method.
    pub name: &'static str,
    /// Microseconds of all launches.
    pub task_duration: f64,
    /// Bytes of workspace, beside the operands.
    pub workspace: u64,
    /// Bytes of workspace, operands and result.
    pub memory: u64,
    /// Bytes over the interface of the chip's memory.
    pub hbm_bytes: f64,
    /// The launches.
    pub launches: Vec<KernelTimes>,
}

/// The least that an embedding's gradient takes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Floor {
    /// Bytes that must move: gradients and indices once, the table once.
    pub bytes: u64,
    /// Microseconds that they take at the bandwidth of the chip's memory.
    pub memory: f64,
    /// Additions.
    pub additions: u64,
    /// Microseconds that they take at 64 in f32 a cycle and vector unit.
    pub arithmetic: f64,
}

/// The least that the gradient of an embedding takes on a chip.
///
/// # Errors
/// A shape that is no matrix, or beyond 64 bits.
pub fn floor(chip: &Chip, problem: &KernelProblem) -> Result<Floor> {
    let EmbeddingGrad { elem, index, indices, rows, dim, .. } = embedding_shape(chip, problem)?;
    let additions = indices.checked_mul(dim).context("the shape is too large")?;
    let elements = rows.checked_mul(dim).and_then(|table| table.checked_add(additions));
    let bytes =
        elements.and_then(|n| n.checked_mul(elem.size())).and_then(|n| n.checked_add(indices * index.size()));
    let bytes = bytes.context("the shape is too large")?;
    let rate = 64.0 * f64::from(chip.vector_cores) * f64::from(chip.mhz);
    let [memory, _] = timing::bandwidth(chip);
    Ok(Floor { bytes, memory: bytes as f64 / memory * 1e6, additions, arithmetic: additions as f64 / rate })
}

/// Indices into a table, its rows and columns.
fn table_shape(problem: &KernelProblem) -> Result<(u64, u64, u64)> {
    let [indices, rows, columns] = problem.shape[..] else {
        bail!(
            "`{}` takes a shape of indices, rows of the table and columns, such as 16384x32000x1024",
            problem.name
        )
    };
    Ok((indices, rows, columns))
}

fn embedding_shape(chip: &Chip, problem: &KernelProblem) -> Result<EmbeddingGrad> {
    let elem = Elem::of(problem.dtype).with_context(|| format!("the chip has no {}", problem.dtype))?;
    let (indices, rows, dim) = table_shape(problem)?;
    let cores = problem.cores.unwrap_or(chip.vector_cores).clamp(1, chip.vector_cores);
    ensure!(indices <= 1 << 31, "{indices} indices: there are at most {}", 1u64 << 31);
    Ok(EmbeddingGrad {
        elem,
        index: Elem::I32,
        indices,
        rows,
        dim,
        padding: None,
        by_frequency: false,
        cores,
    })
}

/// Predicts rungs of the ladder of an embedding's gradient, with indices as they are distributed.
///
/// # Errors
/// A shape that a rung refuses.
pub fn embedding_grad(
    chip: &'static Chip,
    problem: &KernelProblem,
    indices: Distribution,
    rungs: &[Rung],
) -> Result<Vec<RungTimes>> {
    let shape = embedding_shape(chip, problem)?;
    let operands = floor(chip, problem)?.bytes;
    let places = |n: u64| usize::try_from(n).context("the shape is too large");
    let drawn = indices.draw(places(shape.rows)?, places(shape.indices)?);
    let one = |&rung: &Rung| -> Result<RungTimes> {
        let lowered = embedding_grads(chip, &shape, rung).map_err(|Refusal(why)| anyhow::anyhow!("{why}"))?;
        let times = predict(chip, &lowered, &mut |_, elem, bytes| {
            for (to, index) in bytes.chunks_exact_mut(elem.size() as usize).zip(&drawn) {
                to.copy_from_slice(&index.to_le_bytes()[..elem.size() as usize]);
            }
        });
        let times = times.map_err(|found| anyhow::anyhow!("{found}"))?;
        let launches = lowered.launches.iter().zip(&times);
        let launches: Vec<KernelTimes> =
            launches.map(|(l, t)| KernelTimes::of(&l.program, l.blocks, t)).collect();
        let sum = |of: fn(&KernelTimes) -> f64| launches.iter().map(of).sum::<f64>();
        Ok(RungTimes {
            rung: Rung::ALL.iter().position(|r| *r == rung).unwrap_or(0) + 1,
            name: match rung {
                Rung::Naive => "naive: a row a copy, atomic sums in f32",
                Rung::Vectorised => "vectorised: many rows a copy, atomic sums in f32",
                Rung::Grouped => "grouped: sorted by row, each row summed once in f32, a copy at a time",
                Rung::Pipelined => "pipelined: the same with copies that overlap",
            },
            task_duration: sum(|t| t.task_duration),
            workspace: lowered.scratch,
            memory: operands + lowered.scratch,
            hbm_bytes: sum(|t| t.hbm_bytes),
            launches,
        })
    };
    rungs.iter().map(one).collect()
}

/// A kernel, its blocks, and a value for each parameter.
type Timed = (Program, u32, Vec<Value>);

fn launches(chip: &'static Chip, problem: &KernelProblem) -> Result<Vec<Timed>> {
    let KernelProblem { name, shape, dtype, .. } = problem;
    let elem = Elem::of(*dtype).with_context(|| format!("the chip has no {dtype}"))?;
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
        let sizes = operator.sizes(shape)?;
        let (kernels, _) = operator.kernels(chip, elem, Elem::I32, sizes, 1e-6).map_err(found)?;
        return Ok(kernels.into_iter().map(|k| zeros(k.program)).collect());
    }
    Ok(match name.as_str() {
        "embedding" => {
            let (indices, rows, dim) = table_shape(problem)?;
            let shape = GatherRows { elem, index: Elem::I32, indices, rows, dim, merged: false };
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
        let lowered = lower::step(chip, true, step, &Origin::default());
        let lowered =
            lowered.map_err(|Refusal(why)| anyhow::anyhow!("`{}` has no kernel: {why}", step.op))?;
        for launch in lowered.launches {
            all.push((Program::clone(&launch.program), launch.blocks, lower::values(&launch)));
        }
    }
    Ok(all)
}
