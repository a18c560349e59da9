//! Streams, events and copies of the contract.
//!
//! Errors in data come from steps on the host and from kernels that check indices: their reports are copied
//! after the launch and read by the next call that waits. The stream keeps the first error and drops work
//! until it is reported. Failures of the device are kept by the context and come again by themselves.

use crate::host::{self, Context, DeviceMemory, PinnedMemory};
use crate::memory::memory_of;
use headwater_core::device::{Buffer, Event, Fetched, Stream};
use headwater_core::diagnostic::{Error, Result};
use headwater_core::fail;
use headwater_launch::IndexFault;
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pinned memory between uses, at most so many pieces: making it costs far more than a copy.
const SPARE: usize = 8;

/// A stream of the device.
pub(crate) struct CudaStream {
    pub context: Arc<Context>,
    pub stream: host::Stream,
    spare: Arc<Mutex<Vec<PinnedMemory>>>,
    /// Copies to the device whose memory is not free yet.
    sent: Mutex<Vec<(host::Event, PinnedMemory)>>,
    error: Mutex<Option<Error>>,
    /// Reports of kernels on their way.
    reports: Mutex<Vec<(host::Event, PinnedMemory, IndexFault)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn give_back(spare: &Mutex<Vec<PinnedMemory>>, memory: PinnedMemory) {
    let mut spare = lock(spare);
    if spare.len() < SPARE {
        spare.push(memory);
    }
}

impl CudaStream {
    pub fn new(context: &Arc<Context>) -> Result<CudaStream> {
        Ok(CudaStream {
            context: context.clone(),
            stream: host::Stream::new(context)?,
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

    /// Copies a kernel's report after its launch.
    pub fn watch(&self, faults: &DeviceMemory, at: usize, fault: IndexFault) -> Result<()> {
        let mut pinned = self.pinned(fault.bytes)?;
        self.stream.read(faults, at, &mut pinned, fault.bytes)?;
        let event = self.stream.record()?;
        lock(&self.reports).push((event, pinned, fault));
        Ok(())
    }

    /// Waits for reports of kernels, and keeps the first error.
    pub fn hear(&self) -> Result<()> {
        let reports = std::mem::take(&mut *lock(&self.reports));
        for (event, memory, fault) in reports {
            event.wait()?;
            if let Err(error) = fault.check(&memory[..fault.bytes]) {
                self.keep(error);
            }
            give_back(&self.spare, memory);
        }
        Ok(())
    }

    /// Pinned memory of at least so many bytes.
    fn pinned(&self, bytes: usize) -> Result<PinnedMemory> {
        let mut sent = lock(&self.sent);
        while let Some((event, _)) = sent.first() {
            if !event.is_done()? {
                break;
            }
            let (_, memory) = sent.remove(0);
            give_back(&self.spare, memory);
        }
        drop(sent);
        let mut spare = lock(&self.spare);
        if let Some(fits) = spare.iter().position(|m| m.len() >= bytes && m.len() / 4 <= bytes) {
            return Ok(spare.swap_remove(fits));
        }
        drop(spare);
        Ok(PinnedMemory::alloc(&self.context, bytes.next_power_of_two())?)
    }

    fn memory<'a>(&self, buffer: &'a Arc<dyn Buffer>) -> Result<&'a DeviceMemory> {
        let foreign = || fail!(Device, "a buffer is not one of cuda:{}", self.context.ordinal());
        memory_of(&self.context, buffer).ok_or_else(foreign)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // Pinned memory outlives the copies from and to it.
        let _ = self.stream.synchronize();
    }
}

/// Bytes on their way: in the first bytes of pinned memory, which goes back to the stream's spare ones.
struct Coming {
    event: host::Event,
    memory: Option<PinnedMemory>,
    bytes: usize,
    spare: Arc<Mutex<Vec<PinnedMemory>>>,
    error: Option<Error>,
}

impl Fetched for Coming {
    fn wait(mut self: Box<Self>) -> Result<Vec<u8>> {
        self.event.wait()?;
        let memory = self.memory.take();
        let data = memory.as_ref().map_or_else(Vec::new, |m| m[..self.bytes].to_vec());
        memory.into_iter().for_each(|m| give_back(&self.spare, m));
        self.error.take().map_or(Ok(data), Err)
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        if self.memory.is_some() {
            let _ = self.event.wait();
        }
    }
}

struct CudaEvent {
    event: host::Event,
    context: Arc<Context>,
    /// The stream's error when the event was recorded.
    error: Option<Error>,
}

impl Event for CudaEvent {
    fn is_done(&self) -> bool {
        // A failed event counts as done, so that nobody waits for it.
        self.event.is_done().unwrap_or(true)
    }

    fn synchronize(&self) -> Result<()> {
        self.event.wait()?;
        self.error.clone().map_or(Ok(()), Err)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Stream for CudaStream {
    fn write(&self, to: &Arc<dyn Buffer>, offset: usize, data: &[u8]) -> Result<()> {
        let memory = self.memory(to)?;
        memory.check(offset, data.len())?;
        if self.is_dropping() || data.is_empty() {
            return Ok(());
        }
        let mut pinned = self.pinned(data.len())?;
        pinned[..data.len()].copy_from_slice(data);
        self.stream.write(memory, offset, &pinned, data.len())?;
        let event = self.stream.record()?;
        lock(&self.sent).push((event, pinned));
        Ok(())
    }

    fn fetch(&self, from: &Arc<dyn Buffer>, offset: usize, bytes: usize) -> Result<Box<dyn Fetched>> {
        let memory = self.memory(from)?;
        memory.check(offset, bytes)?;
        self.hear()?;
        // The error is this call's to report, once the bytes are waited for.
        let error = lock(&self.error).take();
        let mut pinned = self.pinned(bytes)?;
        self.stream.read(memory, offset, &mut pinned, bytes)?;
        let (event, spare) = (self.stream.record()?, self.spare.clone());
        Ok(Box::new(Coming { event, memory: Some(pinned), bytes, spare, error }))
    }

    fn copy(
        &self,
        from: &Arc<dyn Buffer>,
        from_offset: usize,
        to: &Arc<dyn Buffer>,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let (source, target) = (self.memory(from)?, self.memory(to)?);
        source.check(from_offset, bytes)?;
        target.check(to_offset, bytes)?;
        if self.is_dropping() || bytes == 0 {
            return Ok(());
        }
        Ok(self.stream.copy((source, from_offset), (target, to_offset), bytes)?)
    }

    fn fill(&self, to: &Arc<dyn Buffer>, offset: usize, bytes: usize, value: u8) -> Result<()> {
        let memory = self.memory(to)?;
        memory.check(offset, bytes)?;
        if self.is_dropping() || bytes == 0 {
            return Ok(());
        }
        Ok(self.stream.fill(memory, offset, bytes, value)?)
    }

    fn record(&self) -> Result<Arc<dyn Event>> {
        let error = lock(&self.error).clone();
        Ok(Arc::new(CudaEvent { event: self.stream.record()?, context: self.context.clone(), error }))
    }

    fn wait(&self, event: &Arc<dyn Event>) -> Result<()> {
        let own = event.as_any().downcast_ref::<CudaEvent>();
        let own = own.filter(|e| Arc::ptr_eq(&e.context, &self.context));
        let foreign = || fail!(Device, "the event is not one of cuda:{}", self.context.ordinal());
        Ok(self.stream.wait(&own.ok_or_else(foreign)?.event)?)
    }

    fn synchronize(&self) -> Result<()> {
        self.stream.synchronize()?;
        self.hear()?;
        lock(&self.error).take().map_or(Ok(()), Err)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
