//! Streams, events and copies.

use crate::machine::{Machine, Mark, StreamId};
use crate::memory::ReferenceBuffer;
use headwater_core::device::{Buffer, Event, Fetched, Stream};
use headwater_core::diagnostic::Result;
use headwater_core::fail;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// A stream of the reference device.
pub(crate) struct ReferenceStream {
    pub machine: Arc<Machine>,
    pub id: StreamId,
}

struct ReferenceEvent {
    machine: Arc<Machine>,
    mark: Mark,
}

/// Bytes that a task has copied, or will have when the mark has come.
struct Copied {
    machine: Arc<Machine>,
    mark: Mark,
    data: Arc<Mutex<Vec<u8>>>,
}

impl Event for ReferenceEvent {
    fn is_done(&self) -> bool {
        self.machine.is_done(self.mark)
    }

    fn synchronize(&self) -> Result<()> {
        self.machine.await_mark(self.mark)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Fetched for Copied {
    fn wait(self: Box<Self>) -> Result<Vec<u8>> {
        self.machine.await_mark(self.mark)?;
        Ok(std::mem::take(&mut *self.data.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl ReferenceStream {
    /// A handle that a task may keep, of a buffer whose range has been checked.
    fn own(&self, buffer: &Arc<dyn Buffer>, offset: usize, bytes: usize) -> Result<Arc<dyn Buffer>> {
        ReferenceBuffer::of(&self.machine, buffer)?.check(offset, bytes)?;
        Ok(buffer.clone())
    }

    /// Writes bytes that a function makes, in their turn.
    fn store(
        &self,
        to: &Arc<dyn Buffer>,
        offset: usize,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) + Send + 'static,
    ) -> Result<()> {
        let (to, machine) = (self.own(to, offset, bytes)?, self.machine.clone());
        self.machine.submit(self.id, move |user| {
            let mut memory = ReferenceBuffer::of(&machine, &to)?.lock();
            let range = offset..offset + bytes;
            memory.take(range.clone(), true, user)?;
            fill(&mut memory.bytes[range.clone()]);
            memory.written(range);
            Ok(())
        })
    }

    /// Hands bytes to a function in their turn.
    fn load(
        &self,
        from: &Arc<dyn Buffer>,
        offset: usize,
        bytes: usize,
        take: impl FnOnce(&[u8]) + Send + 'static,
    ) -> Result<()> {
        let (from, machine) = (self.own(from, offset, bytes)?, self.machine.clone());
        self.machine.submit(self.id, move |user| {
            let mut memory = ReferenceBuffer::of(&machine, &from)?.lock();
            let range = offset..offset + bytes;
            memory.take(range.clone(), false, user)?;
            memory.read(range.clone())?;
            take(&memory.bytes[range]);
            Ok(())
        })
    }
}

impl Stream for ReferenceStream {
    fn write(&self, to: &Arc<dyn Buffer>, offset: usize, data: &[u8]) -> Result<()> {
        let data = data.to_vec();
        self.store(to, offset, data.len(), move |bytes| bytes.copy_from_slice(&data))
    }

    fn fetch(&self, from: &Arc<dyn Buffer>, offset: usize, bytes: usize) -> Result<Box<dyn Fetched>> {
        let data = Arc::new(Mutex::new(Vec::new()));
        let to = data.clone();
        self.load(from, offset, bytes, move |bytes| {
            *to.lock().unwrap_or_else(PoisonError::into_inner) = bytes.to_vec();
        })?;
        Ok(Box::new(Copied { machine: self.machine.clone(), mark: self.machine.mark(self.id)?, data }))
    }

    fn copy(
        &self,
        from: &Arc<dyn Buffer>,
        from_offset: usize,
        to: &Arc<dyn Buffer>,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        // Refused before anything is submitted.
        self.own(to, to_offset, bytes)?;
        let data = Arc::new(Mutex::new(Vec::new()));
        let between = data.clone();
        self.load(from, from_offset, bytes, move |bytes| {
            *between.lock().unwrap_or_else(PoisonError::into_inner) = bytes.to_vec();
        })?;
        self.store(to, to_offset, bytes, move |bytes| {
            bytes.copy_from_slice(&data.lock().unwrap_or_else(PoisonError::into_inner));
        })
    }

    fn fill(&self, to: &Arc<dyn Buffer>, offset: usize, bytes: usize, value: u8) -> Result<()> {
        self.store(to, offset, bytes, move |bytes| bytes.fill(value))
    }

    fn record(&self) -> Result<Arc<dyn Event>> {
        Ok(Arc::new(ReferenceEvent { machine: self.machine.clone(), mark: self.machine.mark(self.id)? }))
    }

    fn wait(&self, event: &Arc<dyn Event>) -> Result<()> {
        let own = event.as_any().downcast_ref::<ReferenceEvent>();
        let own = own.filter(|e| Arc::ptr_eq(&e.machine, &self.machine));
        let own = own.ok_or_else(|| fail!(Device, "the event is not one of this device"))?;
        self.machine.wait(self.id, own.mark)
    }

    fn synchronize(&self) -> Result<()> {
        self.machine.synchronize(self.id)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
