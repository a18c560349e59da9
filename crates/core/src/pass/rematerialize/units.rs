//! The smallest parts of the forward pass that can run a second time. Each is a node, or the part of a row
//! program of several results that makes one of them, given the others.

use crate::diagnostic::Result;
use crate::graph::{Graph, Node, Phase};
use crate::ops::Body;
use crate::pass::fuse::merge::{Group, fused_node, reduces};
use crate::pass::recompute::join::keeps_order;
use crate::pass::recompute::part;
use crate::row::Instr;
use crate::target::Target;

/// See the module's description.
pub(super) struct Unit {
    /// The node that runs; its results stand for those of the graph.
    pub node: Node,
    /// Floating-point operations.
    pub flops: f64,
    /// Seconds at the target's nominal rates.
    pub seconds: f64,
}

/// The units of the forward pass, each after what it reads.
///
/// # Errors
/// Refusals of an operator's own program rule.
pub(super) fn units(graph: &Graph, target: &Target) -> Result<Vec<Unit>> {
    let mut out = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        if node.phase != Phase::Forward || matches!(node.op.body, Body::View(_)) {
            continue;
        }
        let nodes = match parts(graph, node, target)? {
            Some(parts) => parts,
            None => vec![Node { phase: Phase::Backward, ..node.clone() }],
        };
        for node in nodes {
            let (flops, seconds) = work(graph, &node, target);
            out.push(Unit { node, flops, seconds });
        }
    }
    Ok(out)
}

/// The parts of a row program of several results, by where it stores them. `None` if it has one alone, or if
/// its other results change the order of its sums.
fn parts(graph: &Graph, node: &Node, target: &Target) -> Result<Option<Vec<Node>>> {
    if node.outputs.len() < 2 {
        return Ok(None);
    }
    let Some(group) = Group::of(graph, node)? else { return Ok(None) };
    if reduces(&group.program) && !keeps_order(&group, &target.rows) {
        return Ok(None);
    }
    let mut stored = vec![0; node.outputs.len()];
    for instr in &group.program.body {
        if let Instr::Store(w, r) | Instr::Columns(w, r) = *instr {
            stored[w] = r;
        }
    }
    let mut order: Vec<usize> = (0..stored.len()).collect();
    order.sort_by_key(|&w| stored[w]);
    let mut out = Vec::with_capacity(order.len());
    for &w in &order {
        let Some(part) = part(&group, &[w], &|other| stored[other] < stored[w], true) else {
            return Ok(None);
        };
        out.push(fused_node(graph, part, node.origin, Phase::Backward)?);
    }
    Ok(Some(out))
}

/// Floating-point operations of a node, and seconds at the target's nominal rates.
pub(super) fn work(graph: &Graph, node: &Node, target: &Target) -> (f64, f64) {
    if matches!(node.op.body, Body::View(_)) {
        return (0.0, 0.0);
    }
    let types: Vec<_> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
    let cx = graph.cx(node);
    let (flops, bytes) = node.op.cost_of(&cx, &types);
    let operand = cx.present().next().or(types.first()).map(|t| t.dtype);
    (flops, target.rates.seconds(operand, flops, bytes))
}
