//! `bench step`: whole training steps of a model, and their time by part.

use super::feed;
use super::{Repetitions, Times, median};
use crate::core::device::Device;
use crate::core::graph::Phase;
use crate::core::ops::Precision;
use crate::core::pass::precision::{Level, PrecisionSettings};
use crate::core::plan::{Plan, Step, TensorView, Work};
use crate::core::train::BucketSize;
use crate::core::{DType, Tensor, TensorType};
use crate::cpu::limits::{Arithmetic, Limits};
use crate::import::Dims;
use crate::machine::resident;
use crate::model::Model;
use crate::runtime::optim::Clip;
use crate::runtime::session::{Moments, Session, SessionModel, Sparse, Training};
use crate::runtime::trainer::Span;
use crate::tensors::TensorFile;
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Scale of the loss in f16: small gradients stay above its least number, and those of a clipped step below
/// its largest.
const F16_SCALE: f64 = 1024.0;

/// Settings of a measurement.
#[derive(Clone, Debug)]
pub struct StepSettings {
    /// Sizes of symbolic dimensions.
    pub dims: Dims,
    /// Samples in a batch, if not as exported.
    pub batch: Option<usize>,
    /// Precision of operators.
    pub precision: PrecisionSettings,
    /// True if the backward pass recomputes what is cheap.
    pub recompute: bool,
    /// True if products that share an operand stay separate.
    pub exact_sums: bool,
    /// Bytes that training may take in all.
    pub memory_budget: Option<usize>,
    /// Sizes of buckets.
    pub bucket_size: BucketSize,
    /// Embeddings with sparse gradients.
    pub sparse_embeddings: Sparse,
    /// Form of the optimizer's moments.
    pub moments: Moments,
    /// Learning rate.
    pub lr: f64,
    /// Limit of the gradients' norm.
    pub clip: f64,
    /// Repetitions.
    pub repetitions: Repetitions,
    /// Steps whose parts are timed.
    pub traced: usize,
}

/// Memory in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// All that the plans use: state, arena, inputs and outputs. Known before anything runs.
    pub planned: usize,
    /// The arena's share: activations, gradients on their way, workspaces.
    pub arena: usize,
    /// Resident after the measured steps, if the system tells.
    pub resident: Option<usize>,
    /// Most that was ever resident, the file that is mapped included.
    pub resident_peak: Option<usize>,
}

/// Seconds before the first step is done.
#[derive(Clone, Debug, Serialize)]
pub struct Start {
    /// Reading and binding the archive.
    pub import: f64,
    /// Passes, plans, memory, weights.
    pub compile: f64,
    /// The first step.
    pub step: f64,
    /// All of it, from the file to the end of the first step.
    pub total: f64,
}

/// A part of a step: how long, how much, how near to the limit.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Part {
    /// Name of the part: an operator, a module, a phase.
    pub name: String,
    /// Steps of the plans that belong to it.
    pub count: usize,
    /// Seconds in a training step: the sum of its steps' medians.
    pub seconds: f64,
    /// Share of the training step.
    pub share: f64,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes of operands, each once.
    pub bytes: f64,
    /// Seconds at the machine's limit; 0 if it is not known.
    pub floor: f64,
}

impl Part {
    fn add(&mut self, one: &Traced, whole: f64) {
        self.count += 1;
        self.seconds += one.seconds;
        self.share += one.seconds / whole;
        self.flops += one.flops;
        self.bytes += one.bytes;
        self.floor += one.floor;
    }
}

/// A step of the plan, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Traced {
    /// Operator, `fused` for several in one row program.
    pub op: &'static str,
    /// Part of the training step.
    pub phase: &'static str,
    /// Path of the module.
    pub module: String,
    /// Source line of the model.
    pub line: String,
    /// Types of what it reads and writes.
    pub operands: String,
    /// Functions of its row program, if it is one.
    pub functions: Option<String>,
    /// Matrix product, convolution or attention: bounded by arithmetic.
    pub product: bool,
    /// Median seconds.
    pub seconds: f64,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes of operands, each once.
    pub bytes: f64,
    /// Seconds at the machine's limit; 0 if it is not known.
    pub floor: f64,
}

