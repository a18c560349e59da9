//! The state of the driver: devices, memory, handles, and what is to fail.

use crate::arena::Arena;
use crate::config::Config;
use crate::function::Function;
use crate::operator::{Operand, Prepared};
use crate::outcome::{CONTEXT, HANDLE, Outcome, fail};
use crate::stream::{Event, Stream, Task};
use headwater_ascend::host::acl::types::CAPTURE_THREAD_LOCAL;
use headwater_ascend::host::codes::Status;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub struct Injection {
    pub call: String,
    /// Which further call of that name fails: 1 is the next.
    pub countdown: u64,
    pub status: Status,
}

#[derive(Debug, Default)]
pub struct Device {
    pub set: u32,
    pub used: usize,
    /// Created by the first allocation.
    pub arena: Option<Arena>,
    /// The code of every call since the device was lost.
    pub lost: Option<Status>,
}

#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    pub bytes: usize,
    pub device: i32,
}

#[derive(Debug)]
pub struct Loaded {
    pub kernels: Vec<Arc<Function>>,
}

/// A compilation by aclrtc.
pub struct RtcProgram {
    pub source: String,
    pub name: String,
    pub binary: Vec<u8>,
    pub log: String,
}

#[derive(Default)]
pub struct State {
    pub initialised: u32,
    pub calls: HashMap<String, u64>,
    pub injections: Vec<Injection>,
    pub devices: Vec<Device>,
    /// Device memory by address.
    pub memory: BTreeMap<usize, Allocation>,
    /// Pinned host memory by address.
    pub host: BTreeMap<usize, usize>,
    pub streams: HashMap<usize, Arc<Stream>>,
    pub events: HashMap<usize, Arc<Event>>,
    /// Binaries described by `aclrtCreateBinary`.
    pub described: HashMap<usize, Vec<u8>>,
    pub binaries: HashMap<usize, Loaded>,
    pub functions: HashMap<usize, (usize, Arc<Function>)>,
    /// Functions of libruntime by their stub's address.
    pub stubs: HashMap<usize, (usize, Arc<Function>)>,
    pub programs: HashMap<usize, RtcProgram>,
    /// Recorded work.
    pub graphs: HashMap<usize, Arc<Vec<Task>>>,
    /// Operands of the vendor's operators, and executors.
    pub operands: HashMap<usize, Operand>,
    pub executors: HashMap<usize, Prepared>,
    /// The operator whose work never ends.
    pub stalled: Option<String>,
    pub callback: Option<extern "C" fn(*const c_void)>,
    /// Seconds that a kernel may run; 0 is no limit.
    pub kernel_limit: u32,
}

pub struct World {
    pub config: Config,
    state: Mutex<State>,
    next: AtomicUsize,
    pub next_task: AtomicU32,
}

pub static WORLD: LazyLock<World> = LazyLock::new(|| {
    let config = Config::of_this_copy();
    let devices = (0..config.devices).map(|_| Device::default()).collect();
    World {
        config,
        state: Mutex::new(State { devices, ..State::default() }),
        next: AtomicUsize::new(0x5_0000),
        next_task: AtomicU32::new(1),
    }
});

thread_local! {
    /// Device whose context is current; -1 for none.
    pub static CURRENT: Cell<i32> = const { Cell::new(-1) };
    /// Number of the last task of the thread.
    pub static LAST_TASK: Cell<u32> = const { Cell::new(0) };
    static MESSAGE: RefCell<CString> = RefCell::default();
    static SHOWN: RefCell<CString> = RefCell::default();
}

impl World {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle that was never given before.
    pub fn token(&self) -> usize {
        self.next.fetch_add(16, Ordering::Relaxed)
    }

    /// Architecture number of the machine's chip.
    pub fn arch(&self) -> u32 {
        if self.config.soc.contains("310P") { 2002 } else { 2201 }
    }
}

impl State {
    /// The device of the thread's context.
    pub fn current(&mut self) -> Outcome<(i32, &mut Device)> {
        let current = CURRENT.get();
        match self.devices.get_mut(current as usize).filter(|d| current >= 0 && d.set > 0) {
            Some(device) => Ok((current, device)),
            None => fail(CONTEXT, "no context is set on this thread"),
        }
    }

    pub fn stream(&self, handle: *mut c_void) -> Outcome<Arc<Stream>> {
        self.streams.get(&(handle as usize)).cloned().ok_or((HANDLE, "no such stream".into()))
    }

    pub fn event(&self, handle: *mut c_void) -> Outcome<Arc<Event>> {
        self.events.get(&(handle as usize)).cloned().ok_or((HANDLE, "no such event".into()))
    }

    /// Refuses a call that waits or asks while a stream is recorded: on the recording thread, in the global
    /// mode on every thread, and about a recorded stream in any mode. The recording is then worth nothing.
    pub fn idle(&self, about: Option<&Stream>) -> Outcome {
        let own = std::thread::current().id();
        let mut refused = false;
        for stream in self.streams.values() {
            if let Some(capture) = &mut *stream.capture() {
                let local = capture.mode == CAPTURE_THREAD_LOCAL && capture.thread == Some(own);
                if about.is_some_and(|s| std::ptr::eq(s, &**stream)) || local || capture.mode == 0 {
                    (capture.invalid, refused) = (true, true);
                }
            }
        }
        if refused { fail(107_030, "not while a stream is recorded") } else { Ok(()) }
    }

    /// True if `bytes` bytes from `address` are in one allocation of device memory.
    pub fn is_device(&self, address: usize, bytes: usize) -> bool {
        let before = self.memory.range(..=address).next_back();
        before.is_some_and(|(base, a)| address + bytes <= base + a.bytes)
    }
}

/// Calls that work on a lost device: those that give it up, and those that touch none.
const ALWAYS: [&str; 14] = [
    "aclInit",
    "aclFinalize",
    "aclrtGetDeviceCount",
    "aclrtResetDevice",
    "aclrtSetExceptionInfoCallback",
    "aclrtDestroyStreamForce",
    "aclrtFreeHost",
    "aclmdlRIDestroy",
    "aclrtSetCurrentContext",
    "aclDestroyTensor",
    "aclDestroyScalar",
    "aclDestroyIntArray",
    "aclDestroyBoolArray",
    "aclDestroyAclOpExecutor",
];

/// One call of the interface: counted, made to fail if a test requested it, refused if the device is lost.
pub fn call(name: &'static str, body: impl FnOnce() -> Outcome) -> Status {
    let refused = {
        let mut state = WORLD.state();
        *state.calls.entry(name.into()).or_default() += 1;
        let lost = usize::try_from(CURRENT.get()).ok().and_then(|d| state.devices.get(d)?.lost);
        let mut injected = None;
        state.injections.retain_mut(|i| {
            if i.call != name {
                return true;
            }
            i.countdown -= 1;
            if i.countdown == 0 {
                injected = Some(i.status);
            }
            i.countdown > 0
        });
        injected.or(lost.filter(|_| !ALWAYS.contains(&name)))
    };
    let outcome = match refused {
        Some(status) => fail(status, format!("{name} was made to fail by the stand-in")),
        None => body(),
    };
    match outcome {
        Ok(()) => 0,
        Err((status, text)) => {
            MESSAGE.set(CString::new(text).unwrap_or_default());
            status
        }
    }
}

/// The text of the thread's last failure, which is then forgotten; good until the next such call.
pub fn recent_message() -> *const std::ffi::c_char {
    SHOWN.set(MESSAGE.take());
    SHOWN.with_borrow(|text| if text.is_empty() { std::ptr::null() } else { text.as_ptr() })
}
