//! Algebraic simplification, constant folding, common subexpression and dead code elimination. Constants are
//! folded, identities and masks that are known beforehand are dropped, products exchanged, slices joined,
//! equal nodes merged, dead nodes removed.
//!
//! Every rewrite here is *exact*: in the reference interpreter the outputs keep their bits. Derivatives are
//! not kept (`detach` is an identity), so this comes after differentiation. It comes before recomputation,
//! whose duplicates it would merge again. One walk in topological order reaches the fixed point, because each
//! rewrite looks only at nodes that are final already. Time is linear in the graph's size.

mod constants;
mod dead;
mod exchange;
mod expression;
mod identity;
mod mask;
mod slices;

pub use constants::LIMIT;
pub use dead::{live, remove_dead};

use crate::graph::{Graph, Node, ValueId};
use constants::Constants;
use std::collections::HashMap;

/// A simplified graph and what was done. Inputs and outputs keep their order, names and roles; values and
/// nodes are numbered anew.
#[derive(Debug, Default)]
pub struct Simplified {
    /// The graph.
    pub graph: Graph,
    /// Nodes replaced by constants.
    pub folded: usize,
    /// Nodes that gave an operand back unchanged.
    pub identities: usize,
    /// Products made with their operands exchanged rather than their results.
    pub exchanged: usize,
    /// Slices in zeros that were concatenated rather than summed.
    pub joined: usize,
    /// Masks of attention that say nothing, or only what `is_causal` says.
    pub masks: usize,
    /// Nodes equal to an earlier one.
    pub merged: usize,
    /// Nodes nothing depended on.
    pub dead: usize,
}

/// Simplifies a legal graph.
pub fn simplify(graph: Graph) -> Simplified {
    // Nothing dead is looked at; what the rewrites leave dead goes at the end.
    let (graph, dead) = remove_dead(graph);
    let (mut graph, joined) = slices::join(graph);
    let mut done = Simplified { joined, dead, ..Simplified::default() };
    let mut alias: Vec<ValueId> = (0..graph.values.len() as u32).map(ValueId).collect();
    let mut users = vec![0u32; graph.values.len()];
    let read = graph.nodes.iter().flat_map(|n| n.operands()).chain(graph.outputs.iter().map(|o| o.value));
    read.for_each(|v| users[v.0 as usize] += 1);
    let mut constants = Constants::default();
    let mut nodes = Merged::default();
    for mut node in std::mem::take(&mut graph.nodes) {
        for v in node.inputs.iter_mut().flatten() {
            *v = alias[v.0 as usize];
        }
        identity::shorten_cast(&graph, &nodes, &mut node);
        done.masks += mask::drop_known(&graph, &constants, &nodes, &mut node) as usize;
        let alone = |v: ValueId| users.get(v.0 as usize) == Some(&1);
        if let Some(before) = exchange::exchange(&mut graph, &nodes, &alone, &mut node) {
            done.exchanged += 1;
            if let Some(before) = before {
                alias.extend(before.outputs.iter().copied());
                nodes.push(&graph, before, &mut alias);
                node.inputs.iter_mut().flatten().for_each(|v| *v = alias[v.0 as usize]);
            }
        }
        if let Some(same) = identity::same_as(&graph, &constants, &node) {
            alias[node.outputs[0].0 as usize] = same;
            done.identities += 1;
            continue;
        }
        let folded = constants.fold(&graph, &node);
        done.folded += folded.is_some() as usize;
        for node in folded.unwrap_or_else(|| vec![node]) {
            done.merged += nodes.push(&graph, node, &mut alias) as usize;
        }
    }
    graph.nodes = nodes.nodes;
    graph.outputs.iter_mut().for_each(|o| o.value = alias[o.value.0 as usize]);
    let (graph, dead) = remove_dead(graph);
    Simplified { graph, dead: done.dead + dead, ..done }
}

/// The nodes kept so far, found by what they compute.
#[derive(Default)]
struct Merged {
    nodes: Vec<Node>,
    makers: HashMap<ValueId, usize>,
    seen: HashMap<(&'static str, Vec<Option<ValueId>>, String), usize>,
}

impl Merged {
    /// The node that makes a value, unless it is an input.
    fn maker(&self, v: ValueId) -> Option<&Node> {
        self.makers.get(&v).map(|&at| &self.nodes[at])
    }

    /// Keeps a node, or lets an equal one stand for it; says whether it did.
    ///
    /// The text of attributes is exact, so equal texts are equal attributes. Random nodes are equal if their
    /// streams are, and then so are their numbers.
    fn push(&mut self, graph: &Graph, node: Node, alias: &mut [ValueId]) -> bool {
        // A large tensor made from nothing is cheaper to make again than to keep.
        let again = node.inputs.is_empty() && node.outputs.iter().any(|&v| graph.ty(v).shape.numel() > LIMIT);
        if !again {
            let at = self.nodes.len();
            let key = (node.op.name, node.inputs.clone(), node.attrs.to_string());
            let first = *self.seen.entry(key).or_insert(at);
            if first != at {
                let kept = &mut self.nodes[first];
                // Users of either may belong to the earlier phase.
                kept.phase = kept.phase.min(node.phase);
                for (old, new) in node.outputs.iter().zip(&kept.outputs) {
                    alias[old.0 as usize] = *new;
                }
                return true;
            }
        }
        self.makers.extend(node.outputs.iter().map(|&v| (v, self.nodes.len())));
        self.nodes.push(node);
        false
    }
}