/// A measured training step.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// Name of the device.
    pub device: String,
    /// The device's remark that belongs beside its figures, such as that it is simulated.
    pub remark: Option<String>,
    /// Level and low dtype of mixed precision; the parameters' dtypes without.
    pub precision: String,
    /// True if the backward pass recomputed what is cheap.
    pub recompute: bool,
    /// Inputs: name and type.
    pub inputs: Vec<(String, String)>,
    /// Elements of the parameters trained.
    pub parameters: usize,
    /// A whole step: forward, backward, clip, update.
    pub step: Times,
    /// Median seconds of forward and backward.
    pub gradients: f64,
    /// Median seconds of clip and update.
    pub update: f64,
    /// Sum of the parts' floors: products at the peak of multiply-adds, all else at copy bandwidth. None
    /// where the device's limits are not known.
    pub floor: Option<f64>,
    /// The floor over the time of the steps whose parts were timed, which were timed alternately with the
    /// peak of multiply-adds.
    pub share: Option<f64>,
    /// Matrix products and convolutions, attention, and all the rest.
    pub kinds: Vec<Part>,
    /// By phase.
    pub phases: Vec<Part>,
    /// By operator, most time first.
    pub operators: Vec<Part>,
    /// Fused operators by the functions of their row programs, most time first.
    pub fused: Vec<Part>,
    /// By module, most time first.
    pub modules: Vec<Part>,
    /// Memory.
    pub memory: Memory,
    /// Time to the first step.
    pub start: Start,
    /// Loss of the first steps, on the same batch.
    pub losses: Vec<f64>,
    /// Steps whose gradients were not finite, so that the update changed nothing.
    pub skipped: usize,
    /// The machine's limits that all this is held against, where they are known.
    #[serde(skip)]
    pub limits: Option<Limits>,
    /// Every step of the plans, in order; see [`StepReport::spans`].
    #[serde(skip)]
    pub trace: Vec<Traced>,
}

/// A session ready to be measured, with what getting there took.
pub struct Running {
    session: Session,
    feeds: Vec<Vec<u8>>,
    lr: f64,
    /// Loss of every step so far.
    losses: Vec<f64>,
    skipped: usize,
    start: Start,
    precision: String,
    recompute: bool,
    inputs: Vec<(String, String)>,
}

impl Running {
    /// Opens a model, compiles its training step and runs it once.
    ///
    /// # Errors
    /// Whatever is wrong with the model, its inputs or the device.
    pub fn new(
        path: &Path,
        inputs: Option<&TensorFile>,
        settings: &StepSettings,
        device: Arc<dyn Device>,
    ) -> Result<Running> {
        let begin = Instant::now();
        let model = Model::open(path)?;
        let dims = match settings.batch {
            Some(n) => model.batch(settings.dims.clone(), n)?,
            None => settings.dims.clone(),
        };
        let bound = model.bind(&dims.or_exported())?;
        let import = begin.elapsed().as_secs_f64();
        let batch = feed::batch(&bound.graph, inputs)?;
        let begun = Instant::now();
        let p = settings.precision.properties(device.target())?;
        let scaled = p.level != Level::O0 && p.dtype == DType::F16;
        let training = Training {
            clip: Clip { norm: Some(settings.clip), value: None },
            accumulate: 1,
            precision: settings.precision.clone(),
            recompute: settings.recompute,
            exact_sums: settings.exact_sums,
            memory_budget: settings.memory_budget,
            bucket_size: Some(settings.bucket_size),
            sparse_embeddings: settings.sparse_embeddings,
            moments: settings.moments,
            scaled,
            ..Training::default()
        };
        let exported = SessionModel { graph: &bound.graph, weights: &bound };
        let mut session = Session::new(device, exported, Some(training))?;
        model.release();
        if scaled {
            session.set_loss_scale(F16_SCALE)?;
        }
        let compile = begun.elapsed().as_secs_f64();
        let program = session.program()?;
        let types: Vec<TensorType> = session.inputs(program).map(|(_, ty)| ty.clone()).collect();
        let names = session.inputs(program).map(|(n, ty)| (n.to_string(), ty.to_string())).collect();
        let by_name: BTreeMap<&str, &Tensor> = bound.user_inputs().map(|(n, _)| n).zip(&batch).collect();
        let feeds = session
            .inputs(program)
            .zip(&types)
            .map(|((name, _), ty)| {
                Ok(by_name.get(name).context("an input without a tensor")?.cast(ty.dtype).to_bytes())
            })
            .collect::<Result<Vec<_>>>()?;
        let mut dtypes: Vec<DType> = session.tensors().iter().map(|t| t.ty.dtype).collect();
        dtypes.retain(|d| d.is_float());
        dtypes.sort_by_key(|d| d.size());
        dtypes.dedup();
        let mut running = Running {
            precision: match p.level {
                Level::O0 => dtypes.iter().map(|d| d.to_string()).collect::<Vec<_>>().join(" and "),
                level => format!("{level} {}", p.dtype),
            },
            recompute: settings.recompute,
            inputs: names,
            session,
            feeds,
            lr: settings.lr,
            losses: Vec::new(),
            skipped: 0,
            start: Start { import, compile, step: 0.0, total: 0.0 },
        };
        let (gradients, update) = running.step()?;
        running.start.step = gradients + update;
        running.start.total = import + compile + running.start.step;
        Ok(running)
    }

