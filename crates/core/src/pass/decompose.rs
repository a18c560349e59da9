//! Expands operators whose body is a decomposition, until none is left. Origins and phases are kept, so
//! messages still name the model's line.

use super::rebuild::{rebuild, same};
use crate::attr::KEEPS_TYPES;
use crate::diagnostic::{Code, Error, Result};
use crate::ensure;
use crate::graph::Graph;
use crate::ops::control::custom_vjp::waits;
use crate::ops::{Body, OpDef};

/// Decompositions of decompositions deeper than this are a cycle.
const MAX_DEPTH: usize = 32;

/// Expands every decomposed operator.
///
/// # Errors
/// Refusals of a decomposition, with its operator and origin.
pub fn decompose(graph: Graph) -> Result<Graph> {
    expand(graph, &|_| true)
}

/// Expands all but functions with a derivative of their own, which a graph keeps until it is differentiated.
///
/// # Errors
/// As [`decompose`].
pub fn decompose_forward(graph: Graph) -> Result<Graph> {
    expand(graph, &|op| !waits(op))
}

/// Expands the decomposed operators that `which` names.
pub(crate) fn expand(mut graph: Graph, which: &dyn Fn(&OpDef) -> bool) -> Result<Graph> {
    for _ in 0..MAX_DEPTH {
        if !graph.nodes.iter().any(|n| matches!(n.op.body, Body::Decompose(_)) && which(n.op)) {
            return Ok(graph);
        }
        graph = expand_once(&graph, which)?;
    }
    Err(Error::new(Code::Graph, "operators decompose into each other without end"))
}

fn expand_once(graph: &Graph, which: &dyn Fn(&OpDef) -> bool) -> Result<Graph> {
    rebuild(graph, same, |b, node, operands| {
        let expand = match node.op.body {
            Body::Decompose(expand) if which(node.op) => expand,
            _ => return b.apply(node.op, operands, node.attrs.clone()),
        };
        let first = b.graph().nodes.len();
        let outputs = expand(b, &graph.cx(node), operands)?;
        if let Some(keeps) = node.attrs.get(KEEPS_TYPES) {
            b.graph_mut().nodes[first..].iter_mut().for_each(|n| n.attrs.set(KEEPS_TYPES, keeps.clone()));
        }
        for (&old, &new) in node.outputs.iter().zip(&outputs) {
            let (want, got) = (graph.ty(old), b.ty(new));
            ensure!(want == got, Graph, "decomposes to {got} where its rule says {want}");
        }
        Ok(outputs)
    })
}
