//! What is in a model and what training it needs, without running it and without reading its weights.

use crate::core::device::{Device, Support};
use crate::core::graph::{InputRole, OutputRole, Phase};
use crate::core::ops::Body;
use crate::core::plan::{Bindings, Plan};
use crate::core::{DType, Graph, OpCx, TensorType, pass};
use crate::model::{Bound, Model};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;

/// One operator of the training step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OperatorUse {
    /// ATen name.
    pub name: String,
    /// How often it stands in the forward part.
    pub forward: usize,
    /// How often in the backward part.
    pub backward: usize,
    /// Floating-point operations of all uses.
    pub flops: f64,
    /// Bytes of all operands of all uses.
    pub bytes: f64,
    /// How the device runs it: `native`, `reference`, or why not.
    pub support: String,
}

/// What a module of the model holds and does.
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
}

/// Bytes by kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct MemoryUse {
    /// Parameters.
    pub parameters: usize,
    /// Buffers and constants.
    pub buffers: usize,
    /// Gradients.
    pub gradients: usize,
    /// AdamW's two moments, in f32 or wider.
    pub moments: usize,
    /// The arena: activations, temporary gradients and workspaces at their peak.
    pub arena: usize,
    /// What the user feeds and the model returns.
    pub inputs_outputs: usize,
}

impl MemoryUse {
    /// All of it.
    pub fn total(&self) -> usize {
        self.parameters + self.buffers + self.gradients + self.moments + self.arena + self.inputs_outputs
    }
}

/// What an inspection found.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// Version of PyTorch that made the export.
    pub torch: String,
    /// What the user feeds: name and type.
    pub inputs: Vec<(String, String)>,
    /// Symbolic sizes and what they were bound to.
    pub sizes: BTreeMap<String, i64>,
    /// Parameter tensors, and how many of them are trained.
    pub tensors: (usize, usize),
    /// Elements of all parameters, and of the trained ones.
    pub parameters: (usize, usize),
    /// Operators by work, most first.
    pub operators: Vec<OperatorUse>,
    /// Modules by path.
    pub modules: Vec<ModuleUse>,
    /// Memory of a training step.
    pub memory: MemoryUse,
    /// Bytes of the arena in use at every step of the plan.
    pub live: Vec<usize>,
    /// Trained parameters that get no gradient, with the reason.
    pub without_gradient: Vec<String>,
    /// What was dropped or assumed when importing.
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

/// Inspects a bound model for training on a device.
///
/// # Errors
/// What the passes refuse.
pub fn inspect(model: &Model, bound: &Bound, device: &dyn Device) -> Result<Inspection> {
    let graph = pass::decompose(bound.graph.clone())?;
    let loss =
        graph.outputs.iter().find(|o| o.role == OutputRole::User).context("the model returns nothing")?.value;
    let d = pass::differentiate(graph, loss)?;
    let graph = pass::simplify(pass::decompose(d.graph)?).graph;
    let operators = operators(&graph, device);
    let plan = pass::plan(
        &pass::fuse(graph.clone())?,
        &Bindings::simple(&pass::fuse(graph.clone())?),
        device.caps(),
    )?;
    let (live, at) = live_bytes(&plan);
    let bytes = |role: &dyn Fn(&InputRole) -> bool| -> usize {
        graph.inputs.iter().filter(|i| role(&i.role)).map(|i| graph.ty(i.value).bytes()).sum()
    };
    let gradients = || graph.outputs.iter().filter(|o| matches!(o.role, OutputRole::Gradient(_)));
    let wide = |t: &TensorType| t.shape.numel() * t.dtype.size().max(DType::F32.size());
    let returned: usize =
        graph.outputs.iter().filter(|o| o.role == OutputRole::User).map(|o| graph.ty(o.value).bytes()).sum();
    let memory = MemoryUse {
        parameters: bytes(&|r| matches!(r, InputRole::Parameter { .. })),
        buffers: bytes(&|r| matches!(r, InputRole::Buffer { .. } | InputRole::Constant)),
        gradients: gradients().map(|o| graph.ty(o.value).bytes()).sum(),
        moments: gradients().map(|o| 2 * wide(graph.ty(o.value))).sum(),
        arena: plan.segments[0].bytes,
        inputs_outputs: bytes(&|r| *r == InputRole::User) + returned,
    };
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
        tensors: (all.0, trained.0),
        parameters: (all.1, trained.1),
        operators,
        modules: modules(&graph, &plan, at),
        memory,
        live,
        without_gradient: d.missing.iter().map(|m| format!("{}: {}", m.parameter, m.reason)).collect(),
        notes: bound.notes.iter().map(|n| n.to_string()).collect(),
    })
}

