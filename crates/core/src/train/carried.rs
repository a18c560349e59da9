//! State that a batch changes and the next one reads, such as the vectors of spectral norm. A step that has
//! it cannot be divided into lanes: a lane's gradients would depend on the lanes before it.

use super::key::{Kept, StateKey};
use crate::diagnostic::Result;
use crate::graph::{Graph, Node, OutputRole};
use crate::ops::Body;
use crate::row::{Instr, RowProgram};
use crate::tensor::TensorType;

/// The first changed input, by position, on which a value depends.
type Cause = Option<usize>;

/// Names of inputs that the step changes and on whose content before the step a result or a gradient depends.
/// Running statistics of batch norm are not among them: in training nothing reads them but their own new
/// value.
///
/// # Errors
/// Refusals of the operators.
pub fn carried(graph: &Graph) -> Result<Vec<String>> {
    let mut causes: Vec<Cause> = vec![None; graph.values.len()];
    let sum = |v| {
        let key = graph.input_index(v).and_then(|i| StateKey::of(&graph.inputs[i]));
        matches!(key, Some(StateKey::Part(_, Kept::Gradients | Kept::GradientRows)))
    };
    for o in &graph.outputs {
        match o.role {
            OutputRole::Mutation(v) if !sum(v) => causes[v.0 as usize] = graph.input_index(v),
            _ => {}
        }
    }
    for node in &graph.nodes {
        let own = of_results(graph, node, &causes)?;
        node.outputs.iter().zip(own).for_each(|(v, cause)| causes[v.0 as usize] = cause);
    }
    let mut found: Vec<usize> = Vec::new();
    for o in &graph.outputs {
        let counts = match o.role {
            OutputRole::Mutation(v) => sum(v),
            OutputRole::User | OutputRole::Gradient(_) | OutputRole::Gradients => true,
        };
        found.extend(causes[o.value.0 as usize].filter(|_| counts));
    }
    found.sort_unstable();
    found.dedup();
    Ok(found.into_iter().map(|i| graph.inputs[i].name.clone()).collect())
}

/// Causes of a node's results. Each result of a row program has its own, so that new running statistics do
/// not count for what is normalised.
fn of_results(graph: &Graph, node: &Node, causes: &[Cause]) -> Result<Vec<Cause>> {
    let operands: Vec<Cause> = node.operands().map(|v| causes[v.0 as usize]).collect();
    let first = operands.iter().copied().flatten().min();
    let all = vec![first; node.outputs.len()];
    if first.is_none() || !matches!(node.op.body, Body::Pointwise(_) | Body::Rows(_)) {
        return Ok(all);
    }
    let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
    let program = node.op.row_program(&graph.cx(node), &types)?;
    Ok(program.map_or(all, |p| of_writes(&p, &operands)))
}

fn of_writes(program: &RowProgram, operands: &[Cause]) -> Vec<Cause> {
    let earlier = |a: Cause, b: Cause| a.into_iter().chain(b).min();
    let mut registers: Vec<Cause> = Vec::with_capacity(program.body.len());
    let mut writes = vec![None; program.writes.len()];
    for instr in &program.body {
        let mut own = None;
        instr.map(|r| {
            own = earlier(own, registers[r]);
            r
        });
        match *instr {
            Instr::Load(i) => own = operands.get(i).copied().flatten(),
            Instr::Store(w, _) | Instr::Columns(w, _) => writes[w] = earlier(writes[w], own),
            _ => {}
        }
        registers.push(own);
    }
    writes
}
