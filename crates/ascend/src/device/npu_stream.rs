//! Streams, events and copies of the contract, over those of the host side.
//!
//! Errors in data come from steps that run on the host, and from kernels that check indices: their reports are copied
//! behind the launch, and read by the next call that waits or gives the stream a plan's steps. The stream keeps the first
//! error and drops work until a call that waits has reported it. Failures of the device are kept by the host side and
//! come again by themselves.

use super::npu_memory;
use crate::host::{self, DeviceMemory, Pending, PinnedMemory};
use headwater_core::device::{Buffer, Event, Fetched, Stream};
use headwater_core::diagnostic::{Error, Result};
use headwater_core::fail;
use headwater_launch::IndexFault;
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pinned memory between uses, at most so many pieces: making it costs far more than a copy.
const SPARE: usize = 8;

/// A stream of the device.
pub(super) struct AscendStream {
    pub device: Arc<host::Device>,
    pub stream: host::Stream,
    spare: Arc<Mutex<Vec<PinnedMemory>>>,
    /// Copies to the device whose memory is not free yet.
    sent: Mutex<Vec<Pending>>,
    error: Mutex<Option<Error>>,
    /// Reports of kernels on their way.
    reports: Mutex<Vec<(Pending, IndexFault)>>,
}

fn memory_of<'a>(device: &Arc<host::Device>, buffer: &'a Arc<dyn Buffer>) -> Result<&'a DeviceMemory> {
    npu_memory::memory_of(device, buffer)
        .ok_or_else(|| fail!(Device, "a buffer is not one of {}", device.name()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AscendStream {
    pub fn new(device: &Arc<host::Device>) -> Result<AscendStream> {
        Ok(AscendStream {
            device: device.clone(),
            stream: host::Stream::new(device)?,
            spare: Arc::default(),
            sent: Mutex::default(),
            error: Mutex::default(),
            reports: Mutex::default(),
        })
    }

    /// True if work is dropped, because of an error that nobody has heard of.
    pub fn is_dropping(&self) -> bool {
        lock(&self.error).is_some()
    }

    /// Keeps an error in data until a call that waits.
    pub fn keep(&self, error: Error) {
        lock(&self.error).get_or_insert(error);
    }

    /// Copies a kernel's report behind its launch.
    pub fn watch(&self, faults: &DeviceMemory, at: usize, fault: IndexFault) -> Result<()> {
        let pending = self.stream.read_part(faults, at, self.pinned(fault.bytes)?, fault.bytes)?;
        lock(&self.reports).push((pending, fault));
        Ok(())
    }

    /// Waits for reports of kernels, and keeps the first error.
    pub fn hear(&self) -> Result<()> {
        let reports = std::mem::take(&mut *lock(&self.reports));
        for (pending, fault) in reports {
            let memory = pending.wait(None)?;
            if let Err(error) = fault.check(&memory[..fault.bytes]) {
                self.keep(error);
            }
            self.give_back(memory);
        }
        Ok(())
    }

    /// Keeps pinned memory for the next copy.
    fn give_back(&self, memory: PinnedMemory) {
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE {
            spare.push(memory);
        }
    }

    /// Reports a kept error, which is then over.
    fn report(&self) -> Result<()> {
        lock(&self.error).take().map_or(Ok(()), Err)
    }

    /// Pinned memory of at least so many bytes.
    fn pinned(&self, bytes: usize) -> Result<PinnedMemory> {
        let mut sent = lock(&self.sent);
        let mut spare = lock(&self.spare);
        while let Some(pending) = sent.first() {
            if spare.len() >= SPARE || !pending.is_done()? {
                break;
            }
            spare.push(sent.remove(0).wait(None)?);
        }
        if let Some(fits) = spare.iter().position(|m| m.len() >= bytes && m.len() / 4 <= bytes) {
            return Ok(spare.swap_remove(fits));
        }
        drop((sent, spare));
        Ok(PinnedMemory::alloc(&self.device, bytes.next_power_of_two())?)
    }
}

/// Bytes on their way: read into the first bytes of pinned memory, which goes back to the stream's spare ones.
struct Coming {
    pending: Pending,
    bytes: usize,
    spare: Arc<Mutex<Vec<PinnedMemory>>>,
    error: Option<Error>,
}

impl Fetched for Coming {
    fn wait(self: Box<Self>) -> Result<Vec<u8>> {
        let memory = self.pending.wait(None)?;
        let data = memory[..self.bytes].to_vec();
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE {
            spare.push(memory);
        }
        self.error.map_or(Ok(data), Err)
    }
}

struct AscendEvent {
    event: host::Event,
    device: Arc<host::Device>,
    /// The stream's error when the event was recorded.
    error: Option<Error>,
}

impl Event for AscendEvent {
    fn is_done(&self) -> bool {
        // A failed event counts as done, so that nobody waits for it.
        self.event.is_done().unwrap_or(true)
    }

    fn synchronize(&self) -> Result<()> {
        self.event.wait(None)?;
        self.error.clone().map_or(Ok(()), Err)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Stream for AscendStream {
    fn write(&self, to: &Arc<dyn Buffer>, offset: usize, data: &[u8]) -> Result<()> {
        let memory = memory_of(&self.device, to)?;
        memory.check(offset, data.len())?;
        if self.is_dropping() || data.is_empty() {
            return Ok(());
        }
        let mut pinned = self.pinned(data.len())?;
        pinned[..data.len()].copy_from_slice(data);
        let pending = self.stream.write_part(memory, offset, pinned, data.len())?;
        lock(&self.sent).push(pending);
        Ok(())
    }

    fn fetch(&self, from: &Arc<dyn Buffer>, offset: usize, bytes: usize) -> Result<Box<dyn Fetched>> {
        let memory = memory_of(&self.device, from)?;
        memory.check(offset, bytes)?;
        self.hear()?;
        // The error is this call's to report, once the bytes are waited for.
        let error = lock(&self.error).take();
        let pinned = self.pinned(bytes)?;
        let pending = self.stream.read_part(memory, offset, pinned, bytes)?;
        Ok(Box::new(Coming { pending, bytes, spare: self.spare.clone(), error }))
    }

    fn copy(
        &self,
        from: &Arc<dyn Buffer>,
        from_offset: usize,
        to: &Arc<dyn Buffer>,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let (source, target) = (memory_of(&self.device, from)?, memory_of(&self.device, to)?);
        source.check(from_offset, bytes)?;
        target.check(to_offset, bytes)?;
        if self.is_dropping() {
            return Ok(());
        }
        Ok(self.stream.copy((source, from_offset), (target, to_offset), bytes)?)
    }

    fn fill(&self, to: &Arc<dyn Buffer>, offset: usize, bytes: usize, value: u8) -> Result<()> {
        let memory = memory_of(&self.device, to)?;
        memory.check(offset, bytes)?;
        if self.is_dropping() {
            return Ok(());
        }
        Ok(self.stream.fill(memory, offset, bytes, value)?)
    }

    fn record(&self) -> Result<Arc<dyn Event>> {
        let error = lock(&self.error).clone();
        Ok(Arc::new(AscendEvent { event: self.stream.record()?, device: self.device.clone(), error }))
    }

    fn wait(&self, event: &Arc<dyn Event>) -> Result<()> {
        let own = event.as_any().downcast_ref::<AscendEvent>();
        let own = own.filter(|e| Arc::ptr_eq(&e.device, &self.device));
        let own = own.ok_or_else(|| fail!(Device, "the event is not one of {}", self.device.name()))?;
        Ok(self.stream.wait(&own.event)?)
    }

    fn synchronize(&self) -> Result<()> {
        self.stream.synchronize(None)?;
        self.hear()?;
        self.report()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
