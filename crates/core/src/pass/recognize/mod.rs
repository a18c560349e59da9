//! Pattern matching: finds operators that models spell out in small ones, such as norms and attention. The
//! single operator is at least as accurate, keeps less for the backward pass, and runs faster. Comes before
//! differentiation, so that gradients are those of the operator.
//!
//! A recogniser looks at one node and those before it, and names the one node that may stand in its place.
//! Nodes that are left unused are removed. Nothing else changes: values used elsewhere stay.

mod attention;
mod heads;
mod norm;
mod padding;
mod pooling;

use super::simplify::remove_dead;
use crate::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Def, Graph, Node, NodeId, OriginId, Value, ValueId};
use crate::ops::{OpCx, OpDef};

/// The change that a rewrite may make in results.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Exactness {
    /// Nothing: the same bits in the reference interpreter.
    Exact,
    /// The same operations in the same order, and every rounding that the model asks for by a conversion. A
    /// device that computes in f32 gives the same bits. The reference, which computes in f64, rounds to f32
    /// less often.
    SameAccumulator,
    /// The same accumulators and every rounding that the model asks for, but sums are taken in another order.
    /// Numbers that are rounded only because they go to memory stay in registers.
    Reordered,
    /// The result is rounded otherwise, within the same bound of error.
    ChangesRounding,
}

/// An operator that was found, and its place.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Found {
    /// Name of the operator that stands for it now.
    pub op: &'static str,
    /// The change that it may make.
    pub exactness: Exactness,
    /// The model's line.
    pub origin: OriginId,
}

/// A graph after recognition.
#[derive(Debug)]
pub struct Recognized {
    /// The graph. Inputs and outputs keep their order, names and roles.
    pub graph: Graph,
    /// The operators that were found, in the graph's order.
    pub found: Vec<Found>,
}

/// The node that may stand for another: its first output for that one's only one.
struct Replacement {
    op: &'static OpDef,
    inputs: Vec<Option<ValueId>>,
    attrs: Attrs,
    exactness: Exactness,
}

/// The operator that may stand for a node, the last of a spelling.
type Rule = fn(&Sought, &Node) -> Option<Replacement>;

/// Recognises spelled-out operators in a forward graph. Time is linear in its size.
///
/// # Errors
/// Errors of the operators' type rules: none for a legal graph.
pub fn recognize(graph: Graph) -> Result<Recognized> {
    let spelled = apply(graph, &[norm::rms_norm, attention::spelled, padding::padded, pooling::whole])?;
    let shared = apply(spelled.graph, &[heads::shared])?;
    Ok(Recognized { graph: shared.graph, found: spelled.found.into_iter().chain(shared.found).collect() })
}

/// Recognises keys and values that are repeated for each of the query heads that share them, and nothing
/// else: no operator's precision class changes.
///
/// # Errors
/// As [`recognize`].
pub fn share_heads(graph: Graph) -> Result<Graph> {
    Ok(apply(graph, &[heads::shared])?.graph)
}

fn apply(mut graph: Graph, rules: &[Rule]) -> Result<Recognized> {
    let mut found = Vec::new();
    let mut uses = vec![0; graph.values.len()];
    let used = graph.nodes.iter().flat_map(Node::operands).chain(graph.outputs.iter().map(|o| o.value));
    used.for_each(|v| uses[v.0 as usize] += 1);
    for n in 0..graph.nodes.len() {
        let sought = Sought { graph: &graph, uses: &uses };
        let Some(r) = rules.iter().find_map(|rule| rule(&sought, &graph.nodes[n])) else { continue };
        let inputs = r.inputs.iter().map(|v| v.map(|v| graph.ty(v))).collect();
        let types = (r.op.infer)(&OpCx { inputs, attrs: &r.attrs })?;
        let node = &graph.nodes[n];
        if types.first() != Some(graph.ty(node.outputs[0])) {
            continue;
        }
        found.push(Found { op: r.op.name, exactness: r.exactness, origin: node.origin });
        let id = NodeId(n as u32);
        for (i, ty) in types.into_iter().enumerate().skip(node.outputs.len()) {
            let v = ValueId(graph.values.len() as u32);
            graph.values.push(Value { ty, def: Def::Node(id, i as u32) });
            graph.nodes[n].outputs.push(v);
        }
        let node = &mut graph.nodes[n];
        (node.op, node.inputs, node.attrs) = (r.op, r.inputs, r.attrs);
    }
    Ok(Recognized { graph: remove_dead(graph).0, found })
}

/// A graph in which something is sought, backwards from a node.
struct Sought<'a> {
    graph: &'a Graph,
    /// The number of times that the model uses each value.
    uses: &'a [usize],
}

impl<'a> Sought<'a> {
    /// The node that makes a value as its first output, if it is of this operator.
    fn maker(&self, v: ValueId, op: &'static OpDef) -> Option<&'a Node> {
        let (node, at) = self.graph.producer(v)?;
        (at == 0 && std::ptr::eq(node.op, op)).then_some(node)
    }

    /// True if a value is used in one place, so that nothing of it is left if that is replaced.
    fn once(&self, v: ValueId) -> bool {
        self.uses.get(v.0 as usize) == Some(&1)
    }

    /// The operands of a node that has just two.
    fn pair(node: &Node) -> Option<[ValueId; 2]> {
        match node.inputs[..] {
            [Some(a), Some(b)] => Some([a, b]),
            _ => None,
        }
    }

    /// The operand of a node that has just one.
    fn single(node: &Node) -> Option<ValueId> {
        match node.inputs[..] {
            [Some(a)] => Some(a),
            _ => None,
        }
    }
}
