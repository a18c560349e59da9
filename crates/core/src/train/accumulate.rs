//! Gradient accumulation over micro-batches.

use super::key::StateKey;
use crate::diagnostic::Result;
use crate::graph::{Builder, Graph, InputRole, OutputRole, Phase};
use crate::ops::update::unsaturate::UNSATURATE;
use crate::target::DTypeSet;
use crate::tensor::TensorType;
use crate::{DType, fail};
use std::collections::HashMap;

/// Turns gradients into additions to their sums, in f32 or wider: inputs named by [`StateKey::gradient`].
/// Each comes right after the gradient's producer: so it frees the gradient's memory, and the sum is complete
/// early. Gradients of dtypes in `saturating` count as infinite where they are the largest number.
///
/// # Errors
/// `Graph` for a gradient of something other than an input.
pub fn accumulate(graph: Graph, saturating: DTypeSet) -> Result<Graph> {
    let made = graph.nodes.len();
    let forward = graph.nodes.iter().rposition(|n| n.phase == Phase::Forward).unwrap_or(0);
    // For each added node, the one that it comes after.
    let mut behind = Vec::new();
    let mut moved: HashMap<usize, usize> = HashMap::new();
    let mut b = Builder::extend(graph);
    b.phase = Phase::Backward;
    for i in 0..b.graph().outputs.len() {
        let output = &b.graph().outputs[i];
        let OutputRole::Gradient(p) = output.role else { continue };
        let (gradient, input) = (output.value, b.graph().input_index(p));
        let input = input.ok_or_else(|| fail!(Graph, "{} is a gradient of no input", output.name))?;
        let (maker, views) = b.graph().computed(gradient);
        let maker = maker.filter(|&n| b.graph().node(n).phase != Phase::Forward);
        let after = maker.map_or(forward, |n| n.0 as usize);
        // The views that the sum adds come before it.
        moved.extend(views.into_iter().map(|n| (n.0 as usize, after)));
        let name = StateKey::gradient(&b.graph().inputs[input].name).to_string();
        let ty = b.ty(gradient).clone();
        let wide = if ty.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let sum = b.input(name, TensorType::new(wide, ty.shape.clone()), InputRole::State);
        let gradient = match saturating.contains(ty.dtype) {
            true => b.call(&UNSATURATE, &[gradient])?,
            false => b.cast(gradient, wide)?,
        };
        let new = b.add(sum, gradient)?;
        behind.resize(b.graph().nodes.len() - made, after);
        let output = &mut b.graph_mut().outputs[i];
        (output.value, output.role) = (new, OutputRole::Mutation(sum));
    }
    let mut graph = b.finish();
    let key = |n: usize| match (behind.get(n.wrapping_sub(made)), moved.get(&n)) {
        (Some(after), _) => (*after, 2),
        (None, Some(after)) if *after < n => (*after, 1),
        _ => (n, 0),
    };
    graph.sort_nodes(|n, _| key(n));
    Ok(graph)
}
