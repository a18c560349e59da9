//! The work of a graph and the contents of a plan, counted: pure functions of plain data, for reports.
//!
//! Owns the counting; how it is shown is the command line's business.

use crate::graph::{Graph, Node, Phase};
use crate::ops::OpDef;
use crate::plan::{Placement, Plan};
use std::collections::{BTreeMap, HashMap};

/// Uses of one operator in a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorWork {
    /// The operator.
    pub op: &'static OpDef,
    /// Number of nodes of each phase: forward, backward, update.
    pub nodes: [usize; 3],
    /// Floating-point operations of all of them.
    pub flops: f64,
    /// Bytes of all their operands, each once.
    pub bytes: f64,
}

/// The operators of a graph, those with most floating-point operations (then bytes) first.
pub fn operators(graph: &Graph) -> Vec<OperatorWork> {
    let mut by_name: HashMap<&str, OperatorWork> = HashMap::new();
    for node in &graph.nodes {
        let (flops, bytes) = work(graph, node);
        let entry = by_name.entry(node.op.name).or_insert(OperatorWork {
            op: node.op,
            nodes: [0; 3],
            flops: 0.0,
            bytes: 0.0,
        });
        entry.nodes[node.phase as usize] += 1;
        entry.flops += flops;
        entry.bytes += bytes;
    }
    let mut all: Vec<OperatorWork> = by_name.into_values().collect();
    let most = |a: &OperatorWork, b: &OperatorWork| {
        b.flops.total_cmp(&a.flops).then(b.bytes.total_cmp(&a.bytes)).then(a.op.name.cmp(b.op.name))
    };
    all.sort_by(most);
    all
}

/// Floating-point operations and bytes of operands of a node.
pub fn work(graph: &Graph, node: &Node) -> (f64, f64) {
    let types: Vec<_> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
    node.op.cost_of(&graph.cx(node), &types)
}

/// The parameters and work of a module with all modules inside it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModuleWork {
    /// Elements of the parameters; a tied one counts where its first name is.
    pub parameters: usize,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes of operands.
    pub bytes: f64,
}

/// The modules of a graph by path, cut after `depth` names; the model itself is the empty path.
pub fn modules(graph: &Graph, depth: usize) -> BTreeMap<String, ModuleWork> {
    let mut by_path: BTreeMap<String, ModuleWork> = BTreeMap::new();
    for input in graph.parameters() {
        let module = input.name.rsplit_once('.').map_or("", |(module, _)| module);
        by_path.entry(prefix(module, depth)).or_default().parameters += graph.ty(input.value).shape.numel();
    }
    for node in &graph.nodes {
        let (flops, bytes) = work(graph, node);
        let entry = by_path.entry(prefix(&graph.origin(node).module, depth)).or_default();
        entry.flops += flops;
        entry.bytes += bytes;
    }
    by_path
}

/// The first `depth` names of a module path.
fn prefix(path: &str, depth: usize) -> String {
    let end = path.match_indices('.').nth(depth.saturating_sub(1)).map_or(path.len(), |(at, _)| at);
    path[..if depth == 0 { 0 } else { end }].to_string()
}

/// Bytes of the arena by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Results of the forward phase, kept for the backward one or on their way.
    pub activations: usize,
    /// Results of the backward phase.
    pub gradients: usize,
    /// Results of the update.
    pub update: usize,
    /// Scratch memory of kernels.
    pub workspace: usize,
}

impl Held {
    /// All of them.
    pub fn total(&self) -> usize {
        self.activations + self.gradients + self.update + self.workspace
    }

    fn add(&mut self, plan: &Plan, p: &Placement) {
        let slot = match plan.steps[p.first].phase {
            _ if is_workspace(plan, p) => &mut self.workspace,
            Phase::Forward => &mut self.activations,
            Phase::Backward => &mut self.gradients,
            Phase::Update => &mut self.update,
        };
        *slot += p.bytes;
    }
}

fn is_workspace(plan: &Plan, p: &Placement) -> bool {
    plan.steps[p.first].workspace.is_some_and(|(place, _)| place == p.place)
}

/// The fullest moment of a plan's arena.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// The first step at which most bytes are in use.
    pub step: usize,
    /// Who holds them, by kind.
    pub held: Held,
    /// And by module, cut after some names, as in [`modules`]; the one that holds most first.
    pub modules: Vec<(String, Held)>,
    /// Size of the arena in bytes: what is held, and what alignment and gaps between buffers add.
    pub arena: usize,
}

/// Bytes of the arena in use at every step.
pub fn live_bytes(plan: &Plan) -> Vec<usize> {
    let mut starting = vec![0; plan.steps.len() + 1];
    let mut ended = vec![0; plan.steps.len() + 1];
    for p in &plan.placements {
        starting[p.first] += p.bytes;
        ended[p.last + 1] += p.bytes;
    }
    let mut live = 0;
    (0..plan.steps.len())
        .map(|s| {
            live = live + starting[s] - ended[s];
            live
        })
        .collect()
}

/// The peak of a plan, modules cut after `depth` names; `None` if it has no steps.
pub fn peak(plan: &Plan, depth: usize) -> Option<Peak> {
    let live = live_bytes(plan);
    let step = (0..live.len()).max_by_key(|&s| (live[s], std::cmp::Reverse(s)))?;
    let mut held = Held::default();
    let mut by_path: BTreeMap<String, Held> = BTreeMap::new();
    for p in plan.placements.iter().filter(|p| p.first <= step && step <= p.last) {
        held.add(plan, p);
        // The workspace of several steps belongs to none of their modules.
        let module = match is_workspace(plan, p) && p.first < p.last {
            true => "",
            false => &plan.origins[p.origin.0 as usize].module,
        };
        by_path.entry(prefix(module, depth)).or_default().add(plan, p);
    }
    let mut modules: Vec<_> = by_path.into_iter().collect();
    modules.sort_by_key(|(_, held)| std::cmp::Reverse(held.total()));
    Some(Peak { step, held, modules, arena: plan.segments.first().map_or(0, |s| s.bytes) })
}
