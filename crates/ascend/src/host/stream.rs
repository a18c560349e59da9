//! Streams and events. A stream keeps a record of its work until that is known to be done. So memory outlives
//! the work that uses it, and a failure names its launch.
#![allow(unsafe_code)]

use super::acl::types::{self, EventHandle, StreamHandle, memcpy_kind};
use super::codes;
use super::device::Device;
use super::error::{Error, Result};
use super::log::{Hold, Log, Sites, destroy_event, query};
use super::memory::{DeviceMemory, PinnedMemory};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A queue of work of a device, done in order.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    handle: StreamHandle,
    log: Arc<Mutex<Log>>,
}

impl Stream {
    /// A new stream.
    ///
    /// # Errors
    /// [`Error::Call`] if there are no more, the device's first error.
    pub fn new(device: &Arc<Device>) -> Result<Stream> {
        device.enter()?;
        let runtime = device.runtime();
        let mut handle = StreamHandle::NULL;
        // SAFETY: writes one handle.
        device.check("aclrtCreateStream", unsafe { (runtime.acl.base.aclrtCreateStream)(&mut handle) })?;
        runtime.counts.streams.fetch_add(1, Ordering::SeqCst);
        let mut id = None;
        if let Some(f) = runtime.acl.tasks {
            let mut number = 0;
            // SAFETY: the stream is alive; writes one number.
            let status = unsafe { (f.aclrtStreamGetId)(handle, &mut number) };
            id = (status == 0).then_some(number).and_then(|n| u32::try_from(n).ok());
        }
        let log = Arc::new(Mutex::new(Log::new(id)));
        let stream = Stream { device: device.clone(), handle, log };
        device.watch(&stream.log);
        Ok(stream)
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn handle(&self) -> StreamHandle {
        self.handle
    }

    fn notes(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes work that was just given to the stream by this thread. Marks it now and then; waits for it if
    /// launches block.
    pub(super) fn note(&self, sites: Sites, hold: Hold) -> Result<()> {
        let runtime = self.device.runtime();
        let mut task = None;
        let launched = !matches!(sites, Sites::None);
        if let Some(f) = runtime.acl.tasks.filter(|_| launched) {
            let mut number = 0;
            // SAFETY: writes one number.
            task = (unsafe { (f.aclrtGetThreadLastTaskId)(&mut number) } == 0).then_some(number);
        }
        let due = self.notes().push(task, sites, hold);
        if let Some(count) = due {
            let event = self.record_raw()?;
            self.notes().mark(count, event, runtime);
        }
        if launched && runtime.settings.blocking {
            self.synchronize(None)?;
        }
        Ok(())
    }

    /// An event that is done when everything given to the stream before it is done.
    ///
    /// # Errors
    /// [`Error::Call`] if there are no more events, the device's first error.
    pub fn record(&self) -> Result<Event> {
        self.device.enter()?;
        let handle = self.record_raw()?;
        Ok(Event(Arc::new(EventInner { device: self.device.clone(), handle })))
    }

    fn record_raw(&self) -> Result<EventHandle> {
        let runtime = self.device.runtime();
        let mut event = EventHandle::NULL;
        // SAFETY: writes one handle.
        let status = unsafe { (runtime.acl.base.aclrtCreateEvent)(&mut event) };
        self.device.check("aclrtCreateEvent", status)?;
        runtime.counts.events.fetch_add(1, Ordering::SeqCst);
        // SAFETY: both handles are alive.
        let status = unsafe { (runtime.acl.base.aclrtRecordEvent)(event, self.handle) };
        self.device.check("aclrtRecordEvent", status).inspect_err(|_| destroy_event(runtime, event))?;
        Ok(event)
    }

    /// Lets work given to this stream from now on wait for an event, of this or another stream of the device.
    ///
    /// # Errors
    /// [`Error::Usage`] for an event of another device, the device's first error.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.device.enter()?;
        if !Arc::ptr_eq(&self.device, &event.0.device) {
            return Err(Error::Usage(format!(
                "a stream of {} cannot wait for an event of {}",
                self.device.name(),
                event.0.device.name()
            )));
        }
        // SAFETY: both handles are alive; the log holds the event until the wait is over.
        let status =
            unsafe { (self.device.runtime.acl.base.aclrtStreamWaitEvent)(self.handle, event.0.handle) };
        self.device.check("aclrtStreamWaitEvent", status)?;
        self.note(Sites::None, Some(event.0.clone()))
    }

    /// Waits until everything given to the stream is done; at most `limit`, or the settings' limit.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the unfinished launches, [`Error::Kernel`] with the one that failed,
    /// [`Error::Lost`].
    pub fn synchronize(&self, limit: Option<Duration>) -> Result<()> {
        self.device.enter()?;
        let runtime = self.device.runtime();
        let limit = limit.unwrap_or(runtime.settings.limit);
        let milliseconds = limit.as_millis().clamp(1, i32::MAX as u128) as i32;
        // Other threads may add work meanwhile, of which this wait says nothing.
        let count = self.notes().count();
        // SAFETY: the stream is alive.
        let status =
            unsafe { (runtime.acl.base.aclrtSynchronizeStreamWithTimeout)(self.handle, milliseconds) };
        if status == codes::STREAM_SYNC_TIMEOUT {
            return Err(self.device.timed_out(limit));
        }
        self.device.check("aclrtSynchronizeStreamWithTimeout", status)?;
        // The lock is not held while entries go: what they hold may be the last use of memory or events.
        let done = self.notes().forget(count, runtime);
        drop(done);
        Ok(())
    }

    /// Copies the whole of pinned memory to byte `offset` of device memory, in order with the stream. The
    /// memory comes back when the copy is done.
    ///
    /// # Errors
    /// [`Error::Usage`] for a range outside, the device's first error.
    pub fn write(&self, to: &DeviceMemory, offset: usize, from: PinnedMemory) -> Result<Pending> {
        let bytes = from.0.bytes;
        self.write_part(to, offset, from, bytes)
    }

    /// The same with the first `bytes` bytes of the pinned memory.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub fn write_part(
        &self,
        to: &DeviceMemory,
        offset: usize,
        from: PinnedMemory,
        bytes: usize,
    ) -> Result<Pending> {
        let address = to.range(offset, bytes)?;
        from.0.check(bytes)?;
        self.same_device(to)?;
        self.device.enter()?;
        if bytes > 0 {
            let (f, data) = (&self.device.runtime.acl.base, from.0.address as *const _);
            // SAFETY: both ranges were checked. The log holds both memories until the copy is known to be
            // done, and nobody writes the bytes meanwhile: `Pending` owns them.
            let status = unsafe {
                (f.aclrtMemcpyAsync)(address, bytes, data, bytes, memcpy_kind::HOST_TO_DEVICE, self.handle)
            };
            self.device.check("aclrtMemcpyAsync", status)?;
        }
        self.pending(to, from)
    }

