//! Inspection of a model and of its training step, without running it and without reading its weights.

mod predicted;
pub mod tables;
mod types;

use crate::core::compile::{self, Stage, StageResult};
use crate::core::device::{Device, StepUse};
use crate::core::graph::{InputRole, OutputRole};
use crate::core::pass::precision::Level;
use crate::core::plan::{Plan, Step};
use crate::core::stats::{self, Held, OperatorWork};
use crate::core::target::Support;
use crate::core::{Graph, TensorType, pass};
use crate::devices;
use crate::model::{BoundModel, Model};
use crate::precision::{PrecisionUse, summary};
pub use crate::runtime::session::MemoryUse;
use crate::runtime::session::{Planned, Training};
use crate::runtime::trainer::Recomputation;
use anyhow::{Context, Result};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
pub use types::ModuleTypeUse;
use types::module_types;

/// One operator of the training step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OperatorUse {
    /// ATen name.
    pub name: String,
    /// Uses in the forward part.
    pub forward: usize,
    /// Uses in the backward part.
    pub backward: usize,
    /// Floating-point operations of all uses.
    pub flops: f64,
    /// Bytes of all operands of all uses.
    pub bytes: f64,
    /// Support by the device: `native`, `reference`, or why not.
    pub support: String,
}

/// The way steps of one operator run on the device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StepsUse {
    /// The operator, as steps name it.
    pub name: String,
    /// Steps of the plan.
    pub steps: usize,
    /// Kernels that they launch.
    pub launches: usize,
    /// Steps that run through the reference on the host, by the reason why.
    pub host: BTreeMap<String, usize>,
    /// Steps that operators of a vendor's library compute, by its function.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub vendor: BTreeMap<String, usize>,
    /// Steps that they do not compute though requested, by the reason why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub not_vendor: BTreeMap<String, usize>,
    /// Predicted seconds of its kernels, launched one by one, where the device predicts them.
    pub predicted: Option<f64>,
    /// The same where recorded launches are replayed.
    pub replayed: Option<f64>,
    /// Predicted seconds of its kernels alone.
    pub kernels: Option<f64>,
    /// Predicted seconds for which each unit of the device is busy in that, means over its cores.
    pub busy: BTreeMap<&'static str, f64>,
}

/// Predicted time of a step: the gradients, and the update where the model trains.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StepTime {
    /// Seconds from the first launch to the end of the last kernel. The host launches while kernels run.
    pub seconds: f64,
    /// Seconds of kernels alone.
    pub kernels: f64,
    /// Seconds from the first launch to the end of the last kernel where recorded launches are replayed.
    pub replayed: f64,
    /// Seconds that the host needs for all launches.
    pub launching: f64,
    /// Seconds for which the device's memory is busy in the kernels' time. Each launch finds in the cache
    /// what it left there itself, as if it ran again: what launches in between would have replaced is not
    /// read or written again.
    pub memory: f64,
    /// Bytes that the predicted steps read and write, each operand once a step. Where the cache began empty,
    /// so many would go over the memory's interface at least.
    pub operand_bytes: f64,
    /// Steps that run on the host, whose time is not counted.
    pub host: usize,
    /// Steps by operators of a vendor's library, whose time is not counted.
    pub vendor: usize,
}

/// A value that is in the arena at its fullest moment.
#[derive(Clone, Debug, Serialize)]
pub struct HeldValue {
    /// The operator that makes it.
    pub op: String,
    /// Its place in the model.
    pub place: String,
    /// Bytes.
    pub bytes: usize,
    /// First and last step of the plan at which it is needed.
    pub steps: (usize, usize),
    /// True for its operator's workspace, which holds no value.
    pub workspace: bool,
}

/// Parameters, work and memory of a module.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModuleUse {
    /// Path, `(root)` for the model itself.
    pub path: String,
    /// Elements of its parameters.
    pub parameters: usize,
    /// Floating-point operations, forward and backward.
    pub flops: f64,
    /// Bytes of the arena it holds when the arena is fullest.
    pub peak: usize,
    /// Predicted seconds of the kernels of its steps, forward and backward, where the device predicts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels: Option<f64>,
}

