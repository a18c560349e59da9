//! Everything that outlives a step: memory on the device and what lies where in it.

use crate::error::{Error, Result};
use headwater_core::device::{Device, Memory};
use headwater_core::graph::{Input, InputRole};
use headwater_core::plan::{ALIGN, Place, Segment, SegmentId, SegmentKind};
use headwater_core::{DType, Tensor, TensorType};
use std::collections::HashMap;

/// Namespaces of the state's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Space {
    /// Weights, frozen ones included.
    Parameter,
    /// The model's buffers.
    Buffer,
    /// The model's constants.
    Constant,
    /// The key of random numbers.
    Rng,
    /// What the training step itself keeps: gradients, moments, scalars.
    State,
}

impl Space {
    /// Where a graph input lives; `None` for what the user feeds.
    pub fn of(input: &Input) -> Option<Space> {
        match input.role {
            InputRole::Parameter { .. } => Some(Space::Parameter),
            InputRole::Buffer { .. } => Some(Space::Buffer),
            InputRole::Constant => Some(Space::Constant),
            InputRole::Rng => Some(Space::Rng),
            InputRole::State => Some(Space::State),
            InputRole::User => None,
        }
    }
}

/// A tensor of the state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slot {
    pub place: Place,
    pub ty: TensorType,
}

/// Memory in segments, and names for what lies there.
#[derive(Default)]
pub(crate) struct State {
    segments: Vec<(Segment, Box<dyn Memory>)>,
    slots: HashMap<(Space, String), Slot>,
}

impl State {
    /// Adds a zeroed segment.
    pub fn segment(
        &mut self,
        device: &dyn Device,
        name: String,
        bytes: usize,
        kind: SegmentKind,
    ) -> Result<SegmentId> {
        let memory = device.alloc(bytes)?;
        self.segments.push((Segment { name, bytes, kind }, memory));
        Ok(SegmentId(self.segments.len() as u32))
    }

    /// Adds a segment holding tensors one after the other.
    pub fn pack(
        &mut self,
        device: &dyn Device,
        name: &str,
        kind: SegmentKind,
        tensors: Vec<(Space, String, TensorType)>,
    ) -> Result<()> {
        let segment = SegmentId(self.segments.len() as u32 + 1);
        let mut offset = 0usize;
        for (space, name, ty) in tensors {
            let bytes = ty.bytes();
            self.name(space, name, Slot { place: Place { segment, offset }, ty });
            offset += bytes.next_multiple_of(ALIGN);
        }
        self.segment(device, name.to_string(), offset, kind)?;
        Ok(())
    }

    /// Names a tensor.
    pub fn name(&mut self, space: Space, name: String, slot: Slot) {
        self.slots.insert((space, name), slot);
    }

    /// Finds a tensor.
    ///
    /// # Errors
    /// `Model` if there is none.
    pub fn slot(&self, space: Space, name: &str) -> Result<&Slot> {
        // A key of borrowed parts would need a second map; lookups happen when compiling and saving, not in
        // steps.
        let found = self.slots.get(&(space, name.to_string()));
        found.ok_or_else(|| Error::Model(format!("the state has no {space:?} {name}")))
    }

    /// The segments' descriptions, in the order of their ids.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().map(|(s, _)| s)
    }

    /// The segments' memory, in the order of their ids.
    pub fn memory(&mut self) -> impl Iterator<Item = &mut dyn Memory> {
        self.segments.iter_mut().map(|(_, m)| m.as_mut() as &mut dyn Memory)
    }

    /// Reads a tensor's bytes.
    pub fn read(&self, slot: &Slot) -> Result<Vec<u8>> {
        let mut bytes = vec![0; slot.ty.bytes()];
        self.segments[slot.place.segment.0 as usize - 1].1.read(slot.place.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes a tensor's bytes.
    ///
    /// # Errors
    /// `Model` if their count is not that of the tensor.
    pub fn write(&mut self, slot: &Slot, name: &str, bytes: &[u8]) -> Result<()> {
        if bytes.len() != slot.ty.bytes() {
            return Err(Error::Model(format!("{name} is {}, {} bytes were given", slot.ty, bytes.len())));
        }
        self.segments[slot.place.segment.0 as usize - 1].1.write(slot.place.offset, bytes)?;
        Ok(())
    }

    /// Writes a float scalar.
    pub fn write_number(&mut self, slot: &Slot, x: f64) -> Result<()> {
        let bytes = match slot.ty.dtype {
            DType::F64 => x.to_le_bytes().to_vec(),
            _ => (x as f32).to_le_bytes().to_vec(),
        };
        self.write(slot, "a scalar", &bytes)
    }

    /// Sets every element of a float tensor.
    pub fn fill(&mut self, slot: &Slot, x: f64) -> Result<()> {
        let bytes = Tensor::full(&slot.ty, x).to_bytes();
        self.write(slot, "a tensor", &bytes)
    }

    /// Reads a tensor as numbers.
    pub fn tensor(&self, slot: &Slot) -> Result<Tensor> {
        Ok(Tensor::from_bytes(&slot.ty, &self.read(slot)?))
    }
}
