//! Pattern matching: finds operators that models spell out in small ones, such as norms and attention. The
//! single operator is at least as accurate, keeps less for the backward pass, and runs faster. Comes before
//! differentiation, so that gradients are those of the operator.
//!
//! A recogniser looks at one node and those before it, and names the one node that may replace it. Nodes that
//! are left unused are removed. Nothing else changes: values used elsewhere stay.

mod attention;
mod heads;
mod norm;
mod padding;
mod pooling;

use super::simplify::remove_dead;
use crate::Attrs;
use crate::attr::KEEPS_TYPES;
use crate::diagnostic::Result;
use crate::graph::{Def, Graph, NamedDType, Node, NodeId, OriginId, Value, ValueId};
use crate::ops::attention::sdpa::SDPA;
use crate::ops::linear::matmul::MATMUL;
use crate::ops::norm::softmax::SOFTMAX;
use crate::ops::pointwise::to::is_idle;
use crate::ops::{OpCx, OpDef};
use std::collections::HashSet;

pub use crate::exactness::Exactness;

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

/// Recognises spelled-out operators in a forward graph. Time is linear in its size. Conversions that change
/// nothing are dropped: precision, which gives them their meaning, comes before.
///
/// # Errors
/// Errors of the operators' type rules: none for a legal graph.
pub fn recognize(graph: Graph) -> Result<Recognized> {
    let mut graph = through_conversions(graph);
    graph.nodes.iter_mut().for_each(|n| n.attrs.remove(KEEPS_TYPES));
    recognize_spelled(graph)
}

/// As [`recognize`], of a graph that precision is still to be chosen for. Conversions of f32 to f32 stay
/// where nothing was recognised. An attention whose products the model requests in f32 is left as it is
/// spelled.
pub(crate) fn recognize_spelled(graph: Graph) -> Result<Recognized> {
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

/// The graph with every operand read before the conversions that change nothing, which remain unused.
fn through_conversions(mut graph: Graph) -> Graph {
    let mut source: Vec<ValueId> = (0..graph.values.len() as u32).map(ValueId).collect();
    for n in 0..graph.nodes.len() {
        graph.nodes[n].inputs.iter_mut().flatten().for_each(|v| *v = source[v.0 as usize]);
        let node = &graph.nodes[n];
        if let (true, Some(&Some(x))) = (is_idle(&graph, node), node.inputs.first()) {
            source[node.outputs[0].0 as usize] = x;
        }
    }
    graph.outputs.iter_mut().for_each(|o| o.value = source[o.value.0 as usize]);
    graph
}

/// True if the products of the attention that ends at a node are of values that the model converts to f32 for
/// them.
fn multiplies_in_f32(graph: &Graph, end: &Node, r: &Replacement) -> bool {
    let (mut seen, mut next) = (HashSet::new(), vec![(end, false)]);
    while let Some((node, product)) = next.pop() {
        let product = product || std::ptr::eq(node.op, &MATMUL);
        let wide = graph.origin(node).named_dtype() == NamedDType::F32;
        if product && wide && is_idle(graph, node) {
            return true;
        }
        // Between softmax and the product of queries and keys a conversion concerns the scores.
        let product = product && !std::ptr::eq(node.op, &SOFTMAX);
        for v in node.operands().filter(|v| !r.inputs.contains(&Some(*v)) && seen.insert((*v, product))) {
            next.extend(graph.producer(v).map(|(n, _)| (n, product)));
        }
    }
    false
}

fn apply(mut graph: Graph, rules: &[Rule]) -> Result<Recognized> {
    let mut found = Vec::new();
    // Node by node the same, but for what the operands are; spellings are matched in it.
    let mut bare = through_conversions(graph.clone());
    let mut uses = vec![0; bare.values.len()];
    let counted = bare.nodes.iter().filter(|n| !is_idle(&bare, n));
    let used = counted.flat_map(Node::operands).chain(bare.outputs.iter().map(|o| o.value));
    used.for_each(|v| uses[v.0 as usize] += 1);
    for n in 0..graph.nodes.len() {
        let sought = Sought { graph: &bare, uses: &uses };
        let Some(r) = rules.iter().find_map(|rule| rule(&sought, &bare.nodes[n])) else { continue };
        if std::ptr::eq(r.op, &SDPA) && multiplies_in_f32(&graph, &graph.nodes[n], &r) {
            continue;
        }
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
            for graph in [&mut graph, &mut bare] {
                graph.values.push(Value { ty: ty.clone(), def: Def::Node(id, i as u32) });
                graph.nodes[n].outputs.push(v);
            }
        }
        for graph in [&mut graph, &mut bare] {
            let node = &mut graph.nodes[n];
            (node.op, node.inputs, node.attrs) = (r.op, r.inputs.clone(), r.attrs.clone());
        }
    }
    Ok(Recognized { graph: remove_dead(graph).0, found })
}

/// A graph in which a pattern is matched, backwards from a node.
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
