//! Streams, events, kernels, and copies between host and device.

use super::context::Context;
use super::error::{Error, Result};
use super::memory::{DeviceMemory, PinnedMemory};
use super::table::{Address, Handle};
use headwater_launch::Site;
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

impl Event {
    /// True if the work before it is done.
    ///
    /// # Errors
    /// The failure of that work.
    pub fn is_done(&self) -> Result<bool> {
        self.context.enter()?;
        // SAFETY: the event is alive.
        match unsafe { (self.context.driver().event_query)(self.handle) } {
            NOT_READY => Ok(false),
            code => self.context.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits for the work before it.
    ///
    /// # Errors
    /// The failure of that work.
    pub fn wait(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the event is alive.
        self.context
            .check("cuEventSynchronize", unsafe { (self.context.driver().event_synchronize)(self.handle) })
    }
}

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

impl Pending {
    /// True if the copy is done.
    ///
    /// # Errors
    /// As [`Event::is_done`].
    pub fn is_done(&self) -> Result<bool> {
        self.event.is_done()
    }

    /// The pinned memory, once the copy is done.
    ///
    /// # Errors
    /// As [`Event::wait`].
    pub fn wait(mut self) -> Result<PinnedMemory> {
        self.event.wait()?;
        let taken = || Error::Usage("a copy was waited for twice".into());
        self.memory.take().ok_or_else(taken)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The memory of a copy that nobody knows to be done is lost: the device may still use it.
        if self.memory.is_some() && self.event.wait().is_err() {
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

    /// Copies the first `bytes` bytes of pinned memory to byte `offset` of device memory, in order with the
    /// stream.
    ///
    /// # Errors
    /// A range that leaves a memory; failures of the driver.
    pub fn write(
        &self,
        to: &DeviceMemory,
        offset: usize,
        from: PinnedMemory,
        bytes: usize,
    ) -> Result<Pending> {
        let at = self.range(to, offset, &from, bytes)?;
        // SAFETY: both ranges are inside; `Pending` owns the pinned memory until the copy is done.
        let code = unsafe { (self.context.driver().to_device)(at, from.start.cast(), bytes, self.handle) };
        self.context.check("cuMemcpyHtoDAsync", code)?;
        self.pending(from)
    }

    /// Copies from byte `offset` of device memory to the first `bytes` bytes of pinned memory, in order with the
    /// stream.
    ///
    /// # Errors
    /// A range that leaves a memory; failures of the driver.
    pub fn read(
        &self,
        from: &DeviceMemory,
        offset: usize,
        to: PinnedMemory,
        bytes: usize,
    ) -> Result<Pending> {
        let at = self.range(from, offset, &to, bytes)?;
        // SAFETY: both ranges are inside; `Pending` owns the pinned memory until the copy is done.
        let code = unsafe { (self.context.driver().to_host)(to.start.cast(), at, bytes, self.handle) };
        self.context.check("cuMemcpyDtoHAsync", code)?;
        self.pending(to)
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

    fn pending(&self, memory: PinnedMemory) -> Result<Pending> {
        match self.record() {
            Ok(event) => Ok(Pending { event, memory: Some(memory) }),
            Err(error) => {
                // Without an event nothing says when the copy is done.
                if self.synchronize().is_err() {
                    std::mem::forget(memory);
                }
                Err(error)
            }
        }
    }

    /// Copies on the device.
    ///
    /// # Errors
    /// Ranges that leave their memory; failures of the driver.
    pub fn copy(&self, from: (&DeviceMemory, usize), to: (&DeviceMemory, usize), bytes: usize) -> Result<()> {
        from.0.check(from.1, bytes)?;
        to.0.check(to.1, bytes)?;
        self.context.enter()?;
        let (source, target) = (from.0.address() + from.1 as u64, to.0.address() + to.1 as u64);
        // SAFETY: both ranges are inside.
        self.context.check("cuMemcpyDtoDAsync", unsafe {
            (self.context.driver().copy)(target, source, bytes, self.handle)
        })
    }

    /// Sets bytes.
    ///
    /// # Errors
    /// A range that leaves the memory; failures of the driver.
    pub fn fill(&self, to: &DeviceMemory, offset: usize, bytes: usize, value: u8) -> Result<()> {
        to.check(offset, bytes)?;
        self.context.enter()?;
        // SAFETY: the range is inside.
        let code =
            unsafe { (self.context.driver().fill)(to.address() + offset as u64, value, bytes, self.handle) };
        self.context.check("cuMemsetD8Async", code)
    }

    /// An event after all work so far.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn record(&self) -> Result<Event> {
        self.context.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes a handle. 2: without timing.
        let code = unsafe { (self.context.driver().event_create)(&mut handle, 2) };
        self.context.check("cuEventCreate", code)?;
        let event = Event { context: self.context.clone(), handle };
        // SAFETY: both are alive.
        let code = unsafe { (self.context.driver().event_record)(handle, self.handle) };
        self.context.check("cuEventRecord", code)?;
        Ok(event)
    }

    /// Holds later work until an event has come.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.context.enter()?;
        // SAFETY: both are alive.
        let code = unsafe { (self.context.driver().stream_wait)(self.handle, event.handle, 0) };
        self.context.check("cuStreamWaitEvent", code)
    }

    /// Waits for all work so far.
    ///
    /// # Errors
    /// The failure of that work.
    pub fn synchronize(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream is alive.
        let code = unsafe { (self.context.driver().stream_synchronize)(self.handle) };
        self.context.check("cuStreamSynchronize", code)?;
        self.context.forget();
        Ok(())
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