    /// One training step; seconds of forward and backward, and of the update.
    fn step(&mut self) -> Result<(f64, f64)> {
        let program = self.session.program()?;
        let begin = Instant::now();
        self.session.set_rng(0, self.losses.len() as u64)?;
        self.session.begin_step()?;
        self.session.gradients(program, &self.feeds)?;
        let middle = Instant::now();
        let update = self.session.update(self.lr)?;
        let times = ((middle - begin).as_secs_f64(), middle.elapsed().as_secs_f64());
        self.skipped += usize::from(!update.applied);
        self.losses.push(self.session.output(program, 0)?.to_f64()[0]);
        Ok(times)
    }

    /// Runs steps as often as asked: whole, gradients, update.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn time(&mut self, repetitions: Repetitions) -> Result<(Times, f64, f64)> {
        let (mut gradients, mut update) = (Vec::new(), Vec::new());
        let mut first = repetitions.warm_up;
        let whole = super::time(repetitions, || {
            let (g, u) = self.step()?;
            if first > 0 {
                first -= 1;
            } else {
                gradients.push(g);
                update.push(u);
            }
            anyhow::Ok(())
        })?;
        Ok((whole, Times::of(gradients).seconds, Times::of(update).seconds))
    }

    /// Times every step of the plans over `steps` training steps: the median of each, so that a moment in
    /// which the machine was somewhere else does not count. Where there are `limits`, their peak of
    /// multiply-adds is measured again between the steps, and its median replaces theirs: clocks change from
    /// minute to minute.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn trace(
        &mut self,
        steps: usize,
        mut limits: Option<(&mut Limits, &dyn Measure)>,
    ) -> Result<Vec<Traced>> {
        let (gradients, update) = (self.session.program()?, self.session.update_program()?);
        for program in [gradients, update] {
            self.session.measure(program);
        }
        let (mut runs, mut peaks) = (Vec::new(), Vec::new());
        for _ in 0..steps.max(1) {
            let before = [gradients, update].map(|p| self.session.seconds(p));
            self.step()?;
            let after = [gradients, update].map(|p| self.session.seconds(p));
            let spent = before.iter().flatten().zip(after.into_iter().flatten());
            runs.push(spent.map(|(before, after)| after - before).collect::<Vec<f64>>());
            if let Some((_, machine)) = &limits {
                peaks.push(machine.arithmetic()?);
            }
        }
        if let Some((limits, _)) = &mut limits {
            let peak = |of: fn(&Arithmetic) -> f64| median(&mut peaks.iter().map(of).collect::<Vec<_>>());
            (limits.f32, limits.f64, limits.bf16) = (peak(|p| p.f32), peak(|p| p.f64), peak(|p| p.bf16));
        }
        let limits = limits.map(|(limits, _)| &*limits);
        let middle = |i: usize| median(&mut runs.iter().map(|run| run[i]).collect::<Vec<_>>());
        let steps = [gradients, update].into_iter().flat_map(|program| {
            let plan = self.session.plan(program);
            plan.steps.iter().map(move |step| (plan, step))
        });
        Ok(steps.enumerate().map(|(i, (plan, step))| traced(plan, step, middle(i), limits)).collect())
    }

    fn memory(&self) -> Result<Memory> {
        let arena = self.session.arena_bytes();
        let planned = self.session.planned_bytes();
        let seen = resident();
        Ok(Memory { planned, arena, resident: seen.map(|r| r.now), resident_peak: seen.map(|r| r.peak) })
    }
}

/// Measures the limits of the machine that a device runs on.
pub trait Measure {
    /// All of them.
    ///
    /// # Errors
    /// If there is too little memory.
    fn limits(&self) -> Result<Limits>;
    /// Arithmetic alone, once.
    ///
    /// # Errors
    /// As [`Measure::limits`].
    fn arithmetic(&self) -> Result<Arithmetic>;
}

