//! Counters and faults that tests read and set, beside the interface.

use super::{put, text};
use crate::world::{Injection, WORLD};
use headwater_ascend::host::codes::Status;
use std::ffi::c_char;

/// Live handles, in the order of the fields.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LiveHandles {
    /// Allocations of device memory.
    pub device_allocations: u64,
    /// Their bytes.
    pub device_bytes: u64,
    /// Allocations of pinned memory.
    pub host_allocations: u64,
    /// Streams.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Descriptions of binaries.
    pub described: u64,
    /// Loaded binaries.
    pub binaries: u64,
    /// Compilations.
    pub programs: u64,
    /// Recordings.
    pub graphs: u64,
    /// Operands of the vendor's operators.
    pub operands: u64,
    /// Executors of them.
    pub executors: u64,
    /// Devices set and not reset.
    pub devices: u64,
    /// 1 while initialised.
    pub initialised: u64,
}

/// Makes the `nth` further call of a name fail (1: the next).
#[unsafe(no_mangle)]
pub extern "C" fn standin_inject(call: *const c_char, nth: u64, status: Status) {
    if let Ok(call) = text(call) {
        WORLD.state().injections.push(Injection { call, countdown: nth.max(1), status });
    }
}

/// Forgets failures that were requested and have not happened yet.
#[unsafe(no_mangle)]
pub extern "C" fn standin_forget() {
    WORLD.state().injections.clear();
}

/// Lets the work of an operator, by the name of its second phase, never end.
#[unsafe(no_mangle)]
pub extern "C" fn standin_stall(call: *const c_char) {
    if let Ok(call) = text(call) {
        WORLD.state().stalled = Some(call);
    }
}

/// Number of calls of a function.
#[unsafe(no_mangle)]
pub extern "C" fn standin_calls(call: *const c_char) -> u64 {
    text(call).ok().and_then(|call| WORLD.state().calls.get(&call).copied()).unwrap_or(0)
}

/// Loses a device: from now on its work and most calls give `status`.
#[unsafe(no_mangle)]
pub extern "C" fn standin_lose(device: u32, status: Status) {
    if let Some(device) = WORLD.state().devices.get_mut(device as usize) {
        device.lost = Some(status);
    }
}

/// Live handles.
#[unsafe(no_mangle)]
pub extern "C" fn standin_live(live: *mut LiveHandles) {
    let state = WORLD.state();
    let count = |n: usize| n as u64;
    let _ = put(
        live,
        LiveHandles {
            device_allocations: count(state.memory.len()),
            device_bytes: count(state.memory.values().map(|a| a.bytes).sum()),
            host_allocations: count(state.host.len()),
            streams: count(state.streams.len()),
            events: count(state.events.len()),
            described: count(state.described.len()),
            binaries: count(state.binaries.len()),
            programs: count(state.programs.len()),
            graphs: count(state.graphs.len()),
            operands: count(state.operands.len()),
            executors: count(state.executors.len()),
            devices: state.devices.iter().map(|d| u64::from(d.set)).sum(),
            initialised: u64::from(state.initialised.min(1)),
        },
    );
}