    /// Copies from byte `offset` of device memory into the whole of pinned memory, in order with the stream.
    ///
    /// # Errors
    /// [`Error::Usage`] for a range outside, the device's first error.
    pub fn read(&self, from: &DeviceMemory, offset: usize, into: PinnedMemory) -> Result<Pending> {
        let bytes = into.0.bytes;
        self.read_part(from, offset, into, bytes)
    }

    /// The same into the first `bytes` bytes of the pinned memory.
    ///
    /// # Errors
    /// As [`Stream::read`].
    pub fn read_part(
        &self,
        from: &DeviceMemory,
        offset: usize,
        into: PinnedMemory,
        bytes: usize,
    ) -> Result<Pending> {
        let address = from.range(offset, bytes)?;
        into.0.check(bytes)?;
        self.same_device(from)?;
        self.device.enter()?;
        if bytes > 0 {
            let (f, data) = (&self.device.runtime.acl.base, into.0.address as *mut _);
            // SAFETY: both ranges were checked. The log holds both memories until the copy is known to be
            // done, and nobody reads the bytes meanwhile: `Pending` owns them.
            let status = unsafe {
                (f.aclrtMemcpyAsync)(data, bytes, address, bytes, memcpy_kind::DEVICE_TO_HOST, self.handle)
            };
            self.device.check("aclrtMemcpyAsync", status)?;
        }
        self.pending(from, into)
    }

    fn pending(&self, device_side: &DeviceMemory, host_side: PinnedMemory) -> Result<Pending> {
        self.note(Sites::None, Some(Arc::new((device_side.clone(), host_side.0.clone()))))?;
        Ok(Pending { event: self.record()?, memory: host_side })
    }

    /// Copies bytes inside of the device, in order with the stream. The ranges must not overlap.
    ///
    /// # Errors
    /// [`Error::Usage`] for a range outside or an overlap, the device's first error.
    pub fn copy(
        &self,
        (from, from_offset): (&DeviceMemory, usize),
        (to, to_offset): (&DeviceMemory, usize),
        bytes: usize,
    ) -> Result<()> {
        let (source, target) = (from.range(from_offset, bytes)?, to.range(to_offset, bytes)?);
        self.same_device(from)?;
        self.same_device(to)?;
        if bytes == 0 {
            return Ok(());
        }
        let (a, b) = (source as usize, target as usize);
        if a < b + bytes && b < a + bytes {
            return Err(Error::Usage(format!("a copy of {bytes} bytes onto itself")));
        }
        self.device.enter()?;
        // SAFETY: both ranges were checked; the log holds both memories until the copy is done.
        let status = unsafe {
            (self.device.runtime.acl.base.aclrtMemcpyAsync)(
                target,
                bytes,
                source,
                bytes,
                memcpy_kind::DEVICE_TO_DEVICE,
                self.handle,
            )
        };
        self.device.check("aclrtMemcpyAsync", status)?;
        self.note(Sites::None, Some(Arc::new((from.clone(), to.clone()))))
    }

