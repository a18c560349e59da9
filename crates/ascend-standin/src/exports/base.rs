//! Initialisation, devices, contexts, versions, exceptions.

use super::{exports, put, text};
use crate::outcome::{CONTEXT, PARAM, fail};
use crate::worker::ExceptionInfo;
use crate::world::{CURRENT, WORLD, recent_message};
use headwater_ascend::host::acl::types::{device_attr, mem_attr};
use headwater_ascend::host::codes::REPEAT_INITIALIZE;
use std::ffi::{CString, c_char, c_void};
use std::sync::LazyLock;

/// A context is the device's number, from 1, at an address nobody reads.
fn context_of(device: i32) -> *mut c_void {
    (0x1000 + device as usize) as *mut c_void
}

exports! {
    /// `aclInit`.
    fn aclInit(_config: *const c_char) {
        let mut state = WORLD.state();
        state.initialised += 1;
        if state.initialised > 1 { fail(REPEAT_INITIALIZE, "initialised twice") } else { Ok(()) }
    }

    /// `aclFinalize`.
    fn aclFinalize() {
        let mut state = WORLD.state();
        if state.initialised == 0 {
            return fail(100_037, "finalised twice");
        }
        state.initialised = 0;
        Ok(())
    }

    /// `aclrtGetDeviceCount`.
    fn aclrtGetDeviceCount(count: *mut u32) {
        put(count, WORLD.config.devices)
    }

    /// `aclrtSetDevice`.
    fn aclrtSetDevice(device: i32) {
        let mut state = WORLD.state();
        if state.initialised == 0 {
            return fail(100_001, "not initialised");
        }
        let Some(entry) = usize::try_from(device).ok().and_then(|d| state.devices.get_mut(d)) else {
            return fail(107_001, format!("there is no device {device}"));
        };
        entry.set += 1;
        CURRENT.set(device);
        Ok(())
    }

    /// `aclrtResetDevice`.
    fn aclrtResetDevice(device: i32) {
        let mut state = WORLD.state();
        match usize::try_from(device).ok().and_then(|d| state.devices.get_mut(d)) {
            Some(entry) if entry.set > 0 => {
                entry.set -= 1;
                Ok(())
            }
            _ => fail(107_001, format!("device {device} is not set")),
        }
    }

    /// `aclrtGetCurrentContext`.
    fn aclrtGetCurrentContext(context: *mut *mut c_void) {
        let device = WORLD.state().current()?.0;
        put(context, context_of(device))
    }

    /// `aclrtSetCurrentContext`.
    fn aclrtSetCurrentContext(context: *mut c_void) {
        let device = (context as usize).wrapping_sub(0x1000);
        let state = WORLD.state();
        if state.devices.get(device).is_none_or(|d| d.set == 0) {
            return fail(CONTEXT, "no such context");
        }
        CURRENT.set(device as i32);
        Ok(())
    }

    /// `aclrtGetMemInfo`.
    fn aclrtGetMemInfo(kind: u32, free: *mut usize, total: *mut usize) {
        let mut state = WORLD.state();
        let used = state.current()?.1.used;
        let own = if WORLD.arch() == 2002 { mem_attr::DDR } else { mem_attr::HBM };
        let size = if kind == own { WORLD.config.memory } else { 0 };
        put(free, size.saturating_sub(used))?;
        put(total, size)
    }

    /// `aclrtGetDeviceInfo`.
    fn aclrtGetDeviceInfo(device: u32, attribute: u32, value: *mut i64) {
        if device >= WORLD.config.devices {
            return fail(107_001, "no such device");
        }
        let two = WORLD.arch() == 2002;
        put(value, match attribute {
            device_attr::AI_CORES => if two { 8 } else { 24 },
            device_attr::VECTOR_CORES => if two { 8 } else { 48 },
            _ => return fail(PARAM, "no such attribute"),
        })
    }

    /// `aclrtGetHardwareSyncAddr`.
    fn aclrtGetHardwareSyncAddr(address: *mut *mut c_void) {
        if WORLD.arch() == 2002 {
            return fail(207_000, "this chip has no such address");
        }
        put(address, 0xFF75_0000_usize as *mut c_void)
    }

    /// `aclrtSetOpExecuteTimeOut`.
    fn aclrtSetOpExecuteTimeOut(seconds: u32) {
        WORLD.state().kernel_limit = seconds;
        Ok(())
    }

    /// `aclrtSetExceptionInfoCallback`.
    fn aclrtSetExceptionInfoCallback(callback: Option<extern "C" fn(*const c_void)>) {
        WORLD.state().callback = callback;
        Ok(())
    }

    /// `aclsysGetVersionStr`.
    fn aclsysGetVersionStr(package: *const c_char, version: *mut c_char) {
        let package = text(package)?;
        if !["runtime", "driver", "firmware"].contains(&package.as_str()) || version.is_null() {
            return fail(PARAM, format!("package {package} is not installed"));
        }
        for (i, byte) in WORLD.config.version.bytes().chain([0]).enumerate() {
            // SAFETY: the caller's buffer has 128 bytes; the version is shorter.
            unsafe { version.add(i).write(byte as c_char) };
        }
        Ok(())
    }
}

static SOC: LazyLock<CString> = LazyLock::new(|| CString::new(WORLD.config.soc.clone()).unwrap_or_default());

/// `aclrtGetSocName`.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtGetSocName() -> *const c_char {
    SOC.as_ptr()
}

/// `aclGetRecentErrMsg`.
#[unsafe(no_mangle)]
pub extern "C" fn aclGetRecentErrMsg() -> *const c_char {
    recent_message()
}

macro_rules! accessors {
    ($($name:ident $field:ident;)*) => {$(
        /// Reads an exception.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(info: *const c_void) -> u32 {
            if info.is_null() {
                return u32::MAX;
            }
            // SAFETY: by the contract what the callback was given, while it runs.
            unsafe { (*info.cast::<ExceptionInfo>()).$field }
        }
    )*};
}

accessors! {
    aclrtGetTaskIdFromExceptionInfo task;
    aclrtGetStreamIdFromExceptionInfo stream;
    aclrtGetDeviceIdFromExceptionInfo device;
    aclrtGetErrorCodeFromExceptionInfo status;
}
