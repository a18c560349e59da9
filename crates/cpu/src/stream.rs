//! Streams of the CPU: work is done while it is submitted, by the thread that submits it.

use crate::buffer::CpuBuffer;
use headwater_core::device::{Buffer, Event, Fetched, Stream};
use headwater_core::diagnostic::{Code, Error, Result};
use headwater_core::fail;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// A stream of the CPU; see the contract in [`headwater_core::device`].
#[derive(Debug, Default)]
pub struct CpuStream {
    /// The failure that has not been reported, or is sticky.
    failure: Mutex<Option<Error>>,
}

impl CpuStream {
    /// Does work now, unless something before has gone wrong. Its error is kept for who waits.
    pub(crate) fn submit(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        match &*failure {
            Some(e) if e.code == Code::Device => return Err(e.clone()),
            Some(_) => {}
            None => *failure = work().err(),
        }
        Ok(())
    }

    /// Reports a failure; an error in data is over then.
    fn report(&self) -> Result<()> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        match failure.clone() {
            Some(e) => {
                if e.code != Code::Device {
                    *failure = None;
                }
                Err(e)
            }
            None => Ok(()),
        }
    }
}

/// A mark that has come when it is made.
#[derive(Debug)]
struct CpuEvent(Option<Error>);

impl Event for CpuEvent {
    fn is_done(&self) -> bool {
        true
    }

    fn synchronize(&self) -> Result<()> {
        self.0.clone().map_or(Ok(()), Err)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Bytes that are available.
struct Ready(Vec<u8>);

impl Fetched for Ready {
    fn wait(self: Box<Self>) -> Result<Vec<u8>> {
        Ok(self.0)
    }
}

impl Stream for CpuStream {
    fn write(&self, to: &Arc<dyn Buffer>, offset: usize, data: &[u8]) -> Result<()> {
        let to = CpuBuffer::of(to)?;
        to.check(offset, data.len())?;
        self.submit(|| to.write(offset, data))
    }

    fn fetch(&self, from: &Arc<dyn Buffer>, offset: usize, bytes: usize) -> Result<Box<dyn Fetched>> {
        let mut data = vec![0; bytes];
        self.read(from, offset, &mut data)?;
        Ok(Box::new(Ready(data)))
    }

    fn read(&self, from: &Arc<dyn Buffer>, offset: usize, data: &mut [u8]) -> Result<()> {
        self.report()?;
        CpuBuffer::of(from)?.read(offset, data)
    }

    fn copy(
        &self,
        from: &Arc<dyn Buffer>,
        from_offset: usize,
        to: &Arc<dyn Buffer>,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let (from, to) = (CpuBuffer::of(from)?, CpuBuffer::of(to)?);
        from.check(from_offset, bytes)?;
        to.check(to_offset, bytes)?;
        self.submit(|| {
            let mut data = vec![0; bytes];
            from.read(from_offset, &mut data)?;
            to.write(to_offset, &data)
        })
    }

    fn fill(&self, to: &Arc<dyn Buffer>, offset: usize, bytes: usize, value: u8) -> Result<()> {
        let to = CpuBuffer::of(to)?;
        to.check(offset, bytes)?;
        self.submit(|| to.fill(offset, bytes, value))
    }

    fn record(&self) -> Result<Arc<dyn Event>> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::new(CpuEvent(failure.clone())))
    }

    fn wait(&self, event: &Arc<dyn Event>) -> Result<()> {
        match event.as_any().downcast_ref::<CpuEvent>() {
            Some(_) => Ok(()),
            None => Err(fail!(Device, "the event is not one of the CPU")),
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.report()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
