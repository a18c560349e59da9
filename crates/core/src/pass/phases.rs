//! Phases of a training step's nodes, forward or after it, and the results of each half.

use crate::diagnostic::Result;
use crate::graph::{Graph, InputRole, Node, OutputRole, Phase};
use crate::{ensure, fail};

/// The graph with its forward nodes first. Legal: a node reads nothing of a later phase (rule V13).
pub(super) fn in_order_of_phases(mut graph: Graph) -> Graph {
    graph.sort_nodes(|_, node| node.phase);
    graph
}

/// For each output, true if the forward half returns it: results and new contents of state that it makes.
///
/// # Errors
/// `Unsupported` for a result, or a buffer of the model, that only the backward pass makes.
pub(super) fn made_forward(graph: &Graph) -> Result<Vec<bool>> {
    let made = graph.outputs.iter().map(|o| {
        let forward = graph.producer(o.value).is_none_or(|(node, _)| node.phase == Phase::Forward);
        let model = match o.role {
            OutputRole::Gradient(_) | OutputRole::Gradients => return Ok(false),
            OutputRole::User => true,
            OutputRole::Mutation(v) => {
                graph.input_index(v).is_some_and(|i| matches!(graph.inputs[i].role, InputRole::Buffer { .. }))
            }
        };
        ensure!(
            forward || !model,
            Unsupported,
            "`{}` is made in the backward pass: a step that returns it cannot be run in halves",
            o.name
        );
        Ok(forward)
    });
    made.collect()
}

/// The first node of the backward half.
///
/// # Errors
/// `Graph` if a forward node comes after it.
pub(super) fn backward(graph: &Graph) -> Result<usize> {
    let forward = |n: &Node| n.phase == Phase::Forward;
    let first = graph.nodes.iter().position(|n| !forward(n)).unwrap_or(graph.nodes.len());
    let mixed = graph.nodes[first..].iter().find(|n| forward(n));
    mixed.map_or(Ok(first), |n| Err(fail!(Graph, "{} runs behind the backward pass", n.op.name)))
}
