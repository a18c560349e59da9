//! A device's context: what other objects of the driver belong to.

use super::error::{Error, Result};
use super::table::{Driver, Handle};
use headwater_launch::Site;
use std::collections::VecDeque;
use std::ffi::{CStr, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of memory in bytes: what the driver gives at least.
pub const ALIGN: usize = 256;
/// Launches that an error lists where it is not known which failed.
const NEAR: usize = 3;

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
    /// A device that does not exist; failures of the driver.
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

    pub(super) fn check_at(&self, call: &'static str, code: i32, site: Option<Arc<Site>>) -> Result<()> {
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

    /// Notes a launch, as one of those that an error may be of.
    pub(super) fn note(&self, site: &Arc<Site>) {
        let mut near = lock(&self.near);
        near.push_back(site.clone());
        while near.len() > NEAR {
            near.pop_front();
        }
    }

    /// Forgets launches that are known to be done.
    pub(super) fn forget(&self) {
        lock(&self.near).clear();
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