    /// Sets bytes of device memory, in order with the stream.
    ///
    /// # Errors
    /// [`Error::Usage`] for a range outside, the device's first error.
    pub fn fill(&self, to: &DeviceMemory, offset: usize, bytes: usize, byte: u8) -> Result<()> {
        let address = to.range(offset, bytes)?;
        self.same_device(to)?;
        if bytes == 0 {
            return Ok(());
        }
        self.device.enter()?;
        // SAFETY: the range was checked; the log holds the memory until the work is done.
        let status = unsafe {
            (self.device.runtime.acl.base.aclrtMemsetAsync)(
                address,
                bytes,
                i32::from(byte),
                bytes,
                self.handle,
            )
        };
        self.device.check("aclrtMemsetAsync", status)?;
        self.note(Sites::None, Some(Arc::new(to.clone())))
    }

    pub(super) fn same_device(&self, memory: &DeviceMemory) -> Result<()> {
        if Arc::ptr_eq(&self.device, memory.device()) {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "memory of {} on a stream of {}",
            memory.device().name(),
            self.device.name()
        )))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let runtime = self.device.runtime.clone();
        let idle = self.notes().is_empty() || self.synchronize(None).is_ok();
        self.device.set_context();
        let (call, status) = if idle {
            // SAFETY: the stream is alive and destroyed once.
            let status = unsafe { (runtime.acl.base.aclrtDestroyStream)(self.handle) };
            ("aclrtDestroyStream", status)
        } else if let Some(f) = runtime.acl.force {
            // SAFETY: the stream is alive and destroyed once; its work is abandoned.
            let status = unsafe { (f.aclrtDestroyStreamForce)(self.handle) };
            ("aclrtDestroyStreamForce", status)
        } else {
            // Without that function the release of a stream that hangs may hang too: the stream is left
            // alone.
            ("aclrtDestroyStreamForce", codes::STREAM_SYNC_TIMEOUT)
        };
        runtime.released(call, status, &runtime.counts.streams);
        let mut log = self.notes();
        let count = log.count();
        let rest = log.forget(count, &runtime);
        if !idle && status != 0 {
            // The device may still write what the notes hold: it is never freed.
            std::mem::forget(rest);
        }
    }
}

#[derive(Debug)]
struct EventInner {
    device: Arc<Device>,
    handle: EventHandle,
}

impl Drop for EventInner {
    fn drop(&mut self) {
        self.device.set_context();
        destroy_event(&self.device.runtime, self.handle);
    }
}

/// A point in a stream's work. Clones are the same point.
#[derive(Clone, Debug)]
pub struct Event(Arc<EventInner>);

impl Event {
    /// True if everything before it is done.
    ///
    /// # Errors
    /// The device's first error, or what the call is refused with.
    pub fn is_done(&self) -> Result<bool> {
        let device = &self.0.device;
        device.enter()?;
        query(&device.runtime, self.0.handle)
            .map_err(|status| device.check("aclrtQueryEventStatus", status).unwrap_err())
    }

    /// Waits until everything before it is done; at most `limit`, or the settings' limit.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the launches that are not done, else as [`Event::is_done`].
    pub fn wait(&self, limit: Option<Duration>) -> Result<()> {
        let limit = limit.unwrap_or(self.0.device.runtime.settings.limit);
        let start = Instant::now();
        // Short work is met by asking again at once; long work costs a question each tenth of a millisecond.
        while !self.is_done()? {
            let waited = start.elapsed();
            if waited >= limit {
                return Err(self.0.device.timed_out(limit));
            }
            if waited > Duration::from_micros(50) {
                std::thread::sleep(Duration::from_micros(100));
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

/// A copy between host and device under way. Owns the host's bytes until it is done.
#[derive(Debug)]
pub struct Pending {
    event: Event,
    memory: PinnedMemory,
}

impl Pending {
    /// True if the copy is done.
    ///
    /// # Errors
    /// As [`Event::is_done`].
    pub fn is_done(&self) -> Result<bool> {
        self.event.is_done()
    }

    /// The bytes, once the copy is done.
    ///
    /// # Errors
    /// As [`Event::wait`]; the bytes are then lost, since the device may still use them.
    pub fn wait(self, limit: Option<Duration>) -> Result<PinnedMemory> {
        self.event.wait(limit)?;
        Ok(self.memory)
    }
}

/// Attributes of a launch whose blocks must run concurrently.
pub(super) fn together() -> types::LaunchAttribute {
    types::LaunchAttribute { kind: types::LAUNCH_SCHEDULE, value: [1, 0, 0, 0] }
}
