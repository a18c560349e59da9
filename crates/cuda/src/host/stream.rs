//! Streams, events, kernels, and copies between host and device.

use super::context::Context;
use super::error::{Error, Result};
use super::memory::{DeviceMemory, PinnedMemory};
use super::table::{Address, Handle};
use headwater_core as core;
use headwater_launch::{Host, Site};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;

/// An event after work of a stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: handles of the driver belong to no thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created once, destroyed once.
            unsafe { (self.context.driver().event_destroy)(self.handle) };
        }
    }
}

/// A copy between host and device under way. It owns the host's memory until it is done: dropped, it waits.
#[derive(Debug)]
pub struct Pending {
    event: Event,
    memory: Option<PinnedMemory>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The memory of a copy that nobody knows to be done is lost: the device may still use it.
        if self.memory.is_some() && Context::finish(&self.event).is_err() {
            std::mem::forget(self.memory.take());
        }
    }
}

/// A kernel of a loaded module.
#[derive(Debug)]
pub struct Function {
    context: Arc<Context>,
    module: Handle,
    handle: Handle,
}

// SAFETY: handles of the driver belong to no thread.
unsafe impl Send for Function {}

impl Function {
    /// The kernel of a binary.
    ///
    /// # Errors
    /// A binary that the driver does not take, or that lacks the kernel.
    pub fn load(context: &Arc<Context>, binary: &[u8], name: &str) -> Result<Function> {
        context.enter()?;
        let mut module = std::ptr::null_mut();
        let site = Some(Site::of_kernel(name));
        // SAFETY: the binary states its own size; the driver copies it.
        let code = unsafe { (context.driver().module_load)(&mut module, binary.as_ptr().cast()) };
        context.check_at("cuModuleLoadData", code, site.clone())?;
        let mut function = Function { context: context.clone(), module, handle: std::ptr::null_mut() };
        let symbol = CString::new(name).map_err(|_| Error::Usage(format!("`{name}` is no symbol")))?;
        // SAFETY: the module is alive, the name ends with a zero.
        let code =
            unsafe { (context.driver().module_function)(&mut function.handle, module, symbol.as_ptr()) };
        context.check_at("cuModuleGetFunction", code, site)?;
        Ok(function)
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: loaded once, unloaded once.
            unsafe { (self.context.driver().module_unload)(self.module) };
        }
    }
}

