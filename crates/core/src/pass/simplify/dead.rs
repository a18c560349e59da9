//! Dead code elimination, and the renumbering after nodes have gone.

use crate::graph::{Def, Graph, Node, NodeId, OutputRole, Value, ValueId};

/// The values that some output depends on.
pub fn live(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|o| live[o.value.0 as usize] = true);
    for node in graph.nodes.iter().rev() {
        if node.outputs.iter().any(|v| live[v.0 as usize]) {
            node.operands().for_each(|v| live[v.0 as usize] = true);
        }
    }
    live
}

/// Removes the nodes on which no output depends and numbers the rest without gaps; also says how many went.
/// Inputs stay, used or not: they are the graph's interface. Definitions may be stale on entry, as passes
/// that edit nodes leave them.
pub fn remove_dead(graph: Graph) -> (Graph, usize) {
    let live = live(&graph);
    let before = graph.nodes.len();
    let nodes: Vec<Node> =
        graph.nodes.into_iter().filter(|n| n.outputs.iter().any(|v| live[v.0 as usize])).collect();
    let removed = before - nodes.len();

    let mut defs: Vec<Option<Def>> = vec![None; graph.values.len()];
    for (i, input) in graph.inputs.iter().enumerate() {
        defs[input.value.0 as usize] = Some(Def::Input(i as u32));
    }
    for (n, node) in nodes.iter().enumerate() {
        for (i, v) in node.outputs.iter().enumerate() {
            defs[v.0 as usize] = Some(Def::Node(NodeId(n as u32), i as u32));
        }
    }
    let mut new = vec![ValueId(u32::MAX); graph.values.len()];
    let mut values = Vec::with_capacity(graph.values.len());
    for (old, (value, def)) in graph.values.into_iter().zip(defs).enumerate() {
        if let Some(def) = def {
            new[old] = ValueId(values.len() as u32);
            values.push(Value { ty: value.ty, def });
        }
    }
    let mut out = Graph { nodes, values, ..Graph { nodes: vec![], values: vec![], ..graph } };
    let rename = |v: &mut ValueId| *v = new[v.0 as usize];
    for node in &mut out.nodes {
        node.inputs.iter_mut().flatten().chain(&mut node.outputs).for_each(rename);
    }
    out.inputs.iter_mut().for_each(|i| rename(&mut i.value));
    for o in &mut out.outputs {
        rename(&mut o.value);
        if let OutputRole::Mutation(v) | OutputRole::Gradient(v) = &mut o.role {
            rename(v);
        }
    }
    (out, removed)
}
