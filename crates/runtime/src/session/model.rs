//! The tensors of a model: parameters, buffers, constants.

use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::train::StateKey;
use headwater_core::{Graph, TensorType};
use std::collections::HashSet;

/// A tensor of the model that the session holds.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTensor {
    /// PyTorch name.
    pub name: String,
    /// Dtype and shape.
    pub ty: TensorType,
    /// Role among the inputs of a graph.
    pub role: InputRole,
}

impl ModelTensor {
    /// Its key in the state.
    pub(super) fn key(&self) -> StateKey {
        let name = self.name.clone();
        match self.role {
            InputRole::Parameter { .. } => StateKey::Parameter(name),
            InputRole::Buffer { .. } => StateKey::Buffer(name),
            _ => StateKey::Constant(name),
        }
    }
}

/// Names of the tensors that a graph writes.
pub(super) fn written(graph: &Graph) -> HashSet<&str> {
    let targets = graph.outputs.iter().filter_map(|o| match o.role {
        OutputRole::Mutation(target) => graph.input_index(target),
        _ => None,
    });
    targets.map(|i| graph.inputs[i].name.as_str()).collect()
}

/// Parameters, buffers and constants of a graph.
pub(super) fn tensors(graph: &Graph) -> Vec<ModelTensor> {
    let held = |r: &InputRole| {
        matches!(r, InputRole::Parameter { .. } | InputRole::Buffer { .. } | InputRole::Constant)
    };
    let inputs = graph.inputs.iter().filter(|i| held(&i.role));
    inputs
        .map(|i| ModelTensor { name: i.name.clone(), ty: graph.ty(i.value).clone(), role: i.role.clone() })
        .collect()
}