/// Result of an inspection.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// Version of PyTorch that made the export.
    pub torch: String,
    /// Inputs that the user feeds: name and type.
    pub inputs: Vec<(String, String)>,
    /// Symbolic sizes and what they were bound to.
    pub sizes: BTreeMap<String, i64>,
    /// A dimension of an input that each of them is, as `--dim` takes it.
    pub places: BTreeMap<String, String>,
    /// Parameter tensors, and how many of them are trained.
    pub tensors: (usize, usize),
    /// Elements of all parameters, and of the trained ones.
    pub parameters: (usize, usize),
    /// Which operator computes in what, if a level of mixed precision was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<PrecisionUse>,
    /// Operators by work, most first.
    pub operators: Vec<OperatorUse>,
    /// Steps of the plans of gradients and update by operator, slowest first.
    pub steps: Vec<StepsUse>,
    /// Predicted time of all of them, where the device predicts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<StepTime>,
    /// In a sentence, what bounds that time, and what would help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<String>,
    /// Bytes of memory of the device, where it is a chip whose memory is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<usize>,
    /// A remark of the device's that belongs beside its figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Modules by path.
    pub modules: Vec<ModuleUse>,
    /// Steps of the plan of gradients by type of module, most first.
    pub module_types: Vec<ModuleTypeUse>,
    /// Memory of a training step, as a run of it takes.
    pub memory: MemoryUse,
    /// Bytes that operators of a vendor's library take beside it, on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor_workspace: Option<usize>,
    /// The optimizer whose state is counted, if the model trains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<String>,
    /// Cost of the memory budget, if it demanded anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recomputed: Option<Recomputation>,
    /// Buckets of gradients, in the order in which they are complete, for parameters of one group of
    /// settings.
    pub buckets: Vec<BucketUse>,
    /// Bytes of the arena in use at every step of the plan.
    pub live: Vec<usize>,
    /// Step of the plan at which most are, and what takes most of them, the largest first.
    pub peak: (usize, Vec<HeldValue>),
    /// Trained parameters that get no gradient, with the reason.
    pub without_gradient: Vec<String>,
    /// Notes on things that were dropped or assumed when importing.
    pub notes: Vec<String>,
}

impl Inspection {
    /// Operators the device cannot run.
    pub fn missing(&self) -> impl Iterator<Item = &OperatorUse> {
        self.operators.iter().filter(|o| o.support != "native" && o.support != "reference")
    }

    /// Floating-point operations of a step.
    pub fn flops(&self) -> f64 {
        self.operators.iter().map(|o| o.flops).sum()
    }
}

