//! A device's context, memory, streams, events and kernels.

use super::error::{Error, Result};
use super::table::{Address, Driver, Handle};
use headwater_launch::Site;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of memory in bytes: what the driver gives at least.
pub const ALIGN: usize = 256;
/// Launches that an error lists where it is not known which failed.
const NEAR: usize = 3;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;

/// Settings of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Waits for each launch, so that an error names the kernel; nothing is recorded.
    pub blocking: bool,
    /// Fills fresh memory with bytes that are NaN.
    pub poison: bool,
}

impl Settings {
    /// From `HEADWATER_CUDA_BLOCKING` and `HEADWATER_CUDA_POISON`.
    pub fn from_env() -> Settings {
        let on = |name| std::env::var(name).is_ok_and(|v| !v.is_empty() && v != "0");
        Settings { blocking: on("HEADWATER_CUDA_BLOCKING"), poison: on("HEADWATER_CUDA_POISON") }
    }
}

/// The primary context of a device.
#[derive(Debug)]
pub struct Context {
    driver: Arc<Driver>,
    handle: Handle,
    ordinal: i32,
    settings: Settings,
    failure: Mutex<Option<Error>>,
    /// The last launches that were given.
    near: Mutex<VecDeque<Arc<Site>>>,
}

// SAFETY: the driver's contexts are used by any thread that makes them current, which every call here does.
unsafe impl Send for Context {}
// SAFETY: as above; the driver orders calls of several threads.
unsafe impl Sync for Context {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver's words for a result.
fn words(driver: &Driver, code: i32) -> String {
    let say = |f: unsafe extern "C" fn(c_int, *mut *const std::ffi::c_char) -> c_int| {
        let mut text = std::ptr::null();
        // SAFETY: the driver writes a pointer to a string of its own, or null.
        let known = unsafe { f(code, &mut text) } == 0 && !text.is_null();
        // SAFETY: such a string ends with a zero and is never freed.
        known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    match (say(driver.error_name), say(driver.error_string)) {
        (Some(name), Some(text)) => format!("{name}, {text}"),
        (name, text) => name.or(text).unwrap_or_else(|| "an unknown error".into()),
    }
}

fn checked(driver: &Driver, call: &'static str, code: i32) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(Error::Call { call, code, text: words(driver, code), site: None, near: Vec::new() }),
    }
}

/// Devices that the driver knows.
///
/// # Errors
/// Failures of the driver, such as one that has no device.
pub fn count(driver: &Driver) -> Result<i32> {
    let mut count = 0;
    // SAFETY: initialises the driver; it may be called again.
    checked(driver, "cuInit", unsafe { (driver.init)(0) })?;
    // SAFETY: writes one number.
    checked(driver, "cuDeviceGetCount", unsafe { (driver.device_count)(&mut count) })?;
    Ok(count)
}

impl Context {
    /// The context of device `ordinal`.
    ///
    /// # Errors
    /// A device that is not there; failures of the driver.
    pub fn open(driver: &Arc<Driver>, ordinal: i32, settings: Settings) -> Result<Arc<Context>> {
        let devices = count(driver)?;
        if ordinal < 0 || ordinal >= devices {
            let text = format!("cuda:{ordinal}: the driver knows {devices} devices, numbered from 0");
            return Err(Error::Usage(text));
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes a handle, which is released when the context is dropped.
        let code = unsafe { (driver.context_retain)(&mut handle, ordinal) };
        checked(driver, "cuDevicePrimaryCtxRetain", code)?;
        let (failure, near) = (Mutex::default(), Mutex::default());
        Ok(Arc::new(Context { driver: driver.clone(), handle, ordinal, settings, failure, near }))
    }

    /// Its settings.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// The driver's functions.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Number of the device.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Makes the context current for this thread.
    ///
    /// # Errors
    /// The failure that the context had.
    pub fn enter(&self) -> Result<()> {
        if let Some(error) = &*lock(&self.failure) {
            return Err(error.clone());
        }
        // SAFETY: the handle is the context's own.
        self.check("cuCtxSetCurrent", unsafe { (self.driver.context_set)(self.handle) })
    }

    /// The error of a call, kept if the context does nothing more.
    ///
    /// # Errors
    /// If the result is not 0.
    pub fn check(&self, call: &'static str, code: i32) -> Result<()> {
        self.check_at(call, code, None)
    }

    fn check_at(&self, call: &'static str, code: i32, site: Option<Arc<Site>>) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut error = Error::Call { call, code, text: words(&self.driver, code), site, near: Vec::new() };
        if error.is_sticky() {
            if let Error::Call { near, site: None, .. } = &mut error {
                near.extend(lock(&self.near).iter().cloned());
            }
            return Err(lock(&self.failure).get_or_insert(error).clone());
        }
        Err(error)
    }

    /// An attribute of the device.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn attribute(&self, attribute: i32) -> Result<i32> {
        let mut value = 0;
        // SAFETY: writes one number.
        let code = unsafe { (self.driver.device_attribute)(&mut value, attribute, self.ordinal) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// Name of the device.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn device_name(&self) -> Result<String> {
        let mut name = [0u8; 128];
        // SAFETY: writes at most so many bytes, the last of them a zero.
        let code = unsafe { (self.driver.device_name)(name.as_mut_ptr().cast(), 128, self.ordinal) };
        self.check("cuDeviceGetName", code)?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(0);
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    /// Compute capability, as 90 for 9.0.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn capability(&self) -> Result<i32> {
        Ok(10 * self.attribute(75)? + self.attribute(76)?)
    }

    /// Free and total bytes.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        self.check("cuMemGetInfo", unsafe { (self.driver.memory_info)(&mut free, &mut total) })?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once when it was opened.
        unsafe { (self.driver.context_release)(self.ordinal) };
    }
}

#[derive(Debug)]
struct Allocation {
    context: Arc<Context>,
    address: Address,
    bytes: usize,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: allocated by this context, freed once; the driver waits for work that uses it.
            unsafe { (self.context.driver.free)(self.address) };
        }
    }
}

