//! Everything that outlives a step: memory on the device and what lies where in it.

use crate::error::{Error, Result};
use headwater_core::device::{Buffer, Content, Device, Stream};
use headwater_core::pass::split_wide::scalar_bytes;
use headwater_core::plan::{Place, Segment, SegmentId, SegmentKind};
use headwater_core::train::StateKey;
use headwater_core::{Tensor, TensorType};
use std::collections::HashMap;
use std::sync::Arc;

/// A tensor of the state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slot {
    pub place: Place,
    pub ty: TensorType,
}

/// Memory in segments, and names for what lies there.
pub(crate) struct State {
    /// What all work of the session goes through, in order.
    stream: Box<dyn Stream>,
    segments: Vec<(Segment, Arc<dyn Buffer>)>,
    slots: HashMap<StateKey, Slot>,
    scalars: Option<Scalars>,
}

/// The segment of a step's scalars (learning rate, scale, key of random numbers), as the host sets them. They
/// go to the device as one copy before the next run.
struct Scalars {
    segment: SegmentId,
    bytes: Vec<u8>,
    changed: bool,
}

impl State {
    /// No state yet, on a device.
    pub fn new(device: &dyn Device) -> Result<State> {
        Ok(State { stream: device.stream()?, segments: Vec::new(), slots: HashMap::new(), scalars: None })
    }

    /// What work on the state goes through.
    pub fn stream(&self) -> &dyn Stream {
        self.stream.as_ref()
    }

    /// Adds a zeroed segment.
    pub fn segment(
        &mut self,
        device: &dyn Device,
        name: String,
        bytes: usize,
        kind: SegmentKind,
    ) -> Result<SegmentId> {
        let memory = device.alloc(bytes, Content::Zero)?;
        self.segments.push((Segment { name, bytes, kind }, memory));
        Ok(SegmentId(self.segments.len() as u32))
    }

    /// Adds a segment holding tensors one after the other.
    pub fn pack(
        &mut self,
        device: &dyn Device,
        name: &str,
        kind: SegmentKind,
        tensors: Vec<(StateKey, TensorType)>,
    ) -> Result<SegmentId> {
        let segment = SegmentId(self.segments.len() as u32 + 1);
        let mut offset = 0usize;
        for (key, ty) in tensors {
            let bytes = ty.bytes();
            self.name(key, Slot { place: Place { segment, offset }, ty });
            offset += bytes.next_multiple_of(device.target().memory.alignment);
        }
        self.segment(device, name.to_string(), offset, kind)
    }

    /// Adds the segment of a step's scalars, zeros at first.
    pub fn pack_scalars(&mut self, device: &dyn Device, tensors: Vec<(StateKey, TensorType)>) -> Result<()> {
        let segment = self.pack(device, "scalars", SegmentKind::Input, tensors)?;
        let bytes = vec![0; self.segments[segment.0 as usize - 1].0.bytes];
        self.scalars = Some(Scalars { segment, bytes, changed: false });
        Ok(())
    }

    /// Sends the scalars to the device, if any was set since.
    pub fn send_scalars(&mut self) -> Result<()> {
        let Some(scalars) = self.scalars.as_mut().filter(|s| s.changed) else { return Ok(()) };
        let (_, memory) = &self.segments[scalars.segment.0 as usize - 1];
        self.stream.write(memory, 0, &scalars.bytes)?;
        scalars.changed = false;
        Ok(())
    }

    /// Names a tensor.
    pub fn name(&mut self, key: StateKey, slot: Slot) {
        self.slots.insert(key, slot);
    }

    /// Finds a tensor.
    ///
    /// # Errors
    /// `Model` if there is none.
    pub fn slot(&self, key: &StateKey) -> Result<&Slot> {
        let found = self.slots.get(key);
        found.ok_or_else(|| Error::Model(format!("the state has no {key}: {key:?}")))
    }

    /// The segments' descriptions, in the order of their ids.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().map(|(s, _)| s)
    }

    /// The segments' memory, in the order of their ids.
    pub fn memory(&self) -> impl Iterator<Item = &Arc<dyn Buffer>> {
        self.segments.iter().map(|(_, m)| m)
    }

    /// Reads a tensor's bytes.
    pub fn read(&self, slot: &Slot) -> Result<Vec<u8>> {
        let mut bytes = vec![0; slot.ty.bytes()];
        let (_, memory) = &self.segments[slot.place.segment.0 as usize - 1];
        self.stream.read(memory, slot.place.offset, &mut bytes)?;
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
        if let Some(scalars) = self.scalars.as_mut().filter(|s| s.segment == slot.place.segment) {
            scalars.bytes[slot.place.offset..slot.place.offset + bytes.len()].copy_from_slice(bytes);
            scalars.changed = true;
            return Ok(());
        }
        let (_, memory) = &self.segments[slot.place.segment.0 as usize - 1];
        self.stream.write(memory, slot.place.offset, bytes)?;
        Ok(())
    }

    /// Writes a float scalar, or a wide one.
    pub fn write_number(&mut self, slot: &Slot, x: f64) -> Result<()> {
        self.write(slot, "a scalar", &scalar_bytes(&slot.ty, x))
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