/// Inspects a bound model for training on a device with these settings, planned as a run plans it; its
/// forward pass alone if it returns no loss.
///
/// # Errors
/// Refusals of the passes; `Config` for settings out of range.
pub fn inspect(
    model: &Model,
    bound: &BoundModel,
    device: &dyn Device,
    settings: &Training,
) -> Result<Inspection> {
    let p = &settings.precision.properties(device.target())?;
    let first = bound.graph.outputs.iter().find(|o| o.role == OutputRole::User);
    let first = bound.graph.ty(first.context("the model returns nothing")?.value);
    let precision = match p.level {
        Level::O0 => None,
        _ => Some(summary(&pass::mixed(&bound.graph, p)?, DEPTH)),
    };
    let mut notes: Vec<String> = bound.notes.iter().map(|n| n.to_string()).collect();
    notes.extend(bound.remarks());
    let trains = compile::has_loss(&bound.graph);
    if !trains {
        notes.push(format!(
            "the first output is {first} and no loss, so this is the forward pass alone; to train, export a module \
             whose forward returns the loss first"
        ));
    }
    // Operators are counted before they are fused.
    let unfused = RefCell::new(Graph::default());
    let watch = |stage: &'static Stage, made: &StageResult| {
        if let ("simplify", StageResult::Graph(graph)) = (stage.name, made) {
            *unfused.borrow_mut() = (*graph).clone();
        }
    };
    let planned = match trains {
        true => Planned::training(&bound.graph, settings, device.target(), Some(&watch))?,
        false => Planned::forward(&bound.graph, p, device.target(), Some(&watch))?,
    };
    let plan = planned.plan();
    let graph = unfused.into_inner();
    let operators = operators(&graph, device);
    let (peak_step, peak) = stats::peak(plan, DEPTH).map_or((0, vec![]), |p| (p.step, p.modules));
    let plans: Vec<&Plan> = [Some(plan), planned.update_plan()].into_iter().flatten().collect();
    let surveys: Vec<Vec<StepUse>> = plans.iter().map(|plan| device.survey(plan)).collect();
    let module_types = module_types(plan, &surveys[0]);
    let module_seconds = predicted::by_module(plan, &surveys[0]);
    let vendor_workspace = surveys.iter().filter_map(|used| workspace(used)).reduce(|a, b| a + b);
    let (steps, predicted) =
        steps(plans.iter().zip(surveys).flat_map(|(plan, used)| plan.steps.iter().zip(used)));
    let counted = |trained: bool| {
        let all = graph
            .parameters()
            .filter(|i| !trained || matches!(i.role, InputRole::Parameter { trainable: true, .. }));
        all.fold((0, 0), |(n, e), i| (n + 1, e + graph.ty(i.value).shape.numel()))
    };
    let (all, trained) = (counted(false), counted(true));
    Ok(Inspection {
        torch: model.program.torch_version().to_string(),
        inputs: bound.user_inputs().map(|(n, t)| (n.to_string(), t.to_string())).collect(),
        sizes: bound.sizes.clone(),
        places: model
            .program
            .symbols()
            .iter()
            .filter_map(|s| Some((s.name.clone(), s.places.first()?.clone())))
            .collect(),
        tensors: (all.0, trained.0),
        parameters: (all.1, trained.1),
        precision,
        operators,
        bound: predicted.as_ref().map(|time| time.said(&steps)),
        steps,
        predicted,
        device_memory: devices::chip_memory(device.name()),
        remark: device.remark().map(str::to_string),
        modules: modules(&graph, &peak, module_seconds),
        module_types,
        memory: planned.memory(),
        vendor_workspace,
        optimizer: trains.then(|| settings.optimizer.name().to_string()),
        recomputed: planned.rematerialized().map(Recomputation::from),
        buckets: buckets(plan),
        live: stats::live_bytes(plan),
        peak: (peak_step, held(plan, peak_step)),
        without_gradient: planned
            .missing()
            .iter()
            .map(|m| format!("{}: {}", m.parameter, m.reason))
            .collect(),
        notes,
    })
}

/// A bucket of gradients in a plan.
#[derive(Clone, Debug, Serialize)]
pub struct BucketUse {
    /// Name of its segment.
    pub name: String,
    /// Bytes.
    pub bytes: usize,
    /// The step after which it is complete, counted from 0.
    pub complete: usize,
    /// Steps of the plan.
    pub steps: usize,
}

/// The buckets of a plan, in the order in which they are complete.
pub fn buckets(plan: &Plan) -> Vec<BucketUse> {
    let used = plan.completions.iter().map(|c| {
        let segment = &plan.segments[c.segment.0 as usize];
        let (name, bytes) = (segment.name.clone(), segment.bytes);
        BucketUse { name, bytes, complete: c.step, steps: plan.steps.len() }
    });
    let mut used: Vec<BucketUse> = used.collect();
    used.sort_by_key(|b| b.complete);
    used
}

/// Bytes that operators of a vendor's library share in a plan, if any computes a step.
fn workspace(used: &[StepUse]) -> Option<usize> {
    used.iter().filter(|step| matches!(step.vendor, Some(Ok(_)))).map(|step| step.workspace).max()
}

/// Steps by operator, and the time of all of them.
fn steps<'a>(all: impl Iterator<Item = (&'a Step, StepUse)>) -> (Vec<StepsUse>, Option<StepTime>) {
    let mut by_name: BTreeMap<&str, StepsUse> = BTreeMap::new();
    let (mut time, mut predicts) = (StepTime::default(), false);
    for (step, used) in all {
        let all = by_name
            .entry(step.op)
            .or_insert_with(|| StepsUse { name: step.op.into(), ..StepsUse::default() });
        all.steps += 1;
        all.launches += used.launches;
        if let Some(why) = used.host {
            *all.host.entry(why).or_default() += 1;
            time.host += 1;
        }
        match used.vendor {
            Some(Ok(function)) => {
                *all.vendor.entry(function.into()).or_default() += 1;
                time.vendor += 1;
            }
            Some(Err(why)) => *all.not_vendor.entry(why).or_default() += 1,
            None => {}
        }
        let Some(predicted) = used.predicted else { continue };
        predicts = true;
        let kernels: f64 = predicted.kernels.iter().sum();
        let launching = predicted.launch * predicted.kernels.len() as f64;
        *all.kernels.get_or_insert(0.0) += kernels;
        *all.predicted.get_or_insert(0.0) += kernels + launching;
        *all.replayed.get_or_insert(0.0) += kernels + predicted.replay;
        let memory = all.busy.get("memory").copied().unwrap_or(0.0);
        for (unit, seconds) in predicted.busy {
            *all.busy.entry(unit).or_default() += seconds;
        }
        time.memory += all.busy.get("memory").copied().unwrap_or(0.0) - memory;
        let operands = step.reads.iter().flatten().chain(&step.writes);
        time.operand_bytes += operands.map(|view| view.ty().bytes() as f64).sum::<f64>();
        time.kernels += kernels;
        time.replayed += predicted.replay + kernels;
        for kernel in predicted.kernels {
            time.launching += predicted.launch;
            time.seconds = time.seconds.max(time.launching) + kernel;
        }
    }
    let mut steps: Vec<StepsUse> = by_name.into_values().collect();
    steps.sort_by(|a, b| b.predicted.unwrap_or(0.0).total_cmp(&a.predicted.unwrap_or(0.0)));
    (steps, predicts.then_some(time))
}

