//! Rearrangements before fusion, so that more fuses. *Exact*: the same operations on the same numbers in
//! the same order.

use super::merge::reduces;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Def, Graph, Node, NodeId, Value, ValueId};
use crate::ops::Body;
use crate::ops::control::fused::{FUSED, encode_types};
use crate::ops::pointwise::to::TO;
use crate::ops::reduce::sum::SUM;
use crate::ops::update::master::MASTER_JOIN;
use crate::ops::view::reshape::RESHAPE;
use crate::row::{Access, RowBuilder};
use crate::target::RowProgramLimits;
use std::sync::Arc;

/// Widens f16 and bf16 where they are read, and joins split masters there: that loses nothing and costs
/// nothing inside a row program, so each program makes its own of the narrow values, and the wide one is not
/// kept for the backward pass.
///
/// # Errors
/// None for a legal graph.
pub(super) fn widen_late(mut graph: Graph) -> Result<Graph> {
    let mut widening: Vec<Option<Node>> = vec![None; graph.values.len()];
    for node in &graph.nodes {
        let ([Some(x), ..], [y]) = (&node.inputs[..], &node.outputs[..]) else { continue };
        let low = matches!(graph.ty(*x).dtype, DType::F16 | DType::BF16);
        let widens = node.op == &TO && low && graph.ty(*y).dtype == DType::F32;
        widening[y.0 as usize] = (widens || node.op == &MASTER_JOIN).then(|| node.clone());
    }
    let nodes = std::mem::take(&mut graph.nodes);
    for mut node in nodes {
        if matches!(node.op.body, Body::Pointwise(_) | Body::Rows(_)) {
            let mut own: Vec<(ValueId, ValueId)> = Vec::new();
            for at in 0..node.inputs.len() {
                let Some(wide) = node.inputs[at] else { continue };
                let Some(Some(widens)) = widening.get(wide.0 as usize) else { continue };
                let made = match own.iter().find(|(w, _)| *w == wide) {
                    Some(&(_, made)) => made,
                    None => {
                        let made = ValueId(graph.values.len() as u32);
                        let def = Def::Node(NodeId(graph.nodes.len() as u32), 0);
                        graph.values.push(Value { ty: graph.ty(wide).clone(), def });
                        let (origin, phase) = (node.origin, node.phase);
                        graph.nodes.push(Node { outputs: vec![made], origin, phase, ..widens.clone() });
                        own.push((wide, made));
                        made
                    }
                };
                node.inputs[at] = Some(made);
            }
        }
        let id = NodeId(graph.nodes.len() as u32);
        for (i, v) in node.outputs.iter().enumerate() {
            graph.values[v.0 as usize].def = Def::Node(id, i as u32);
        }
        graph.nodes.push(node);
    }
    Ok(crate::pass::simplify::remove_dead(graph).0)
}

/// Sums over all dimensions but the last, as of a bias's gradient, row by row: into as many sums as there are
/// columns, which stay in the caches. If a row program computes the operand, right after that one and over
/// its rows: so they fuse, whatever else reads it in between. The program remains that one's by its origin:
/// what a norm's gradient is summed to is the bias of the layer before.
///
/// # Errors
/// Refusals of an operator's own program rule.
pub(super) fn sum_early(mut graph: Graph, limits: &RowProgramLimits) -> Result<Graph> {
    let mut behind: Vec<Vec<Node>> = vec![Vec::new(); graph.nodes.len()];
    let mut moved = vec![false; graph.nodes.len()];
    for (n, moved) in moved.iter_mut().enumerate() {
        let Some((v, maker)) = summed(&graph, limits, &graph.nodes[n])? else { continue };
        let sum = by_rows(&graph, &graph.nodes[n], v);
        match maker {
            Some(NodeId(maker)) => {
                let origin = graph.nodes[maker as usize].origin;
                behind[maker as usize].push(Node { origin, ..sum });
                *moved = true;
            }
            None => graph.nodes[n] = sum,
        }
    }
    let nodes = std::mem::take(&mut graph.nodes);
    for (n, (node, sums)) in nodes.into_iter().zip(behind).enumerate() {
        graph.nodes.extend((!moved[n]).then_some(node));
        graph.nodes.extend(sums);
    }
    for (n, node) in graph.nodes.iter().enumerate() {
        for (i, v) in node.outputs.iter().enumerate() {
            graph.values[v.0 as usize].def = Def::Node(NodeId(n as u32), i as u32);
        }
    }
    Ok(graph)
}

/// The operand of such a sum, and the node that makes it if that is a program over the same rows.
fn summed(
    graph: &Graph,
    limits: &RowProgramLimits,
    node: &Node,
) -> Result<Option<(ValueId, Option<NodeId>)>> {
    let ([Some(x)], [out]) = (&node.inputs[..], &node.outputs[..]) else { return Ok(None) };
    let (from, to) = (graph.ty(*x), graph.ty(*out));
    let Some((&cols, lead)) = from.shape.split_last() else { return Ok(None) };
    let fits = (2..=limits.column_sums).contains(&cols);
    if node.op != &SUM || from.dtype != to.dtype || !to.dtype.is_float() || lead.is_empty() || !fits {
        return Ok(None);
    }
    let mut dims = graph.cx(node).dims("dim", from.shape.rank())?;
    dims.sort_unstable();
    if !dims.into_iter().eq(0..lead.len()) {
        return Ok(None);
    }
    // Under other shapes of the same rows.
    let mut v = *x;
    while let Some((view, _)) = graph.producer(v).filter(|(n, _)| n.op == &RESHAPE) {
        let Some(x) = view.operands().next().filter(|&x| graph.ty(x).shape.last() == Some(&cols)) else {
            break;
        };
        v = x;
    }
    let Def::Node(maker, _) = graph.value(v).def else { return Ok(Some((*x, None))) };
    let (made, makes) = (graph.ty(v), graph.node(maker));
    let outer = &made.shape[..made.shape.rank() - 1];
    let rows = match makes.op.body {
        Body::Pointwise(_) => true,
        Body::Rows(f) => {
            let types: Vec<_> = makes.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
            let p =
                f(&graph.cx(makes), &types).map_err(|e| e.in_op(makes.op.name).at(graph.origin(makes)))?;
            if cols > limits.long_columns && p.rows() < limits.few_rows && reduces(&p) {
                return Ok(None);
            }
            p.outer == outer && p.inner == [cols]
        }
        _ => false,
    };
    // Moved into another phase, a sum would take what makes its operand along.
    let same = rows && !outer.is_empty() && makes.phase == node.phase;
    Ok(Some(if same { (v, Some(maker)) } else { (*x, None) }))
}

/// The sum as a program over the rows of what it sums.
fn by_rows(graph: &Graph, node: &Node, v: ValueId) -> Node {
    let (made, to) = (graph.ty(v), graph.ty(node.outputs[0]));
    let rank = made.shape.rank();
    let mut b = RowBuilder::new(&made.shape[..rank - 1], &made.shape[rank - 1..]);
    let x = b.read(made.dtype, Access::identity(rank));
    let still = vec![None; rank - 1];
    let last = (to.shape.rank() - 1, 1);
    b.columns(to.dtype, Access(still.into_iter().chain([Some(last)]).collect()), x);
    let attrs = Attrs::new()
        .with("outputs", encode_types(std::slice::from_ref(to)))
        .with("ops", SUM.name)
        .with("program", Arc::new(b.finish()));
    Node { op: &FUSED, inputs: vec![Some(v)], attrs, ..node.clone() }
}
