//! What is rearranged before fusion, so that more fuses. *Exact*: the same operations on the same numbers in the same order.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Def, Graph, Node, NodeId, Value, ValueId};
use crate::ops::Body;
use crate::ops::pointwise::to::TO;
use crate::ops::update::master::MASTER_JOIN;

/// Widens f16 and bf16 where they are read, and puts split masters together there: that loses nothing and costs nothing inside a
/// row program, so each program makes its own of the narrow values, and the wide one is not kept for the backward pass.
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
    Ok(super::simplify::remove_dead(graph).0)
}
