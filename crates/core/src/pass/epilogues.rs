//! Bias gradients in the step of the weight gradient. Both read the gradient of the layer's result: the
//! product and the sum of its rows become one operator (`matmul_sum`), where the target has a kernel for it.
//!
//! Sums that a row program computes beside something else stay there (`fuse`): the elements are at hand.
//!
//! *Exact*: the same sums in the same order.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::ops::control::fused::FUSED;
use crate::ops::linear::matmul::MATMUL;
use crate::ops::linear::matmul_sum::{MATMUL_SUM, program};
use crate::ops::{Body, OpCx};
use crate::shape::Layout;
use crate::target::{Support, Target};
use crate::tensor::TensorType;
use std::collections::HashMap;

/// Joins products of matrices with sums over the rows of an operand. Inputs, outputs and their bits are kept.
///
/// # Errors
/// Refusals of an operator's own program rule.
pub fn epilogues(mut graph: Graph, target: &Target) -> Result<Graph> {
    let sums = lone_sums(&graph)?;
    if sums.is_empty() {
        return Ok(graph);
    }
    let mut users: HashMap<ValueId, Vec<usize>> = HashMap::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        node.operands().for_each(|v| users.entry(v).or_default().push(n));
    }
    // Sums that are joined, and the node after which a view of one comes.
    let mut joined = vec![false; graph.nodes.len()];
    let mut after: HashMap<usize, usize> = HashMap::new();
    for n in 0..graph.nodes.len() {
        let node = &graph.nodes[n];
        if *node.op != MATMUL || node.operands().any(|v| graph.ty(v).shape.rank() != 2) {
            continue;
        }
        let found = (0..2).find_map(|of| {
            let summed = node.inputs[of].and_then(|v| if of == 0 { turned(&graph, v) } else { Some(v) })?;
            let own = sums.get(&summed)?.iter().copied();
            let mut free = own.filter(|&s| !joined[s] && graph.nodes[s].phase == node.phase);
            free.find_map(|s| Some((of, s, late(&graph, &users, s, n)?)))
        });
        let Some((of, s, views)) = found else { continue };
        let attrs = Attrs::new().with("of", of as i64);
        let outputs = vec![node.outputs[0], graph.nodes[s].outputs[0]];
        let outs: Vec<TensorType> = outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let inputs = node.inputs.iter().map(|v| v.map(|v| graph.ty(v))).collect();
        if target.support(&MATMUL_SUM, &OpCx { inputs, attrs: &attrs }, &outs) != Support::Native {
            continue;
        }
        graph.nodes[n] = Node { op: &MATMUL_SUM, attrs, outputs, ..node.clone() };
        joined[s] = true;
        after.extend(views.into_iter().map(|view| (view, n)));
    }
    // Joined sums come first, and leave.
    let number = joined.iter().filter(|&&gone| gone).count();
    graph.sort_nodes(|n, _| match (joined[n], after.get(&n)) {
        (true, _) => (0, 0),
        (false, Some(&of)) => (1, 2 * of + 1),
        (false, None) => (1, 2 * n),
    });
    graph.nodes.drain(..number);
    graph.sort_nodes(|n, _| n);
    Ok(graph)
}

/// Views of the result of node `s` that come before node `n`; `None` if something else reads it there.
fn late(graph: &Graph, users: &HashMap<ValueId, Vec<usize>>, s: usize, n: usize) -> Option<Vec<usize>> {
    let (mut views, mut next) = (Vec::new(), vec![s]);
    while let Some(at) = next.pop() {
        let read = graph.nodes[at].outputs.iter().filter_map(|v| users.get(v)).flatten();
        for &user in read.filter(|&&user| user < n) {
            if !matches!(graph.nodes[user].op.body, Body::View(_)) {
                return None;
            }
            views.push(user);
            next.push(user);
        }
    }
    Some(views)
}

/// Nodes that sum the rows of a matrix and do nothing else, by the matrix.
fn lone_sums(graph: &Graph) -> Result<HashMap<ValueId, Vec<usize>>> {
    let mut sums: HashMap<ValueId, Vec<usize>> = HashMap::new();
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, node)| *node.op == FUSED) {
        let ([Some(x)], [out]) = (&node.inputs[..], &node.outputs[..]) else { continue };
        let (from, to) = (graph.ty(*x), graph.ty(*out));
        if from.shape.rank() != 2 || from.dtype != to.dtype {
            continue;
        }
        let own = node.op.row_program(&graph.cx(node), std::slice::from_ref(to))?;
        if own.is_some_and(|own| own == program(&from.shape, from.dtype)) {
            sums.entry(*x).or_default().push(n);
        }
    }
    Ok(sums)
}

/// The matrix that a value is the transpose of.
fn turned(graph: &Graph, v: ValueId) -> Option<ValueId> {
    let (node, at) = graph.producer(v)?;
    let Body::View(view) = node.op.body else { return None };
    let x = node.operands().next()?;
    let from = Layout::contiguous(&graph.ty(x).shape);
    let to = (view.layout)(&graph.cx(node), &from, at).ok()??;
    let transposed = from.shape.rank() == 2
        && to.offset == 0
        && to.shape[..] == [from.shape[1], from.shape[0]]
        && to.strides[..] == [from.strides[1], from.strides[0]];
    transposed.then_some(x)
}
