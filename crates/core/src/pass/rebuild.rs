//! Rebuilding of a graph node by node, shared by passes that replace nodes by others.

use crate::diagnostic::{Code, Error, Result};
use crate::graph::{Builder, Graph, Input, Node, Output, OutputRole, ValueId};
use crate::tensor::TensorType;

/// Inputs keep their types.
pub(crate) fn same(_: &Input, ty: &TensorType) -> TensorType {
    ty.clone()
}

/// The graph with each node replaced by what `each` builds of it, one value for each of its outputs. `each`
/// is given the node's operands in the new graph. Inputs get the type that `input` gives. Inputs and outputs
/// keep their order, names and roles. What is built takes the node's origin and phase.
///
/// # Errors
/// `Graph` if a value is used before it is defined; those of `each`, with the node's operator and origin.
pub(crate) fn rebuild(
    graph: &Graph,
    input: impl Fn(&Input, &TensorType) -> TensorType,
    mut each: impl FnMut(&mut Builder, &Node, &[Option<ValueId>]) -> Result<Vec<ValueId>>,
) -> Result<Graph> {
    let mut b = Builder::extend(Graph { origins: graph.origins.clone(), ..Graph::default() });
    let mut map: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    for i in &graph.inputs {
        map[i.value.0 as usize] = Some(b.input(i.name.clone(), input(i, graph.ty(i.value)), i.role.clone()));
    }
    let renamed = |map: &[Option<ValueId>], v: ValueId| {
        map[v.0 as usize].ok_or_else(|| Error::new(Code::Graph, format!("{v} is used before it is defined")))
    };
    for node in &graph.nodes {
        (b.origin, b.phase) = (node.origin, node.phase);
        let operands: Vec<_> =
            node.inputs.iter().map(|v| v.map(|v| renamed(&map, v)).transpose()).collect::<Result<_>>()?;
        let results =
            each(&mut b, node, &operands).map_err(|e| e.in_op(node.op.name).at(graph.origin(node)))?;
        node.outputs.iter().zip(results).for_each(|(old, new)| map[old.0 as usize] = Some(new));
    }
    for o in &graph.outputs {
        let role = match o.role {
            OutputRole::User | OutputRole::Gradients => o.role,
            OutputRole::Mutation(v) => OutputRole::Mutation(renamed(&map, v)?),
            OutputRole::Gradient(v) => OutputRole::Gradient(renamed(&map, v)?),
        };
        let value = renamed(&map, o.value)?;
        b.graph_mut().outputs.push(Output { value, name: o.name.clone(), role });
    }
    Ok(b.finish())
}
