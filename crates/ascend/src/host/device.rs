//! One device: its context, its health, and the launches that may be to blame when it fails.
#![allow(unsafe_code)]

use super::acl::types::{ContextHandle, device_attr, mem_attr};
use super::codes::{self, Severity, Status};
use super::error::{Error, Result, Site};
use super::log::Log;
use super::runtime::Runtime;
use crate::chip::{Arch, Chip};
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// Free and total bytes of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Free now.
    pub free: usize,
    /// Bytes of the device.
    pub total: usize,
}

/// A device of this machine, opened.
///
/// Work goes to the default context of the device, which other users in the process (such as torch_npu)
/// share.
#[derive(Debug)]
pub struct Device {
    pub(super) runtime: Arc<Runtime>,
    ordinal: u32,
    context: ContextHandle,
    soc: String,
    arch: Arch,
    first_error: OnceLock<Error>,
    /// Why launches are not recorded any more.
    unrecorded: OnceLock<String>,
    logs: Mutex<Vec<Weak<Mutex<Log>>>>,
}

impl Device {
    /// Opens device `ordinal`, counted from 0.
    ///
    /// # Errors
    /// [`Error::Call`] if there is no such device or it does not start, [`Error::Usage`] if the chip is not
    /// one that programs can be written for.
    pub fn open(runtime: &Arc<Runtime>, ordinal: u32) -> Result<Arc<Device>> {
        let f = &runtime.acl.base;
        let name = format!("ascend:{ordinal}");
        let check = |call, status| match status {
            0 => Ok(()),
            _ => {
                Err(Error::Call { call, device: name.clone(), status, detail: runtime.acl.recent_message() })
            }
        };
        let number =
            i32::try_from(ordinal).map_err(|_| Error::Usage(format!("there is no device {name}")))?;
        // SAFETY: takes a number.
        check("aclrtSetDevice", unsafe { (f.aclrtSetDevice)(number) })?;
        runtime.counts.devices.fetch_add(1, Ordering::SeqCst);
        // From here on the device must be released again, whatever fails.
        let mut device = Device {
            runtime: runtime.clone(),
            ordinal,
            context: ContextHandle::NULL,
            soc: String::new(),
            arch: Arch::A2,
            first_error: OnceLock::new(),
            unrecorded: OnceLock::new(),
            logs: Mutex::default(),
        };
        // SAFETY: writes one handle.
        check("aclrtGetCurrentContext", unsafe { (f.aclrtGetCurrentContext)(&mut device.context) })?;
        // SAFETY: gives null or a string that is good as long as the library.
        device.soc = unsafe {
            let text = (f.aclrtGetSocName)();
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        device.arch = arch_of(&device.soc).ok_or_else(|| {
            Error::Usage(format!(
                "{name} is a chip of the kind `{}`; kernels are written for Ascend910B*, Ascend910_93* and Ascend310P*",
                device.soc
            ))
        })?;
        if let (Some(f), Some(limit)) = (runtime.acl.time_limit, runtime.settings.kernel_limit) {
            let seconds = limit.as_secs().clamp(1, u64::from(u32::MAX)) as u32;
            // SAFETY: takes a number.
            check("aclrtSetOpExecuteTimeOut", unsafe { (f.aclrtSetOpExecuteTimeOut)(seconds) })?;
        }
        Ok(Arc::new(device))
    }

    /// The runtime it belongs to.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Its number.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Name as on the command line, e.g. `ascend:0`.
    pub fn name(&self) -> String {
        format!("ascend:{}", self.ordinal)
    }

    /// Name of the chip as the runtime gives it, e.g. `Ascend910B1`.
    pub fn soc(&self) -> &str {
        &self.soc
    }

    /// Generation of the chip.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// The chip, if it is one whose figures are known.
    pub fn chip(&self) -> Option<&'static Chip> {
        Chip::from_name(&self.soc)
    }

    /// Free and total memory.
    ///
    /// # Errors
    /// The device's first error, or what the call is refused with.
    pub fn memory(&self) -> Result<MemoryInfo> {
        self.enter()?;
        // 310P has DDR, the others HBM; where the first answer is empty the other kind is queried.
        let kinds = match self.arch {
            Arch::P310 => [mem_attr::DDR, mem_attr::HBM],
            Arch::A2 => [mem_attr::HBM, mem_attr::DDR],
        };
        let mut info = MemoryInfo { free: 0, total: 0 };
        for kind in kinds {
            // SAFETY: writes two numbers.
            let status =
                unsafe { (self.runtime.acl.base.aclrtGetMemInfo)(kind, &mut info.free, &mut info.total) };
            self.check("aclrtGetMemInfo", status)?;
            if info.total > 0 {
                break;
            }
        }
        Ok(info)
    }

    /// Vector cores and cube (or AI) cores, as the runtime counts them; `None` before CANN 8.3, where the
    /// chip's table has them.
    pub fn cores(&self) -> Option<(u32, u32)> {
        let f = self.runtime.acl.device_info?;
        let get = |attribute| {
            let mut value = 0i64;
            // SAFETY: writes one number.
            let status = unsafe { (f.aclrtGetDeviceInfo)(self.ordinal, attribute, &mut value) };
            (status == 0).then_some(value).and_then(|v| u32::try_from(v).ok())
        };
        Some((get(device_attr::VECTOR_CORES)?, get(device_attr::AI_CORES)?))
    }

