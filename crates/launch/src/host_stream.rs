//! Streams, events and copies of the contract, over those of a vendor's runtime.
//!
//! Errors in data come from steps that run on the host, and from kernels that check indices: their reports
//! are copied after the launch, and read by the next call that waits or gives the stream a plan's steps. The
//! stream keeps the first error and drops work until a call that waits has reported it. Failures of the
//! device are kept by the vendor's side ([`Host`]) and are returned again by each later call.

use crate::IndexFault;
use crate::driver::Queue;
use crate::host::{Host, memory_of};
use headwater_core::device::{Buffer, Event, Fetched, Stream};
use headwater_core::diagnostic::{Error, Result};
use headwater_core::fail;
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pinned memory between uses, at most so many pieces: allocating it costs far more than a copy.
const SPARE: usize = 8;

/// A stream of a device.
#[derive(Debug)]
pub struct HostStream<H: Host> {
    host: Arc<H>,
    /// The stream of the vendor's runtime, for launches.
    pub stream: H::Stream,
    transit: Arc<Transit<H>>,
    error: Mutex<Option<Error>>,
}

/// Host memory for copies, and copies under way.
struct Transit<H: Host> {
    spare: Mutex<Vec<H::Pinned>>,
    /// Copies to the device whose memory is not free yet.
    sent: Mutex<Vec<H::Pending>>,
    /// Reports of kernels on their way.
    reports: Mutex<Vec<(H::Pending, IndexFault)>>,
}

impl<H: Host> std::fmt::Debug for Transit<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} copies under way", lock(&self.sent).len())
    }
}

impl<H: Host> Transit<H> {
    fn give_back(&self, memory: H::Pinned) {
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE {
            spare.push(memory);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<H: Host> HostStream<H> {
    /// A new stream of a device.
    ///
    /// # Errors
    /// `Device` if there is none.
    pub fn new(host: &Arc<H>) -> Result<HostStream<H>> {
        let transit = Transit { spare: Mutex::default(), sent: Mutex::default(), reports: Mutex::default() };
        Ok(HostStream {
            host: host.clone(),
            stream: host.open_stream()?,
            transit: Arc::new(transit),
            error: Mutex::default(),
        })
    }

    /// A stream of the contract as one of this device.
    pub fn of<'a>(host: &Arc<H>, stream: &'a dyn Stream) -> Option<&'a HostStream<H>> {
        let own = stream.as_any().downcast_ref::<HostStream<H>>();
        own.filter(|stream| Arc::ptr_eq(&stream.host, host))
    }

    /// Pinned memory of at least so many bytes.
    fn pinned(&self, bytes: usize) -> Result<H::Pinned> {
        let mut sent = lock(&self.transit.sent);
        while let Some(copy) = sent.first() {
            if !H::has_arrived(copy)? {
                break;
            }
            self.transit.give_back(H::arrived(sent.remove(0))?);
        }
        drop(sent);
        let mut spare = lock(&self.transit.spare);
        if let Some(fits) = spare.iter().position(|m| m.len() >= bytes && m.len() / 4 <= bytes) {
            return Ok(spare.swap_remove(fits));
        }
        drop(spare);
        self.host.pin(bytes.next_power_of_two())
    }

    fn memory<'a>(&self, buffer: &'a Arc<dyn Buffer>) -> Result<&'a H::Memory> {
        memory_of(&self.host, buffer)
            .ok_or_else(|| fail!(Device, "a buffer is not one of {}", self.host.name()))
    }

    /// Reports a kept error, which is then over.
    fn told(&self) -> Result<()> {
        lock(&self.error).take().map_or(Ok(()), Err)
    }
}

impl<H: Host> Queue<H::Memory> for HostStream<H> {
    /// Copies a kernel's report after its launch.
    fn report(&self, faults: &H::Memory, at: usize, fault: IndexFault) -> Result<()> {
        let copy = H::download(&self.stream, faults, at, self.pinned(fault.bytes)?, fault.bytes)?;
        lock(&self.transit.reports).push((copy, fault));
        Ok(())
    }