/// A queue of work.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: handles of the driver belong to no thread.
unsafe impl Send for Stream {}
// SAFETY: the driver orders calls of several threads.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new one, which does not wait for the default stream.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn new(context: &Arc<Context>) -> Result<Stream> {
        context.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes a handle. 1: it is not ordered with the default stream.
        context.check("cuStreamCreate", unsafe { (context.driver().stream_create)(&mut handle, 1) })?;
        Ok(Stream { context: context.clone(), handle })
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its handle.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Launches a kernel with a struct of pointers.
    ///
    /// # Errors
    /// Refusals of the driver; with blocking on, the failure of the kernel.
    pub fn launch(
        &self,
        function: &Function,
        (blocks, threads, shared): (u32, u32, u32),
        pointers: &mut Vec<Address>,
        site: &Arc<Site>,
    ) -> Result<()> {
        self.context.enter()?;
        if pointers.is_empty() {
            pointers.push(0);
        }
        let mut params: [*mut c_void; 1] = [pointers.as_mut_ptr().cast()];
        // SAFETY: the kernel has one parameter, a struct of as many pointers; the driver copies it.
        let code = unsafe {
            (self.context.driver().launch)(
                function.handle,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                shared,
                self.handle,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.launched("cuLaunchKernel", code, site)
    }

    /// Notes a launch, and waits for it with `HEADWATER_CUDA_BLOCKING=1`.
    pub(super) fn launched(&self, call: &'static str, code: i32, site: &Arc<Site>) -> Result<()> {
        self.context.check_at(call, code, Some(site.clone()))?;
        if self.context.settings().blocking {
            // SAFETY: the stream is alive.
            let code = unsafe { (self.context.driver().stream_synchronize)(self.handle) };
            return self.context.check_at("cuStreamSynchronize", code, Some(site.clone()));
        }
        self.context.note(site);
        Ok(())
    }

    /// The address of a range of device memory that pinned memory has bytes for.
    fn range(&self, of: &DeviceMemory, offset: usize, host: &PinnedMemory, bytes: usize) -> Result<Address> {
        of.check(offset, bytes)?;
        if bytes > host.len() {
            return Err(Error::Usage(format!("{bytes} bytes of {} in pinned memory", host.len())));
        }
        self.context.enter()?;
        Ok(of.address() + offset as u64)
    }

    fn pending(&self, memory: PinnedMemory) -> core::Result<Pending> {
        match Context::record(self) {
            Ok(event) => Ok(Pending { event, memory: Some(memory) }),
            Err(error) => {
                // Without an event nothing says when the copy is done.
                if Context::synchronize(self).is_err() {
                    std::mem::forget(memory);
                }
                Err(error)
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created once, destroyed once; the driver finishes its work.
            unsafe { (self.context.driver().stream_destroy)(self.handle) };
        }
    }
}

impl Host for Context {
    type Memory = DeviceMemory;
    type Pinned = PinnedMemory;
    type Stream = Stream;
    type Event = Event;
    type Pending = Pending;

    fn name(&self) -> String {
        format!("cuda:{}", self.ordinal())
    }

    fn owner(memory: &DeviceMemory) -> &Arc<Context> {
        memory.context()
    }

    fn bytes(memory: &DeviceMemory) -> usize {
        memory.bytes()
    }

    fn check(memory: &DeviceMemory, offset: usize, bytes: usize) -> core::Result<()> {
        Ok(memory.check(offset, bytes)?)
    }

    fn open_stream(self: &Arc<Self>) -> core::Result<Stream> {
        Ok(Stream::new(self)?)
    }

    fn pin(self: &Arc<Self>, bytes: usize) -> core::Result<PinnedMemory> {
        Ok(PinnedMemory::alloc(self, bytes)?)
    }

    fn upload(
        stream: &Stream,
        to: &DeviceMemory,
        offset: usize,
        from: PinnedMemory,
        bytes: usize,
    ) -> core::Result<Pending> {
        let at = stream.range(to, offset, &from, bytes)?;
        // SAFETY: both ranges are inside; `Pending` owns the pinned memory until the copy is done.
        let code =
            unsafe { (stream.context.driver().to_device)(at, from.start.cast(), bytes, stream.handle) };
        stream.context.check("cuMemcpyHtoDAsync", code)?;
        stream.pending(from)
    }

    fn download(
        stream: &Stream,
        from: &DeviceMemory,
        offset: usize,
        to: PinnedMemory,
        bytes: usize,
    ) -> core::Result<Pending> {
        let at = stream.range(from, offset, &to, bytes)?;
        // SAFETY: both ranges are inside; `Pending` owns the pinned memory until the copy is done.
        let code = unsafe { (stream.context.driver().to_host)(to.start.cast(), at, bytes, stream.handle) };
        stream.context.check("cuMemcpyDtoHAsync", code)?;
        stream.pending(to)
    }

    fn has_arrived(copy: &Pending) -> core::Result<bool> {
        Context::is_done(&copy.event)
    }

    fn arrived(mut copy: Pending) -> core::Result<PinnedMemory> {
        Context::finish(&copy.event)?;
        let taken = || Error::Usage("a copy was waited for twice".into());
        Ok(copy.memory.take().ok_or_else(taken)?)
    }

    fn copy(
        stream: &Stream,
        from: (&DeviceMemory, usize),
        to: (&DeviceMemory, usize),
        bytes: usize,
    ) -> core::Result<()> {
        from.0.check(from.1, bytes)?;
        to.0.check(to.1, bytes)?;
        stream.context.enter()?;
        let (source, target) = (from.0.address() + from.1 as u64, to.0.address() + to.1 as u64);
        // SAFETY: both ranges are inside.
        let code = unsafe { (stream.context.driver().copy)(target, source, bytes, stream.handle) };
        Ok(stream.context.check("cuMemcpyDtoDAsync", code)?)
    }

    fn fill(stream: &Stream, to: &DeviceMemory, offset: usize, bytes: usize, value: u8) -> core::Result<()> {
        to.check(offset, bytes)?;
        stream.context.enter()?;
        let at = to.address() + offset as u64;
        // SAFETY: the range is inside.
        let code = unsafe { (stream.context.driver().fill)(at, value, bytes, stream.handle) };
        Ok(stream.context.check("cuMemsetD8Async", code)?)
    }

    fn record(stream: &Stream) -> core::Result<Event> {
        let context = &stream.context;
        context.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes a handle. 2: without timing.
        let code = unsafe { (context.driver().event_create)(&mut handle, 2) };
        context.check("cuEventCreate", code)?;
        let event = Event { context: context.clone(), handle };
        // SAFETY: both are alive.
        let code = unsafe { (context.driver().event_record)(handle, stream.handle) };
        context.check("cuEventRecord", code)?;
        Ok(event)
    }

    fn wait(stream: &Stream, event: &Event) -> core::Result<()> {
        stream.context.enter()?;
        // SAFETY: both are alive.
        let code = unsafe { (stream.context.driver().stream_wait)(stream.handle, event.handle, 0) };
        Ok(stream.context.check("cuStreamWaitEvent", code)?)
    }

    fn is_done(event: &Event) -> core::Result<bool> {
        event.context.enter()?;
        // SAFETY: the event is alive.
        match unsafe { (event.context.driver().event_query)(event.handle) } {
            NOT_READY => Ok(false),
            code => Ok(event.context.check("cuEventQuery", code).map(|()| true)?),
        }
    }

    fn finish(event: &Event) -> core::Result<()> {
        event.context.enter()?;
        // SAFETY: the event is alive.
        let code = unsafe { (event.context.driver().event_synchronize)(event.handle) };
        Ok(event.context.check("cuEventSynchronize", code)?)
    }

    fn synchronize(stream: &Stream) -> core::Result<()> {
        stream.context.enter()?;
        // SAFETY: the stream is alive.
        let code = unsafe { (stream.context.driver().stream_synchronize)(stream.handle) };
        stream.context.check("cuStreamSynchronize", code)?;
        stream.context.forget();
        Ok(())
    }
}
