//! The opened library of a process: initialised once, finalised when the last user is dropped, and counts of
//! its objects that we own.
#![allow(unsafe_code)]

use super::acl::{Acl, LaunchRung, LoadRung};
use super::codes::{self, Status};
use super::error::{Error, Result};
use super::exception::Collector;
use crate::chip::Arch;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Settings of the host side.
#[derive(Clone, PartialEq, Debug)]
pub struct RuntimeSettings {
    /// True if every launch is waited for, so that an error names its own kernel.
    pub blocking: bool,
    /// True if launches that come again are recorded and replayed, where the library can.
    pub graphs: bool,
    /// The way to launch; the newest available if `None`.
    pub rung: Option<LaunchRung>,
    /// The longest that any wait lasts.
    pub limit: Duration,
    /// The longest that the device lets one kernel run; CANN's own limit (547 s on 310P, 1091 s on A2) if
    /// `None`.
    pub kernel_limit: Option<Duration>,
}

impl Default for RuntimeSettings {
    fn default() -> RuntimeSettings {
        RuntimeSettings {
            blocking: false,
            graphs: true,
            rung: None,
            limit: Duration::from_secs(600),
            kernel_limit: None,
        }
    }
}

impl RuntimeSettings {
    /// The defaults, changed by `HEADWATER_ASCEND_BLOCKING` (`1`), `HEADWATER_ASCEND_GRAPHS` (`0`),
    /// `HEADWATER_ASCEND_LAUNCH` (the name of the launching function) and `HEADWATER_ASCEND_TIMEOUT`
    /// (seconds).
    ///
    /// # Errors
    /// [`Error::Usage`] for a value that makes no sense.
    pub fn from_env() -> Result<RuntimeSettings> {
        let mut settings = RuntimeSettings::default();
        let get = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        settings.blocking = get("HEADWATER_ASCEND_BLOCKING").is_some_and(|v| v != "0");
        settings.graphs = get("HEADWATER_ASCEND_GRAPHS").is_none_or(|v| v != "0");
        if let Some(name) = get("HEADWATER_ASCEND_LAUNCH") {
            let rung = LaunchRung::ALL.into_iter().find(|r| r.function() == name);
            settings.rung = Some(rung.ok_or_else(|| {
                let names: Vec<_> = LaunchRung::ALL.iter().map(|r| r.function()).collect();
                Error::Usage(format!("HEADWATER_ASCEND_LAUNCH is `{name}`; it can be {}", names.join(", ")))
            })?);
        }
        if let Some(seconds) = get("HEADWATER_ASCEND_TIMEOUT") {
            let limit = seconds.parse().ok().filter(|&s| (1..=86_400).contains(&s));
            settings.limit = Duration::from_secs(limit.ok_or_else(|| {
                Error::Usage(format!("HEADWATER_ASCEND_TIMEOUT is `{seconds}`; it can be 1 to 86400 seconds"))
            })?);
        }
        Ok(settings)
    }
}

