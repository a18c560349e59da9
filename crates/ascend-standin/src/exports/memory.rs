//! Memory of devices and pinned memory.

use super::{exports, put};
use crate::arena::Arena;
use crate::outcome::{Outcome, PARAM, fail};
use crate::stream::{Stream, Task};
use crate::world::{Allocation, State, WORLD};
use headwater_ascend::host::acl::types::memcpy_kind::*;
use headwater_ascend::host::codes::MEMORY_ALLOCATION;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::sync::Arc;

/// Alignment of pinned memory.
const ALIGN: usize = 64;
/// Byte that fills memory before it is written.
const PATTERN: u8 = 0xA5;

/// Aligned to more than promised, and given out one unit further: no address is better aligned than that.
fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(ALIGN)?, 4096).ok()
}

fn take(bytes: usize) -> *mut c_void {
    let Some(layout) = layout(bytes) else { return std::ptr::null_mut() };
    // SAFETY: the size is not 0.
    let base = unsafe { alloc(layout) };
    if base.is_null() {
        return base.cast();
    }
    // SAFETY: so many bytes were just given.
    unsafe { base.write_bytes(PATTERN, layout.size()) };
    base.wrapping_add(ALIGN).cast()
}

fn give_back(address: usize, bytes: usize) {
    let Some(layout) = layout(bytes) else { return };
    // SAFETY: made by `take` with this size, and given back once: its entry was just removed.
    unsafe { dealloc((address - ALIGN) as *mut u8, layout) };
}

/// Checks the device's side of a copy, and that the context fits.
fn check(state: &mut State, to: usize, room: usize, from: usize, bytes: usize, kind: u32) -> Outcome {
    state.current()?;
    if bytes > room {
        return fail(PARAM, format!("{bytes} bytes into room for {room}"));
    }
    let (source, target) = match kind {
        HOST_TO_DEVICE => (false, true),
        DEVICE_TO_HOST => (true, false),
        DEVICE_TO_DEVICE => (true, true),
        other => return fail(PARAM, format!("a copy of kind {other}")),
    };
    if (source && !state.is_device(from, bytes)) || (target && !state.is_device(to, bytes)) {
        return fail(PARAM, format!("a copy of kind {kind} outside of device memory"));
    }
    Ok(())
}

/// Copies that were checked already.
fn now(to: *mut c_void, from: *const c_void, bytes: usize) {
    // SAFETY: the device's side was checked; the host's is the caller's, good for so many bytes by the
    // contract.
    unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
}

fn give(stream: &Arc<Stream>, task: Task) -> Outcome {
    stream.give(task);
    Ok(())
}

exports! {
    /// `aclrtMalloc`.
    fn aclrtMalloc(address: *mut *mut c_void, bytes: usize, _policy: u32) {
        let mut state = WORLD.state();
        let (number, device) = state.current()?;
        if bytes == 0 {
            return fail(PARAM, "an allocation of no bytes");
        }
        if device.used + bytes > WORLD.config.memory {
            return fail(MEMORY_ALLOCATION, format!("{} bytes are in use", device.used));
        }
        if device.arena.is_none() {
            device.arena = Arena::new(WORLD.config.memory);
        }
        let Some(taken) = device.arena.as_mut().and_then(|arena| arena.take(bytes)) else {
            return fail(MEMORY_ALLOCATION, "no block is large enough");
        };
        device.used += bytes;
        state.memory.insert(taken, Allocation { bytes, device: number });
        put(address, taken as *mut c_void)
    }

    /// `aclrtFree`.
    fn aclrtFree(address: *mut c_void) {
        let mut state = WORLD.state();
        let Some(allocation) = state.memory.remove(&(address as usize)) else {
            return fail(PARAM, "no allocation begins there");
        };
        let device = &mut state.devices[allocation.device as usize];
        device.used -= allocation.bytes;
        if let Some(arena) = &mut device.arena {
            arena.give_back(address as usize, allocation.bytes);
        }
        Ok(())
    }

    /// `aclrtMallocHost`.
    fn aclrtMallocHost(address: *mut *mut c_void, bytes: usize) {
        let mut state = WORLD.state();
        state.current()?;
        if bytes == 0 {
            return fail(PARAM, "an allocation of no bytes");
        }
        let taken = take(bytes);
        if taken.is_null() {
            return fail(MEMORY_ALLOCATION, "the host has no memory");
        }
        state.host.insert(taken as usize, bytes);
        put(address, taken)
    }

    /// `aclrtFreeHost`.
    fn aclrtFreeHost(address: *mut c_void) {
        let Some(bytes) = WORLD.state().host.remove(&(address as usize)) else {
            return fail(PARAM, "no allocation begins there");
        };
        give_back(address as usize, bytes);
        Ok(())
    }

    /// `aclrtMemcpy`.
    fn aclrtMemcpy(to: *mut c_void, room: usize, from: *const c_void, bytes: usize, kind: u32) {
        {
            let mut state = WORLD.state();
            state.idle(None)?;
            check(&mut state, to as usize, room, from as usize, bytes, kind)?;
        }
        now(to, from, bytes);
        Ok(())
    }

    /// `aclrtMemcpyAsync`: of pinned memory later, of other memory before it returns.
    fn aclrtMemcpyAsync(
        to: *mut c_void,
        room: usize,
        from: *const c_void,
        bytes: usize,
        kind: u32,
        stream: *mut c_void,
    ) {
        let (stream, pinned) = {
            let mut state = WORLD.state();
            check(&mut state, to as usize, room, from as usize, bytes, kind)?;
            let host = if kind == HOST_TO_DEVICE { from as usize } else { to as usize };
            let pinned = state.host.range(..=host).next_back();
            let pinned = pinned.is_some_and(|(base, size)| host + bytes <= base + size);
            let pinned = pinned || kind == DEVICE_TO_DEVICE;
            if !pinned {
                state.idle(None)?;
            }
            (state.stream(stream)?, pinned)
        };
        give(&stream, Task::Copy { from: from as usize, to: to as usize, bytes })?;
        if pinned { Ok(()) } else { stream.synchronize(None) }
    }

    /// `aclrtMemsetAsync`.
    fn aclrtMemsetAsync(to: *mut c_void, room: usize, byte: i32, bytes: usize, stream: *mut c_void) {
        let mut state = WORLD.state();
        state.current()?;
        if bytes > room || !state.is_device(to as usize, bytes) {
            return fail(PARAM, "memory outside of the device");
        }
        give(&state.stream(stream)?, Task::Fill { to: to as usize, byte: byte as u8, bytes })
    }
}
