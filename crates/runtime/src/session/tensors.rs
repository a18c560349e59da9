//! What of a session outlives it: the model's tensors, the optimizer's moments; and the gradients, to look at.

use super::Session;
use super::program::gradient_name;
use super::state::Space;
use crate::data::append;
use crate::error::Result;
use headwater_core::graph::InputRole;
use headwater_core::{DType, Graph, Shape, Tensor, TensorType};
use std::borrow::Cow;

/// A tensor of the model that the session holds.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTensor {
    /// PyTorch name.
    pub name: String,
    /// Dtype and shape.
    pub ty: TensorType,
    /// What it is.
    pub role: InputRole,
}

impl Session {
    /// Bytes of a parameter (its f32 master, if it has one), buffer or constant of [`Session::tensors`].
    pub fn read(&self, tensor: &ModelTensor) -> Result<Vec<u8>> {
        let master = self.state.slot(Space::State, &master_name(&tensor.name));
        self.state.read(master.or_else(|_| self.state.slot(space_of(tensor), &tensor.name))?)
    }

    /// Replaces a parameter, with its master, a buffer or a constant. The bytes are of the tensor's dtype, and are rounded
    /// to those it is held in.
    pub fn write(&mut self, tensor: &ModelTensor, bytes: &[u8]) -> Result<()> {
        let slots = [(space_of(tensor), tensor.name.clone()), (Space::State, master_name(&tensor.name))];
        for (i, (space, name)) in slots.into_iter().enumerate() {
            let slot = match self.state.slot(space, &name) {
                Err(_) if i == 1 => return Ok(()),
                slot => slot?.clone(),
            };
            let converted = converted(tensor.ty.dtype, slot.ty.dtype, bytes);
            self.state.write(&slot, &tensor.name, &converted)?;
        }
        Ok(())
    }

    /// Names and types of the moments, by parameter: `exp_avg.<parameter>`.
    pub fn moments(&self) -> Vec<(String, TensorType)> {
        let Some(t) = &self.training else { return Vec::new() };
        let mut out = Vec::new();
        for (bucket, e) in self.layout.entries() {
            let bucket = &self.layout.buckets[bucket];
            for moment in t.groups.rule(bucket.group).moments().into_iter().flatten() {
                let shape = if moment.single { Shape::default() } else { e.shape.clone() };
                out.push((moment_name(moment.name, &e.name), TensorType::new(bucket.wide(), shape)));
            }
        }
        out
    }

    /// Bytes of a moment, by its name in [`Session::moments`].
    pub fn read_moment(&self, name: &str) -> Result<Vec<u8>> {
        self.state.read(self.state.slot(Space::State, name)?)
    }

    /// Replaces a moment.
    pub fn write_moment(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let slot = self.state.slot(Space::State, name)?.clone();
        self.state.write(&slot, name, bytes)
    }

    /// The gradient of a trained parameter as it lies in memory: the sum over the micro-batches of the step.
    pub fn gradient(&self, parameter: &str) -> Result<Tensor> {
        self.state.tensor(self.state.slot(Space::State, &gradient_name(parameter))?)
    }
}

/// Elements of another dtype, rounded to nearest.
fn converted(from: DType, to: DType, bytes: &[u8]) -> Cow<'_, [u8]> {
    if from == to {
        return bytes.into();
    }
    let mut out = Vec::with_capacity(bytes.len() / from.size() * to.size());
    // In pieces: the conversion goes by way of f64.
    bytes.chunks(from.size() << 16).for_each(|piece| append(from, to, piece, &mut out));
    out.into()
}

pub(super) fn master_name(parameter: &str) -> String {
    format!("master.{parameter}")
}

pub(super) fn moment_name(moment: &str, parameter: &str) -> String {
    format!("{moment}.{parameter}")
}

pub(super) fn space_of(t: &ModelTensor) -> Space {
    match t.role {
        InputRole::Parameter { .. } => Space::Parameter,
        InputRole::Buffer { .. } => Space::Buffer,
        _ => Space::Constant,
    }
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
