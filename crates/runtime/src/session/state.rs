//! Everything that outlives a step: memory on the device, laid out by [`StateLayout`].

use super::layout::{Slot, StateLayout};
use crate::error::{Error, Result};
use headwater_core::Tensor;
use headwater_core::device::{Buffer, Content, Device, Foreign, Stream};
use headwater_core::pass::split_wide::scalar_bytes;
use headwater_core::plan::{Segment, SegmentId};
use headwater_core::train::StateKey;
use std::ops::Range;
use std::sync::Arc;

/// Gives memory of somebody else for a segment of the state, or none. Its bytes are zero.
pub type Lend<'a> = &'a mut dyn FnMut(&Segment) -> Option<Box<dyn Foreign>>;

/// Memory in segments.
pub(crate) struct State {
    /// The stream of all work of the session, in order.
    stream: Box<dyn Stream>,
    layout: StateLayout,
    /// The segments, in the order of their ids.
    memory: Vec<Arc<dyn Buffer>>,
    /// A step's scalars as the host sets them. They go to the device as one copy before the next run.
    scalars: Vec<u8>,
    /// True if a scalar was set since.
    changed: bool,
}

impl State {
    /// Memory on a device, that of `lend` where it gives some: zeros, but for tensors that begin with another
    /// number.
    ///
    /// # Errors
    /// `Model` for lent memory of another size; what the device refuses.
    pub fn new(device: &dyn Device, layout: StateLayout, lend: Lend) -> Result<State> {
        let memory = layout.segments().map(|s| {
            let Some(foreign) = lend(s) else { return Ok(device.alloc(s.bytes, Content::Zero)?) };
            let buffer = device.borrow(foreign)?;
            match buffer.bytes() == s.bytes {
                true => Ok(buffer),
                false => Err(Error::Model(format!(
                    "{} has {} bytes, {} were lent",
                    s.name,
                    s.bytes,
                    buffer.bytes()
                ))),
            }
        });
        let memory = memory.collect::<Result<Vec<_>>>()?;
        let scalars = layout.scalars.and_then(|s| layout.segments().nth(s.0 as usize - 1));
        let scalars = vec![0; scalars.map_or(0, |s| s.bytes)];
        let mut state = State { stream: device.stream()?, layout, memory, scalars, changed: false };
        for (key, x) in std::mem::take(&mut state.layout.initial) {
            let slot = state.slot(&key)?.clone();
            state.fill(&slot, x)?;
        }
        Ok(state)
    }

    /// The stream of work on the state.
    pub fn stream(&self) -> &dyn Stream {
        self.stream.as_ref()
    }

    /// The layout.
    pub fn layout(&self) -> &StateLayout {
        &self.layout
    }

    /// Sends the scalars to the device, if any was set since.
    pub fn send_scalars(&mut self) -> Result<()> {
        let Some(segment) = self.layout.scalars.filter(|_| self.changed) else { return Ok(()) };
        self.stream.write(self.segment(segment), 0, &self.scalars)?;
        self.changed = false;
        Ok(())
    }

    /// Finds a tensor.
    ///
    /// # Errors
    /// `Model` if there is none.
    pub fn slot(&self, key: &StateKey) -> Result<&Slot> {
        self.layout.slot(key)
    }

    /// The segments' descriptions, in the order of their ids.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.layout.segments()
    }

    /// The segments' memory, in the order of their ids.
    pub fn memory(&self) -> impl Iterator<Item = &Arc<dyn Buffer>> {
        self.memory.iter()
    }

    fn segment(&self, id: SegmentId) -> &Arc<dyn Buffer> {
        &self.memory[id.0 as usize - 1]
    }

    /// Reads a tensor's bytes.
    pub fn read(&self, slot: &Slot) -> Result<Vec<u8>> {
        let mut bytes = vec![0; slot.ty.bytes()];
        self.stream.read(self.segment(slot.place.segment), slot.place.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a part of a tensor's bytes.
    pub fn read_part(&self, slot: &Slot, part: Range<usize>, bytes: &mut [u8]) -> Result<()> {
        let offset = slot.place.offset + part.start;
        Ok(self.stream.read(self.segment(slot.place.segment), offset, bytes)?)
    }

    /// Writes a tensor's bytes.
    ///
    /// # Errors
    /// `Model` if their count is not that of the tensor.
    pub fn write(&mut self, slot: &Slot, name: &str, bytes: &[u8]) -> Result<()> {
        if bytes.len() != slot.ty.bytes() {
            return Err(Error::Model(format!("{name} is {}, {} bytes were given", slot.ty, bytes.len())));
        }
        if self.layout.scalars == Some(slot.place.segment) {
            self.scalars[slot.place.offset..slot.place.offset + bytes.len()].copy_from_slice(bytes);
            self.changed = true;
            return Ok(());
        }
        self.stream.write(self.segment(slot.place.segment), slot.place.offset, bytes)?;
        Ok(())
    }

    /// Copies a tensor to another of its type.
    ///
    /// # Errors
    /// `Model` if there is no such tensor, or its size is another.
    pub fn copy(&mut self, from: &StateKey, to: &StateKey) -> Result<()> {
        let (a, b) = (self.slot(from)?, self.slot(to)?);
        if a.ty != b.ty {
            return Err(Error::Model(format!("{from} is {}, {to} is {}", a.ty, b.ty)));
        }
        let (source, target) = (self.segment(a.place.segment), self.segment(b.place.segment));
        Ok(self.stream.copy(source, a.place.offset, target, b.place.offset, a.ty.bytes())?)
    }

    /// Writes a float scalar, or a wide one.
    pub fn write_number(&mut self, slot: &Slot, x: f64) -> Result<()> {
        self.write(slot, "a scalar", &scalar_bytes(&slot.ty, x))
    }

    /// Sets every element of a float tensor.
    fn fill(&mut self, slot: &Slot, x: f64) -> Result<()> {
        let bytes = Tensor::full(&slot.ty, x).to_bytes();
        self.write(slot, "a tensor", &bytes)
    }

    /// Reads a tensor as numbers.
    pub fn tensor(&self, slot: &Slot) -> Result<Tensor> {
        Ok(Tensor::from_bytes(&slot.ty, &self.read(slot)?))
    }
}
