//! What is rearranged before fusion, so that more fuses. *Exact*: the same operations on the same numbers in the same order.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Def, Graph, Node, NodeId, Value, ValueId};
use crate::ops::Body;
use crate::ops::pointwise::to::TO;

/// Widens f16 and bf16 where they are read: a conversion to f32 loses nothing and costs nothing inside a row program, so
/// each program makes its own of the narrow value, and the wide one is not kept for the backward pass.
///
/// # Errors
/// None for a legal graph.
pub(super) fn widen_late(mut graph: Graph) -> Result<Graph> {
    let mut narrow: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    for node in &graph.nodes {
        if let (true, [Some(x)], [y]) = (node.op == &TO, &node.inputs[..], &node.outputs[..]) {
            let low = matches!(graph.ty(*x).dtype, DType::F16 | DType::BF16);
            narrow[y.0 as usize] = (low && graph.ty(*y).dtype == DType::F32).then_some(*x);
        }
    }
    let nodes = std::mem::take(&mut graph.nodes);
    for mut node in nodes {
        if matches!(node.op.body, Body::Pointwise(_) | Body::Rows(_)) {
            let mut own: Vec<(ValueId, ValueId)> = Vec::new();
            for at in 0..node.inputs.len() {
                let Some(wide) = node.inputs[at] else { continue };
                let Some(Some(x)) = narrow.get(wide.0 as usize).copied() else { continue };
                let made = match own.iter().find(|(w, _)| *w == wide) {
                    Some(&(_, made)) => made,
                    None => {
                        let made = ValueId(graph.values.len() as u32);
                        let def = Def::Node(NodeId(graph.nodes.len() as u32), 0);
                        graph.values.push(Value { ty: graph.ty(wide).clone(), def });
                        let (origin, phase) = (node.origin, node.phase);
                        let attrs = Attrs::new().with("dtype", DType::F32);
                        let inputs = vec![Some(x)];
                        graph.nodes.push(Node { op: &TO, inputs, attrs, outputs: vec![made], origin, phase });
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
