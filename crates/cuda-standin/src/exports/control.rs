//! Functions of the stand-in's own.

use crate::world::world;
use std::ffi::{CStr, c_char};

fn text(name: *const c_char) -> String {
    // SAFETY: the caller's string ends with a zero.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Checks accesses or not, orders threads, blocks and streams by a seed, and has so many bytes of memory.
/// Before all allocations.
#[unsafe(no_mangle)]
pub extern "C" fn standin_configure(checked: bool, seed: u64, capacity: usize) {
    let mut world = world();
    (world.checked, world.seed, world.capacity) = (checked, seed, capacity);
}

/// The `nth` further call of a function gives a status.
#[unsafe(no_mangle)]
pub extern "C" fn standin_inject(name: *const c_char, nth: u64, status: i32) {
    world().injected.insert(text(name), (nth, status));
}

/// A device that failed works again, as in a new process.
#[unsafe(no_mangle)]
pub extern "C" fn standin_revive() {
    world().revive();
}

/// Forgets failures that have not come.
#[unsafe(no_mangle)]
pub extern "C" fn standin_forget() {
    world().injected.clear();
}

/// Compiles a part of a kernel's text as another one: a fault that is planted.
#[unsafe(no_mangle)]
pub extern "C" fn standin_replace(from: *const c_char, to: *const c_char) {
    world().replaced = Some((text(from), text(to), 0));
}

/// Kernels that were compiled with the part replaced; they are no longer.
#[unsafe(no_mangle)]
pub extern "C" fn standin_replaced() -> u64 {
    world().replaced.take().map_or(0, |r| r.2)
}

/// Calls of a function so far.
#[unsafe(no_mangle)]
pub extern "C" fn standin_calls(name: *const c_char) -> u64 {
    world().calls.get(&text(name)).copied().unwrap_or(0)
}

/// Handles that are alive: memories, pinned pieces, streams, events, graphs, modules.
#[unsafe(no_mangle)]
pub extern "C" fn standin_live(to: *mut [usize; 6]) {
    // SAFETY: the caller's place for it.
    unsafe { to.write(world().live()) };
}