fn operators(graph: &Graph, device: &dyn Device) -> Vec<OperatorUse> {
    let mut by_name: BTreeMap<&str, OperatorUse> = BTreeMap::new();
    for node in &graph.nodes {
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let cx =
            OpCx { inputs: node.inputs.iter().map(|v| v.map(|v| graph.ty(v))).collect(), attrs: &node.attrs };
        let (flops, bytes) = node.op.cost_of(&cx, &types);
        let support = match node.op.body {
            Body::Kernel(_) => match device.caps().support(node.op, &cx, &types) {
                Support::Native => "native".to_string(),
                Support::Reference => "reference".to_string(),
                Support::Missing(why) => why,
            },
            _ => "native".to_string(),
        };
        let entry = by_name.entry(node.op.name).or_default();
        entry.name = node.op.name.to_string();
        match node.phase {
            Phase::Forward => entry.forward += 1,
            _ => entry.backward += 1,
        }
        entry.flops += flops;
        entry.bytes += bytes;
        // The worst support of any use counts.
        if entry.support.is_empty() || entry.support == "native" {
            entry.support = support;
        }
    }
    let mut all: Vec<OperatorUse> = by_name.into_values().collect();
    all.sort_by(|a, b| {
        b.flops.total_cmp(&a.flops).then(b.bytes.total_cmp(&a.bytes)).then(a.name.cmp(&b.name))
    });
    all
}

/// Bytes of the arena in use at each step, and the step at which most are.
fn live_bytes(plan: &Plan) -> (Vec<usize>, usize) {
    let mut change = vec![0isize; plan.steps.len() + 1];
    for p in &plan.placements {
        change[p.first] += p.bytes as isize;
        change[p.last + 1] -= p.bytes as isize;
    }
    let live: Vec<usize> = change[..plan.steps.len()]
        .iter()
        .scan(0isize, |sum, c| {
            *sum += c;
            Some(*sum as usize)
        })
        .collect();
    let at = (0..live.len()).max_by_key(|&s| (live[s], std::cmp::Reverse(s))).unwrap_or(0);
    (live, at)
}

/// How deep module paths are told apart.
const DEPTH: usize = 3;

fn modules(graph: &Graph, plan: &Plan, peak: usize) -> Vec<ModuleUse> {
    let mut by_path: BTreeMap<String, ModuleUse> = BTreeMap::new();
    let mut at = |path: &str, f: &mut dyn FnMut(&mut ModuleUse)| {
        let path: Vec<&str> = path.split('.').take(DEPTH).collect();
        f(by_path.entry(path.join(".")).or_default());
    };
    for input in graph.parameters() {
        let path = input.name.rsplit_once('.').map_or("", |(p, _)| p);
        at(path, &mut |m| m.parameters += graph.ty(input.value).shape.numel());
    }
    for node in &graph.nodes {
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let cx =
            OpCx { inputs: node.inputs.iter().map(|v| v.map(|v| graph.ty(v))).collect(), attrs: &node.attrs };
        at(&graph.origin(node).module, &mut |m| m.flops += node.op.cost_of(&cx, &types).0);
    }
    for p in plan.placements.iter().filter(|p| p.first <= peak && peak <= p.last) {
        at(&plan.origins[p.origin.0 as usize].module, &mut |m| m.peak += p.bytes);
    }
    let named = |(path, m): (String, ModuleUse)| ModuleUse {
        path: if path.is_empty() { "(root)".into() } else { path },
        ..m
    };
    by_path.into_iter().map(named).collect()
}
