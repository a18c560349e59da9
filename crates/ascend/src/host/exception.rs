//! Exceptions of kernels. CANN passes them to a callback, on a thread of its own, as numbers of a stream and
//! a task. They are collected here and matched with launches when the next call fails.
#![allow(unsafe_code)]

use super::acl::symbols::Exceptions;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One exception, as the runtime tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exception {
    /// Device.
    pub device: u32,
    /// Number of the stream.
    pub stream: u32,
    /// Number of the task in it.
    pub task: u32,
    /// The vendor's code of the exception.
    pub status: u32,
}

struct State {
    functions: Exceptions,
    reports: Vec<Exception>,
}

/// The function that CANN calls gets no pointer of ours, so each opened library has a function of its own.
const SLOTS: usize = 32;
/// More than so many exceptions of one failure are not collected: the first ones matter.
const MOST: usize = 256;

static STATES: [Mutex<Option<State>>; SLOTS] = [const { Mutex::new(None) }; SLOTS];

fn state(slot: usize) -> MutexGuard<'static, Option<State>> {
    STATES[slot].lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn collect<const SLOT: usize>(info: *const c_void) {
    let mut guard = state(SLOT);
    let Some(state) = guard.as_mut().filter(|s| !info.is_null() && s.reports.len() < MOST) else { return };
    let f = state.functions;
    // SAFETY: `info` is what the runtime handed to this callback, good until it returns; the four functions
    // only read it.
    let exception = unsafe {
        Exception {
            device: (f.aclrtGetDeviceIdFromExceptionInfo)(info),
            stream: (f.aclrtGetStreamIdFromExceptionInfo)(info),
            task: (f.aclrtGetTaskIdFromExceptionInfo)(info),
            status: (f.aclrtGetErrorCodeFromExceptionInfo)(info),
        }
    };
    state.reports.push(exception);
}

macro_rules! callbacks {
    ($($slot:literal)*) => { [$(collect::<$slot>),*] };
}

const CALLBACKS: [extern "C" fn(*const c_void); SLOTS] = callbacks!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
);

/// The collection for one opened library; ends when dropped.
#[derive(Debug)]
pub struct Collector {
    slot: usize,
    functions: Exceptions,
}

impl Collector {
    /// Begins to collect. `None` if the library refuses or every slot is taken: exceptions then have no task
    /// number, and errors name all launches that may be at fault.
    pub fn start(functions: Exceptions) -> Option<Collector> {
        let slot = (0..SLOTS).find(|&slot| {
            let mut guard = state(slot);
            let free = guard.is_none();
            if free {
                *guard = Some(State { functions, reports: Vec::new() });
            }
            free
        })?;
        // SAFETY: the callback is a function of this program, good for ever, and touches only its slot.
        let status = unsafe { (functions.aclrtSetExceptionInfoCallback)(Some(CALLBACKS[slot])) };
        if status != 0 {
            *state(slot) = None;
            return None;
        }
        Some(Collector { slot, functions })
    }

    /// Exceptions reported since the last call.
    pub fn take(&self) -> Vec<Exception> {
        state(self.slot).as_mut().map(|s| std::mem::take(&mut s.reports)).unwrap_or_default()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // SAFETY: no callback is the documented way to end the notification.
        unsafe { (self.functions.aclrtSetExceptionInfoCallback)(None) };
        *state(self.slot) = None;
    }
}