    /// Address through which cube and vector cores synchronise: the first argument of kernels that need both.
    /// `None` where no library gives it, and on 310P, whose cores are one kind.
    ///
    /// # Errors
    /// The device's first error, or what the call is refused with.
    pub fn sync_address(&self) -> Result<Option<u64>> {
        self.enter()?;
        if self.arch == Arch::P310 {
            return Ok(None);
        }
        if let Some(f) = self.runtime.acl.sync_address {
            let mut address = std::ptr::null_mut();
            // SAFETY: writes one address, which is never dereferenced on this side.
            self.check("aclrtGetHardwareSyncAddr", unsafe { (f.aclrtGetHardwareSyncAddr)(&mut address) })?;
            return Ok(Some(address as u64));
        }
        let Some(f) = self.runtime.acl.runtime_sync_address else { return Ok(None) };
        let (mut address, mut bytes) = (0u64, 0u32);
        // SAFETY: writes two numbers.
        self.check("rtGetC2cCtrlAddr", unsafe { (f.rtGetC2cCtrlAddr)(&mut address, &mut bytes) })?;
        Ok(Some(address))
    }

    /// Why launches are given one by one, instead of recorded once and replayed; `None` where they are
    /// replayed.
    pub fn unrecorded(&self) -> Option<String> {
        let settings = &self.runtime.settings;
        if !settings.graphs {
            return Some("HEADWATER_ASCEND_GRAPHS is 0".into());
        }
        if settings.blocking {
            return Some("every launch is waited for (HEADWATER_ASCEND_BLOCKING)".into());
        }
        if self.runtime.acl.capture.is_none() {
            return Some("the runtime has no aclmdlRICaptureBegin; CANN 8.1 or later has".into());
        }
        self.unrecorded.get().cloned()
    }

    /// Notes that recording failed: from now on launches are given one by one.
    pub fn stop_recording(&self, why: &Error) {
        self.unrecorded.get_or_init(|| why.to_string());
    }

    /// The first error after which nothing more can be done.
    pub fn first_error(&self) -> Option<&Error> {
        self.first_error.get()
    }

    /// Makes this device's context the current one of the thread.
    ///
    /// # Errors
    /// The device's first error, again.
    pub(super) fn enter(&self) -> Result<()> {
        if let Some(error) = self.first_error.get() {
            return Err(error.clone());
        }
        self.check("aclrtSetCurrentContext", self.set_context())
    }

    /// Makes this device's context the current one, well or not: for releases.
    pub(super) fn set_context(&self) -> Status {
        // SAFETY: the context lives as long as the device is set, which this value sees to.
        unsafe { (self.runtime.acl.base.aclrtSetCurrentContext)(self.context) }
    }

    /// The outcome of a call. What leaves the device unusable stays: every later call gives it again.
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let (device, detail) = (self.name(), self.runtime.acl.recent_message());
        Err(match codes::severity(status) {
            Severity::Refused | Severity::OutOfMemory => Error::Call { call, device, status, detail },
            Severity::DeviceLost => self.fail(Error::Lost { device, call, status, detail }),
            Severity::Timeout => self.timed_out(self.runtime.settings.limit),
            Severity::KernelFault => {
                let (reported, sites, others) = self.blame();
                self.fail(Error::Kernel { device, status: reported.unwrap_or(status), sites, others, detail })
            }
        })
    }

    /// The error of a wait that ended before the work did.
    pub(super) fn timed_out(&self, limit: Duration) -> Error {
        let detail = self.runtime.acl.recent_message();
        let (_, sites, others) = self.blame();
        self.fail(Error::Timeout { device: self.name(), limit, sites, others, detail })
    }

    /// Notes the first error after which nothing more can be done, and gives that one.
    fn fail(&self, error: Error) -> Error {
        self.first_error.get_or_init(|| error).clone()
    }

    pub(super) fn watch(&self, log: &Arc<Mutex<Log>>) {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.retain(|weak| weak.strong_count() > 0);
        logs.push(Arc::downgrade(log));
    }

    /// Launches that may be at fault: the one an exception names, or else all that are not known to be done.
    /// The status is the exception's.
    fn blame(&self) -> (Option<Status>, Vec<Arc<Site>>, usize) {
        const SHOWN: usize = 4;
        let reports = self.runtime.exceptions.as_ref().map(|c| c.take()).unwrap_or_default();
        let logs: Vec<_> = {
            let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
            logs.iter().filter_map(Weak::upgrade).collect()
        };
        for exception in &reports {
            for log in &logs {
                let log = log.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(mut sites) = log.find(exception.stream, exception.task) {
                    let status = Status::try_from(exception.status).ok().filter(|&s| s != 0);
                    let others = sites.len().saturating_sub(SHOWN);
                    sites.truncate(SHOWN);
                    return (status, sites, others);
                }
            }
        }
        let mut open = Vec::new();
        for log in &logs {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.settle(&self.runtime);
            open.extend(log.unfinished());
        }
        let others = open.len().saturating_sub(SHOWN);
        open.truncate(SHOWN);
        (None, open, others)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: takes a number; undoes the `aclrtSetDevice` of `open`. Everything made on the device holds
        // this value and was dropped before.
        let status = unsafe { (self.runtime.acl.base.aclrtResetDevice)(self.ordinal as i32) };
        self.runtime.released("aclrtResetDevice", status, &self.runtime.counts.devices);
    }
}

/// The generation of a chip, by the name the runtime gives it; also of chips without a table of their own.
fn arch_of(soc: &str) -> Option<Arch> {
    if soc.starts_with("Ascend310P") {
        Some(Arch::P310)
    } else if soc.starts_with("Ascend910B") || soc.starts_with("Ascend910_93") {
        Some(Arch::A2)
    } else {
        None
    }
}