/// Memory of the device; clones share it.
#[derive(Clone, Debug)]
pub struct DeviceMemory(Arc<Allocation>);

impl DeviceMemory {
    /// Memory of unknown content. It is a byte larger than requested, so that each has an address.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn alloc(context: &Arc<Context>, bytes: usize) -> Result<DeviceMemory> {
        context.enter()?;
        let mut address = 0;
        // SAFETY: writes an address.
        let code = unsafe { (context.driver.alloc)(&mut address, bytes.max(1)) };
        let failed = |e| match e {
            Error::Call { call, code: 2, .. } => {
                let free = context.memory().map_or(0, |m| m.0);
                let text = format!(
                    "{call}: no memory for {bytes} bytes on cuda:{}, {free} are free",
                    context.ordinal
                );
                Error::Usage(text)
            }
            other => other,
        };
        context.check("cuMemAlloc", code).map_err(failed)?;
        Ok(DeviceMemory(Arc::new(Allocation { context: context.clone(), address, bytes })))
    }

    /// Its first address.
    pub fn address(&self) -> Address {
        self.0.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// Refuses a range that leaves it.
    ///
    /// # Errors
    /// [`Error::Usage`]
    pub fn check(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.0.bytes => Ok(()),
            _ => {
                let all = self.0.bytes;
                Err(Error::Usage(format!("bytes {offset} to {offset}+{bytes} of a buffer of {all} bytes")))
            }
        }
    }
}

/// Host memory that the device copies from and to while the host goes on.
#[derive(Debug)]
pub struct PinnedMemory {
    context: Arc<Context>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: owned memory.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// So many bytes, at least one.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn alloc(context: &Arc<Context>, bytes: usize) -> Result<PinnedMemory> {
        context.enter()?;
        let (mut start, bytes) = (std::ptr::null_mut(), bytes.max(1));
        // SAFETY: writes a pointer to so many bytes.
        let code = unsafe { (context.driver.alloc_host)(&mut start, bytes) };
        context.check("cuMemAllocHost", code)?;
        // SAFETY: the memory is ours; it is initialised here.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(PinnedMemory { context: context.clone(), start: start.cast(), bytes })
    }
}