    fn hear(&self) -> Result<()> {
        let reports = std::mem::take(&mut *lock(&self.transit.reports));
        for (copy, fault) in reports {
            let memory = H::arrived(copy)?;
            if let Err(error) = fault.check(&memory[..fault.bytes]) {
                self.keep(error);
            }
            self.transit.give_back(memory);
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        H::synchronize(&self.stream)?;
        self.hear()
    }

    fn is_dropping(&self) -> bool {
        lock(&self.error).is_some()
    }

    fn keep(&self, error: Error) {
        lock(&self.error).get_or_insert(error);
    }
}

/// Bytes on their way: in the first bytes of pinned memory, which goes back to the stream's spare ones.
struct Download<H: Host> {
    copy: H::Pending,
    bytes: usize,
    transit: Arc<Transit<H>>,
    error: Option<Error>,
}

impl<H: Host> Fetched for Download<H> {
    fn wait(self: Box<Self>) -> Result<Vec<u8>> {
        let memory = H::arrived(self.copy)?;
        let data = memory[..self.bytes].to_vec();
        self.transit.give_back(memory);
        self.error.map_or(Ok(data), Err)
    }
}

struct HostEvent<H: Host> {
    event: H::Event,
    host: Arc<H>,
    /// The stream's error when the event was recorded.
    error: Option<Error>,
}

impl<H: Host> Event for HostEvent<H> {
    fn is_done(&self) -> bool {
        // A failed event counts as done, so that nobody waits for it.
        H::is_done(&self.event).unwrap_or(true)
    }

    fn synchronize(&self) -> Result<()> {
        H::finish(&self.event)?;
        self.error.clone().map_or(Ok(()), Err)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<H: Host> Stream for HostStream<H> {
    fn write(&self, to: &Arc<dyn Buffer>, offset: usize, data: &[u8]) -> Result<()> {
        let memory = self.memory(to)?;
        H::check(memory, offset, data.len())?;
        if self.is_dropping() || data.is_empty() {
            return Ok(());
        }
        let mut pinned = self.pinned(data.len())?;
        pinned[..data.len()].copy_from_slice(data);
        let copy = H::upload(&self.stream, memory, offset, pinned, data.len())?;
        lock(&self.transit.sent).push(copy);
        Ok(())
    }

    fn fetch(&self, from: &Arc<dyn Buffer>, offset: usize, bytes: usize) -> Result<Box<dyn Fetched>> {
        let memory = self.memory(from)?;
        H::check(memory, offset, bytes)?;
        self.hear()?;
        // The error is this call's to report, once the bytes are waited for.
        let error = lock(&self.error).take();
        let copy = H::download(&self.stream, memory, offset, self.pinned(bytes)?, bytes)?;
        Ok(Box::new(Download { copy, bytes, transit: self.transit.clone(), error }))
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
        H::check(source, from_offset, bytes)?;
        H::check(target, to_offset, bytes)?;
        if self.is_dropping() || bytes == 0 {
            return Ok(());
        }
        H::copy(&self.stream, (source, from_offset), (target, to_offset), bytes)
    }

    fn fill(&self, to: &Arc<dyn Buffer>, offset: usize, bytes: usize, value: u8) -> Result<()> {
        let memory = self.memory(to)?;
        H::check(memory, offset, bytes)?;
        if self.is_dropping() || bytes == 0 {
            return Ok(());
        }
        H::fill(&self.stream, memory, offset, bytes, value)
    }

    fn record(&self) -> Result<Arc<dyn Event>> {
        let error = lock(&self.error).clone();
        let (event, host) = (H::record(&self.stream)?, self.host.clone());
        Ok(Arc::new(HostEvent { event, host, error }))
    }

    fn wait(&self, event: &Arc<dyn Event>) -> Result<()> {
        let own = event.as_any().downcast_ref::<HostEvent<H>>();
        let own = own.filter(|e| Arc::ptr_eq(&e.host, &self.host));
        let own = own.ok_or_else(|| fail!(Device, "the event is not one of {}", self.host.name()))?;
        H::wait(&self.stream, &own.event)
    }

    fn synchronize(&self) -> Result<()> {
        H::synchronize(&self.stream)?;
        self.hear()?;
        self.told()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