pub(crate) fn operators(graph: &Graph, device: &dyn Device) -> Vec<OperatorUse> {
    // The worst support of any use counts.
    let mut support: HashMap<&str, String> = HashMap::new();
    // Programs as they run, node by node; integers that do not fit and go nowhere else are shown as missing.
    let target = device.target();
    let run = pass::on_host(graph.clone(), target).and_then(|g| pass::narrow_integers(g, target));
    let run = run.unwrap_or_else(|_| graph.clone());
    for (node, runs) in graph.nodes.iter().zip(&run.nodes) {
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let found = match device.target().support(runs.op, &run.cx(runs), &types) {
            Support::Native | Support::Expand => continue,
            Support::Reference => "reference".to_string(),
            Support::Missing(why) => why,
        };
        let worst = support.entry(node.op.name).or_insert_with(|| found.clone());
        if worst == "reference" {
            *worst = found;
        }
    }
    let used = |w: OperatorWork| OperatorUse {
        name: w.op.name.to_string(),
        forward: w.nodes[0],
        backward: w.nodes[1] + w.nodes[2],
        flops: w.flops,
        bytes: w.bytes,
        support: support.get(w.op.name).cloned().unwrap_or_else(|| "native".into()),
    };
    stats::operators(graph).into_iter().map(used).collect()
}

/// Names of a module path beyond which modules are not distinguished.
const DEPTH: usize = 3;

/// Values of the peak that are listed.
const LISTED: usize = 14;

/// The largest values in the arena at a step.
fn held(plan: &Plan, step: usize) -> Vec<HeldValue> {
    let there = plan.placements.iter().filter(|p| p.first <= step && step <= p.last);
    let mut all: Vec<_> = there.collect();
    all.sort_by_key(|p| (std::cmp::Reverse(p.bytes), p.first));
    let value = |p: &crate::core::plan::Placement| {
        let by = &plan.steps[p.first];
        let workspace = by.workspace.is_some_and(|(place, _)| place == p.place);
        let shared = workspace && p.first < p.last;
        HeldValue {
            op: if shared { "several".into() } else { by.op.to_string() },
            place: match plan.origins.get(p.origin.0 as usize).filter(|_| !shared) {
                Some(origin) => origin.to_string(),
                None => String::new(),
            },
            bytes: p.bytes,
            steps: (p.first, p.last),
            workspace,
        }
    };
    all.into_iter().take(LISTED).map(value).collect()
}

fn modules(graph: &Graph, peak: &[(String, Held)], seconds: BTreeMap<String, f64>) -> Vec<ModuleUse> {
    let mut by_path: BTreeMap<String, ModuleUse> = BTreeMap::new();
    for (path, m) in stats::modules(graph, DEPTH) {
        let used = by_path.entry(path).or_default();
        (used.parameters, used.flops) = (m.parameters, m.flops);
    }
    for (path, held) in peak {
        by_path.entry(path.clone()).or_default().peak = held.total();
    }
    for (path, seconds) in seconds {
        by_path.entry(path).or_default().kernels = Some(seconds);
    }
    let named = |(path, m): (String, ModuleUse)| ModuleUse {
        path: if path.is_empty() { "(root)".into() } else { path },
        ..m
    };
    by_path.into_iter().map(named).collect()
}