impl Deref for PinnedMemory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: owned, initialised memory; nobody reads it while a copy writes it, for a copy owns it.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl DerefMut for PinnedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: allocated by the driver, freed once.
            unsafe { (self.context.driver.free_host)(self.start.cast()) };
        }
    }
}

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
        match unsafe { (self.context.driver.event_query)(self.handle) } {
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
            .check("cuEventSynchronize", unsafe { (self.context.driver.event_synchronize)(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created once, destroyed once.
            unsafe { (self.context.driver.event_destroy)(self.handle) };
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
        let code = unsafe { (context.driver.module_load)(&mut module, binary.as_ptr().cast()) };
        context.check_at("cuModuleLoadData", code, site.clone())?;
        let mut function = Function { context: context.clone(), module, handle: std::ptr::null_mut() };
        let symbol = CString::new(name).map_err(|_| Error::Usage(format!("`{name}` is no symbol")))?;
        // SAFETY: the module is alive, the name ends with a zero.
        let code = unsafe { (context.driver.module_function)(&mut function.handle, module, symbol.as_ptr()) };
        context.check_at("cuModuleGetFunction", code, site)?;
        Ok(function)
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: loaded once, unloaded once.
            unsafe { (self.context.driver.module_unload)(self.module) };
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
        context.check("cuStreamCreate", unsafe { (context.driver.stream_create)(&mut handle, 1) })?;
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
            (self.context.driver.launch)(
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
        if self.context.settings.blocking {
            // SAFETY: the stream is alive.
            let code = unsafe { (self.context.driver.stream_synchronize)(self.handle) };
            return self.context.check_at("cuStreamSynchronize", code, Some(site.clone()));
        }
        let mut near = lock(&self.context.near);
        near.push_back(site.clone());
        while near.len() > NEAR {
            near.pop_front();
        }
        Ok(())
    }

    /// Copies pinned memory to the device. The memory is the caller's until the event has come.
    ///
    /// # Errors
    /// A range that leaves the memory; failures of the driver.
    pub fn write(&self, to: &DeviceMemory, offset: usize, from: &PinnedMemory, bytes: usize) -> Result<()> {
        to.check(offset, bytes)?;
        self.context.enter()?;
        let (source, at) = (from.start, to.address() + offset as u64);
        debug_assert!(bytes <= from.bytes);
        // SAFETY: both ranges are inside; the caller keeps the pinned memory until the copy is done.
        let code = unsafe { (self.context.driver.to_device)(at, source.cast(), bytes, self.handle) };
        self.context.check("cuMemcpyHtoDAsync", code)
    }

    /// Copies to pinned memory, which is the caller's until the event has come.
    ///
    /// # Errors
    /// A range that leaves the memory; failures of the driver.
    pub fn read(
        &self,
        from: &DeviceMemory,
        offset: usize,
        to: &mut PinnedMemory,
        bytes: usize,
    ) -> Result<()> {
        from.check(offset, bytes)?;
        self.context.enter()?;
        debug_assert!(bytes <= to.bytes);
        // SAFETY: both ranges are inside; the caller keeps the pinned memory until the copy is done.
        let code = unsafe {
            (self.context.driver.to_host)(to.start.cast(), from.address() + offset as u64, bytes, self.handle)
        };
        self.context.check("cuMemcpyDtoHAsync", code)
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
            (self.context.driver.copy)(target, source, bytes, self.handle)
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
            unsafe { (self.context.driver.fill)(to.address() + offset as u64, value, bytes, self.handle) };
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
        self.context.check("cuEventCreate", unsafe { (self.context.driver.event_create)(&mut handle, 2) })?;
        let event = Event { context: self.context.clone(), handle };
        // SAFETY: both are alive.
        let code = unsafe { (self.context.driver.event_record)(handle, self.handle) };
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
        let code = unsafe { (self.context.driver.stream_wait)(self.handle, event.handle, 0) };
        self.context.check("cuStreamWaitEvent", code)
    }

    /// Waits for all work so far.
    ///
    /// # Errors
    /// The failure of that work.
    pub fn synchronize(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream is alive.
        let code = unsafe { (self.context.driver.stream_synchronize)(self.handle) };
        self.context.check("cuStreamSynchronize", code)?;
        lock(&self.context.near).clear();
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created once, destroyed once; the driver finishes its work.
            unsafe { (self.context.driver.stream_destroy)(self.handle) };
        }
    }
}