/// Handles that the library holds for us now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LiveCounts {
    /// Allocations in device memory.
    pub device_allocations: usize,
    /// Their bytes, as requested.
    pub device_bytes: usize,
    /// Allocations in pinned host memory.
    pub host_allocations: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Loaded binaries.
    pub binaries: usize,
    /// Recordings.
    pub graphs: usize,
    /// Operands and options of the vendor's operators.
    pub operands: usize,
    /// Prepared calls of them.
    pub executors: usize,
    /// Devices that are open.
    pub devices: usize,
    /// Releases that failed: the function and what it returned.
    pub failed_releases: Vec<(&'static str, Status)>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub device_allocations: AtomicUsize,
    pub device_bytes: AtomicUsize,
    pub host_allocations: AtomicUsize,
    pub streams: AtomicUsize,
    pub events: AtomicUsize,
    pub binaries: AtomicUsize,
    pub graphs: AtomicUsize,
    pub operands: AtomicUsize,
    pub executors: AtomicUsize,
    pub devices: AtomicUsize,
    failed_releases: Mutex<Vec<(&'static str, Status)>>,
}

/// CANN's libraries, opened and initialised.
#[derive(Debug)]
pub struct Runtime {
    pub(super) acl: Acl,
    pub(super) settings: RuntimeSettings,
    pub(super) exceptions: Option<Collector>,
    pub(super) counts: Counts,
    launch: LaunchRung,
    finalise: bool,
}

/// Runtimes that are open, so that one library is initialised once.
static OPEN: Mutex<Vec<(PathBuf, Weak<Runtime>)>> = Mutex::new(Vec::new());

impl Runtime {
    /// Opens and initialises `libascendcl.so` at `acl`, and `libruntime.so` at `runtime` for what ACL lacks.
    /// A library that this process has open already is shared, with the settings it was opened with.
    ///
    /// # Errors
    /// [`Error::Library`] or [`Error::Symbol`] if the installation is incomplete, [`Error::Call`] if it does
    /// not initialise, [`Error::Usage`] if the settings request a way to launch that does not exist.
    pub fn open(acl: &Path, runtime: Option<&Path>, settings: RuntimeSettings) -> Result<Arc<Runtime>> {
        let key = std::fs::canonicalize(acl).unwrap_or_else(|_| acl.to_owned());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, weak)| weak.strong_count() > 0);
        if let Some(shared) = open.iter().find(|(path, _)| *path == key).and_then(|(_, weak)| weak.upgrade())
        {
            return Ok(shared);
        }
        let acl = Acl::open(acl, runtime)?;
        let rungs = acl.launch_rungs();
        let launch = match settings.rung {
            Some(rung) if rungs.contains(&rung) => rung,
            Some(rung) => {
                return Err(Error::Usage(format!("{} is not in {}", rung.function(), acl.path.display())));
            }
            None => {
                *rungs.first().ok_or_else(|| Error::symbol(&acl.path, LaunchRung::DeviceArgs.function()))?
            }
        };
        // SAFETY: no configuration file; the function may be called more than once.
        let status = unsafe { (acl.base.aclInit)(std::ptr::null()) };
        if status != 0 && status != codes::REPEAT_INITIALIZE {
            let (device, detail) = (acl.path.display().to_string(), acl.recent_message());
            return Err(Error::Call { call: "aclInit", device, status, detail });
        }
        let exceptions = acl.exceptions.and_then(Collector::start);
        // Who initialised first finalises: another user of the library in this process may still need it.
        let finalise = status == 0;
        let shared =
            Arc::new(Runtime { acl, settings, exceptions, counts: Counts::default(), launch, finalise });
        open.push((key, Arc::downgrade(&shared)));
        Ok(shared)
    }

    /// Number of devices.
    ///
    /// # Errors
    /// [`Error::Call`] if the driver does not answer.
    pub fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: writes one number.
        let status = unsafe { (self.acl.base.aclrtGetDeviceCount)(&mut count) };
        self.check("aclrtGetDeviceCount", status)?;
        Ok(count)
    }

    /// The way kernels are launched.
    pub fn launch_rung(&self) -> LaunchRung {
        self.launch
    }

    /// Available ways to launch, newest first.
    pub fn launch_rungs(&self) -> Vec<LaunchRung> {
        self.acl.launch_rungs()
    }

    /// The way binaries are loaded for a generation of chips. Launching and loading must match: argument
    /// lists on 310P are documented with files alone, arguments in device memory with described binaries.
    pub fn load_rungs(&self, arch: Arch) -> Vec<LoadRung> {
        let there = self.acl.load_rungs();
        let wanted: &[LoadRung] = match (self.launch, arch) {
            (LaunchRung::Runtime, _) => &[LoadRung::Runtime],
            (LaunchRung::DeviceArgs, _) => &[LoadRung::Described, LoadRung::FromFile, LoadRung::FromData],
            (_, Arch::P310) => &[LoadRung::FromFile, LoadRung::FromData, LoadRung::Described],
            (_, Arch::A2) => &[LoadRung::FromData, LoadRung::FromFile, LoadRung::Described],
        };
        wanted.iter().copied().filter(|rung| there.contains(rung)).collect()
    }

    /// Version of an installed package (`runtime`, `driver`, …) as the library states it; `None` before 9.0.
    pub fn version(&self, package: &str) -> Option<String> {
        let f = self.acl.versions?;
        let package = CString::new(package).ok()?;
        let mut text = [0 as std::ffi::c_char; super::acl::types::VERSION_BYTES];
        // SAFETY: the name ends with 0, and the buffer has the size that the reference demands.
        let status = unsafe { (f.aclsysGetVersionStr)(package.as_ptr(), text.as_mut_ptr()) };
        *text.last_mut()? = 0;
        // SAFETY: the last byte was just made 0, so the string ends inside of the buffer.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        (status == 0 && !text.is_empty()).then_some(text)
    }

    /// Handles that the library holds for us now.
    pub fn live(&self) -> LiveCounts {
        let get = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        let c = &self.counts;
        LiveCounts {
            device_allocations: get(&c.device_allocations),
            device_bytes: get(&c.device_bytes),
            host_allocations: get(&c.host_allocations),
            streams: get(&c.streams),
            events: get(&c.events),
            binaries: get(&c.binaries),
            graphs: get(&c.graphs),
            operands: get(&c.operands),
            executors: get(&c.executors),
            devices: get(&c.devices),
            failed_releases: c.failed_releases.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// A call that belongs to no device.
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<()> {
        match status {
            0 => Ok(()),
            _ => Err(Error::Call {
                call,
                device: self.acl.path.display().to_string(),
                status,
                detail: self.acl.recent_message(),
            }),
        }
    }

    /// A release: nothing can be done if it fails, so it is noted.
    pub(super) fn released(&self, call: &'static str, status: Status, count: &AtomicUsize) {
        count.fetch_sub(1, Ordering::SeqCst);
        if status != 0 {
            let mut failed = self.counts.failed_releases.lock().unwrap_or_else(PoisonError::into_inner);
            failed.push((call, status));
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.exceptions = None;
        if self.finalise {
            // SAFETY: every object that uses the library holds this value, so none is left.
            unsafe { (self.acl.base.aclFinalize)() };
        }
    }
}