/// Measures a model's training step on a device, beside the limits of its `machine` if they can be measured.
/// That is done once the steps are, so that its buffers are not taken for the model's memory.
///
/// # Errors
/// Whatever is wrong with the model, its inputs or the device.
pub fn run(
    path: &Path,
    inputs: Option<&TensorFile>,
    settings: &StepSettings,
    device: Arc<dyn Device>,
    machine: Option<&dyn Measure>,
) -> Result<StepReport> {
    let (name, remark) = (device.name().to_string(), device.remark().map(str::to_string));
    let mut running = Running::new(path, inputs, settings, device)?;
    let (step, gradients, update) = running.time(settings.repetitions)?;
    let memory = running.memory()?;
    let mut limits = machine.map(|machine| machine.limits()).transpose()?;
    let trace = running.trace(settings.traced, limits.as_mut().zip(machine))?;
    let whole: f64 = trace.iter().map(|t| t.seconds).sum();
    let floor = limits.is_some().then(|| trace.iter().map(|t| t.floor).sum::<f64>());
    let some = |name: &dyn Fn(&Traced) -> Option<String>| {
        let mut parts: BTreeMap<String, Part> = BTreeMap::new();
        for t in &trace {
            let Some(name) = name(t) else { continue };
            parts.entry(name.clone()).or_insert_with(|| Part { name, ..Part::default() }).add(t, whole);
        }
        let mut parts: Vec<Part> = parts.into_values().collect();
        parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        parts
    };
    let parts = |name: &dyn Fn(&Traced) -> String| some(&|t| Some(name(t)));
    let fused = |t: &Traced| t.functions.clone().filter(|_| t.op == "fused");
    let session = &running.session;
    Ok(StepReport {
        device: name,
        remark,
        precision: running.precision.clone(),
        recompute: running.recompute,
        inputs: running.inputs.clone(),
        parameters: session.layout().entries().map(|(_, e)| e.shape.numel()).sum(),
        share: floor.map(|floor| floor / whole),
        step,
        gradients,
        update,
        floor,
        kinds: parts(&|t| kind(t).into()),
        phases: parts(&|t| t.phase.into()),
        operators: parts(&|t| t.op.into()),
        fused: some(&fused),
        modules: parts(&|t| t.module.clone()),
        memory,
        start: running.start.clone(),
        losses: running.losses.iter().copied().take(8).collect(),
        skipped: running.skipped,
        limits,
        trace,
    })
}

impl StepReport {
    /// The measured steps in sequence, each as long as its median: a typical training step.
    pub fn spans(&self) -> Vec<Span> {
        let mut start = 0.0;
        let spans = self.trace.iter().map(|t| {
            let args = vec![
                ("module", t.module.clone().into()),
                ("line", t.line.clone().into()),
                ("operands", t.operands.clone().into()),
                ("functions", t.functions.clone().into()),
                ("product", t.product.into()),
                ("flops", t.flops.into()),
                ("bytes", t.bytes.into()),
                ("seconds_at_the_limit", t.floor.into()),
            ];
            let span = Span { name: t.op.into(), category: t.phase, args, start, seconds: t.seconds };
            start += t.seconds;
            span
        });
        spans.collect()
    }
}

/// A step of a plan that took so long, beside the machine's limits if they are known.
pub fn traced(plan: &Plan, step: &Step, seconds: f64, limits: Option<&Limits>) -> Traced {
    let origin = plan.origin(step);
    let product = matches!(&step.work, Work::Kernel { op, .. } if op.precision == Precision::Low);
    let (bytes, dtype) = (touched(step), step.writes.first().map_or(DType::F32, |w| w.dtype));
    let list = |views: &mut dyn Iterator<Item = &TensorView>| {
        let one = |v: &TensorView| TensorType::new(v.dtype, v.layout.shape.clone()).to_string();
        views.map(one).collect::<Vec<_>>().join(", ")
    };
    let (reads, writes) = (list(&mut step.reads.iter().flatten()), list(&mut step.writes.iter()));
    Traced {
        op: step.op,
        phase: match step.phase {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Update => "update",
        },
        line: if origin.file.is_empty() { String::new() } else { format!("{}:{}", origin.file, origin.line) },
        module: origin.module,
        operands: format!("{reads} → {writes}"),
        functions: match &step.work {
            Work::Rows(program) => Some(program.functions()),
            Work::Kernel { .. } => None,
        },
        product,
        seconds,
        flops: step.flops,
        bytes,
        floor: limits.map_or(0.0, |l| l.floor(dtype, if product { step.flops } else { 0.0 }, bytes)),
    }
}

/// The kind of work in a training step. Attention is separate because not all of it is multiply-adds.
fn kind(t: &Traced) -> &'static str {
    match t.product {
        true if t.op.starts_with("attention") => "attention",
        true => "matmul and convolution",
        false => "the rest",
    }
}

/// Operators that read of their first operand no more than they write.
const SPARSE: [&str; 4] = ["embedding", "gather", "index", "index_select"];

/// Bytes that a step cannot help moving: every element of its operands once, broadcast ones not repeated.
fn touched(step: &Step) -> f64 {
    let bytes = |v: &TensorView| {
        let dims = v.layout.shape.iter().zip(v.layout.strides.iter());
        dims.map(|(&n, &s)| if s == 0 { n.min(1) } else { n }).product::<usize>() * v.dtype.size()
    };
    let written: usize = step.writes.iter().map(bytes).sum();
    let read =
        step.reads.iter().flatten().enumerate().map(|(i, v)| match SPARSE.contains(&step.op) && i == 0 {
            true => bytes(v).min(written),
            false => bytes(v),
        });
    (written + read.sum::<usize>()) as f64
}
