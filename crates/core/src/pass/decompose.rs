//! Expands operators whose body is a decomposition, until none is left. Origins and phases are kept, so messages still
//! name the model's line.

use crate::diagnostic::{Code, Error, Result};
use crate::graph::{Builder, Graph, Output, OutputRole, ValueId};
use crate::ops::{Body, OpCx};
use crate::tensor::TensorType;

/// Decompositions of decompositions deeper than this are a cycle.
const MAX_DEPTH: usize = 32;

/// Expands every decomposed operator.
///
/// # Errors
/// What a decomposition refuses, with its operator and origin.
pub fn decompose(mut graph: Graph) -> Result<Graph> {
    for _ in 0..MAX_DEPTH {
        let Some(at) = graph.nodes.iter().position(|n| matches!(n.op.body, Body::Decompose(_))) else {
            return Ok(graph);
        };
        graph = expand_once(&graph).map_err(|e| e.at(graph.origin(&graph.nodes[at])))?;
    }
    Err(Error::new(Code::Graph, "operators decompose into each other without end"))
}

fn expand_once(graph: &Graph) -> Result<Graph> {
    let mut b = Builder::extend(Graph { origins: graph.origins.clone(), ..Graph::default() });
    b.reserve_streams(graph);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    for input in &graph.inputs {
        let v = b.input(input.name.clone(), graph.ty(input.value).clone(), input.role.clone());
        map[input.value.0 as usize] = Some(v);
    }
    let renamed = |map: &[Option<ValueId>], v: ValueId| {
        map[v.0 as usize].ok_or_else(|| Error::new(Code::Graph, format!("{v} is used before it is defined")))
    };
    for node in &graph.nodes {
        (b.origin, b.phase) = (node.origin, node.phase);
        let inputs = node
            .inputs
            .iter()
            .map(|v| v.map(|v| renamed(&map, v)).transpose())
            .collect::<Result<Vec<_>>>()?;
        let outputs = match node.op.body {
            Body::Decompose(f) => {
                let types: Vec<Option<TensorType>> =
                    node.inputs.iter().map(|v| v.map(|v| graph.ty(v).clone())).collect();
                let cx = OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: &node.attrs };
                let in_op = |e: Error| e.in_op(node.op.name).at(graph.origin(node));
                let outs = f(&mut b, &cx, &inputs).map_err(in_op)?;
                for (&old, &new) in node.outputs.iter().zip(&outs) {
                    let (want, got) = (graph.ty(old), b.ty(new));
                    if want != got {
                        let e = Error::new(
                            Code::Graph,
                            format!("decomposes to {got} where its rule says {want}"),
                        );
                        return Err(in_op(e));
                    }
                }
                outs
            }
            _ => b.apply(node.op, &inputs, node.attrs.clone())?,
        };
        for (&old, new) in node.outputs.iter().zip(outputs) {
            map[old.0 as usize] = Some(new);
        }
    }
    for o in &graph.outputs {
        let role = match o.role {
            OutputRole::User => OutputRole::User,
            OutputRole::Mutation(v) => OutputRole::Mutation(renamed(&map, v)?),
            OutputRole::Gradient(v) => OutputRole::Gradient(renamed(&map, v)?),
        };
        let value = renamed(&map, o.value)?;
        b.graph_mut().outputs.push(Output { value, name: o.name.clone(), role });
    }
    Ok(b.finish())
}
