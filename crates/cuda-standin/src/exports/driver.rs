//! libcuda.

use super::{export, put};
use crate::machine::{Entry, Table};
use crate::world::{INVALID, NOT_FOUND, NOT_READY, Work};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;

/// First bytes of a binary, before its length.
pub const MAGIC: &[u8; 8] = b"HWSTANDI";

/// The driver's words for results, which live for ever.
static WORDS: Mutex<Vec<(i32, CString)>> = Mutex::new(Vec::new());

export! {
    false fn cuInit(world, _flags: u32) {}
    false fn cuDriverGetVersion(world, version: *mut i32) { put(version, 13000)?; }
    false fn cuDeviceGetCount(world, count: *mut i32) { put(count, 1)?; }
    false fn cuDeviceGet(world, device: *mut i32, ordinal: i32) {
        if ordinal != 0 { return Err(101); }
        put(device, 0)?;
    }
    false fn cuDeviceGetName(world, name: *mut c_char, room: i32, _device: i32) {
        let text = b"Stand-in for a GPU\0";
        if (room as usize) < text.len() { return Err(INVALID); }
        // SAFETY: the caller's buffer.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
    }
    false fn cuDeviceGetAttribute(world, value: *mut i32, attribute: i32, _device: i32) {
        put(value, match attribute { 75 => 9, 76 => 0, 16 => 132, 97 => 232448, _ => return Err(INVALID) })?;
    }
    false fn cuDeviceTotalMem_v2(world, bytes: *mut usize, _device: i32) { let all = world.capacity; put(bytes, all)?; }
    false fn cuDevicePrimaryCtxRetain(world, context: *mut *mut c_void, device: i32) {
        if device != 0 { return Err(101); }
        put(context, std::ptr::dangling_mut::<c_void>())?;
    }
    false fn cuDevicePrimaryCtxRelease_v2(world, _device: i32) {}
    false fn cuCtxSetCurrent(world, context: *mut c_void) { if context as usize != 1 { return Err(201); } }
    true fn cuMemGetInfo_v2(world, free: *mut usize, total: *mut usize) {
        let (all, used) = (world.capacity, world.used);
        put(free, all - used)?;
        put(total, all)?;
    }
    true fn cuMemAlloc_v2(world, address: *mut u64, bytes: usize) { let start = world.alloc(bytes)?; put(address, start)?; }
    false fn cuMemFree_v2(world, address: u64) { world.free(address)?; }
    true fn cuMemAllocHost_v2(world, start: *mut *mut c_void, bytes: usize) {
        let memory = vec![0xffu8; bytes];
        let at = memory.as_ptr() as usize;
        world.pinned.insert(at, memory);
        put(start, at as *mut c_void)?;
    }
    false fn cuMemFreeHost(world, start: *mut c_void) {
        world.drain_all();
        world.pinned.remove(&(start as usize)).ok_or(INVALID)?;
    }
    true fn cuMemcpyHtoDAsync_v2(world, to: u64, from: *const c_void, bytes: usize, stream: *mut c_void) {
        world.give(stream as usize, Work::ToDevice { to, from: from as usize, bytes })?;
    }
    true fn cuMemcpyDtoHAsync_v2(world, to: *mut c_void, from: u64, bytes: usize, stream: *mut c_void) {
        world.give(stream as usize, Work::ToHost { to: to as usize, from, bytes })?;
    }
    true fn cuMemcpyDtoDAsync_v2(world, to: u64, from: u64, bytes: usize, stream: *mut c_void) {
        world.give(stream as usize, Work::Copy { to, from, bytes })?;
    }
    true fn cuMemsetD8Async(world, to: u64, value: u8, bytes: usize, stream: *mut c_void) {
        world.give(stream as usize, Work::Fill { to, bytes, value })?;
    }
    true fn cuStreamCreate(world, stream: *mut *mut c_void, _flags: u32) {
        let handle = world.new_stream();
        put(stream, handle as *mut c_void)?;
    }
    false fn cuStreamDestroy_v2(world, stream: *mut c_void) { world.end_stream(stream as usize)?; }
    true fn cuStreamSynchronize(world, stream: *mut c_void) { world.synchronize(stream as usize)?; }
    true fn cuStreamWaitEvent(world, stream: *mut c_void, event: *mut c_void, _flags: u32) {
        world.wait(stream as usize, event as usize)?;
    }
    true fn cuStreamBeginCapture_v2(world, stream: *mut c_void, _mode: i32) { world.begin_recording(stream as usize)?; }
    true fn cuStreamEndCapture(world, stream: *mut c_void, graph: *mut *mut c_void) {
        let handle = world.end_recording(stream as usize)?;
        put(graph, handle as *mut c_void)?;
    }
    true fn cuEventCreate(world, event: *mut *mut c_void, _flags: u32) {
        let handle = world.new_event();
        put(event, handle as *mut c_void)?;
    }
    false fn cuEventDestroy_v2(world, event: *mut c_void) { world.end_event(event as usize)?; }
    true fn cuEventRecord(world, event: *mut c_void, stream: *mut c_void) { world.record(event as usize, stream as usize)?; }
    true fn cuEventQuery(world, event: *mut c_void) {
        let come = world.has_come(event as usize)?;
        if world.failure != 0 { return Err(world.failure); }
        if !come { return Err(NOT_READY); }
    }
    true fn cuEventSynchronize(world, event: *mut c_void) {
        world.wait_host(event as usize)?;
        if world.failure != 0 { return Err(world.failure); }
    }
    true fn cuModuleLoadData(world, module: *mut *mut c_void, image: *const c_void) {
        // SAFETY: a binary begins with a mark and its length.
        let bytes = unsafe {
            let head = std::slice::from_raw_parts(image.cast::<u8>(), 16);
            if &head[..8] != MAGIC { return Err(200); }
            let length = u64::from_le_bytes(head[8..].try_into().unwrap_or_default()) as usize;
            std::slice::from_raw_parts(image.cast::<u8>().add(16), length)
        };
        let file = tempfile::NamedTempFile::new().map_err(|_| 304)?;
        std::fs::write(file.path(), bytes).map_err(|_| 304)?;
        // SAFETY: a library that the stand-in's compiler made of a kernel; it has no initialisers.
        let library = unsafe { libloading::Library::new(file.path()) }.map_err(|_| 200)?;
        let handle = world.handle();
        world.modules.insert(handle, library);
        put(module, handle as *mut c_void)?;
    }
    false fn cuModuleUnload(world, module: *mut c_void) {
        world.drain_all();
        world.modules.remove(&(module as usize)).ok_or(INVALID)?;
    }
    true fn cuModuleGetFunction(world, function: *mut *mut c_void, module: *mut c_void, name: *const c_char) {
        // SAFETY: the caller's string ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let table = world.table();
        let library = world.modules.get(&(module as usize)).ok_or(INVALID)?;
        // SAFETY: types of what `simt.h` declares.
        let entry = unsafe {
            let number = |what: &str| library.get::<*const i32>(format!("{name}_{what}\0").as_bytes()).map(|p| **p);
            library.get::<*mut *mut Table>(b"hw_machine\0").map_err(|_| NOT_FOUND)?.write(table);
            Entry {
                function: *library.get::<extern "C" fn(*const u64)>(format!("{name}\0").as_bytes()).map_err(|_| NOT_FOUND)?,
                threads: number("threads").map_err(|_| NOT_FOUND)? as u32,
                pointers: number("pointers").map_err(|_| NOT_FOUND)? as usize,
                extents: library.get::<*const i64>(format!("{name}_extents\0").as_bytes()).map_or_else(|_| Vec::new(), |first| extents(*first)),
                name,
            }
        };
        let handle = world.handle();
        world.functions.insert(handle, entry);
        put(function, handle as *mut c_void)?;
    }
    true fn cuLaunchKernel(
        world, function: *mut c_void, x: u32, y: u32, z: u32, threads: u32, ty: u32, tz: u32, shared: u32,
        stream: *mut c_void, params: *mut *mut c_void, extra: *mut *mut c_void
    ) {
        let entry = world.functions.get(&(function as usize)).cloned().ok_or(INVALID)?;
        let plain = x > 0 && y == 1 && z == 1 && ty == 1 && tz == 1 && extra.is_null() && shared <= 48 << 10;
        if !plain || threads != entry.threads { return Err(INVALID); }
        // SAFETY: one parameter, as many pointers as the kernel states.
        let args = unsafe { std::slice::from_raw_parts((*params).cast::<u64>(), entry.pointers) }.to_vec();
        world.give(stream as usize, Work::Launch { entry, blocks: x, shared: shared as usize, args })?;
    }
    true fn cuGraphInstantiateWithFlags(world, exec: *mut *mut c_void, graph: *mut c_void, _flags: u64) {
        let work = world.graphs.get(&(graph as usize)).cloned().ok_or(INVALID)?;
        let handle = world.handle();
        world.graphs.insert(handle, work);
        put(exec, handle as *mut c_void)?;
    }
    true fn cuGraphLaunch(world, exec: *mut c_void, stream: *mut c_void) {
        let work = world.graphs.get(&(exec as usize)).cloned().ok_or(INVALID)?;
        for work in work { world.give(stream as usize, work)?; }
    }
    false fn cuGraphExecDestroy(world, exec: *mut c_void) { world.graphs.remove(&(exec as usize)).ok_or(INVALID)?; }
    false fn cuGraphDestroy(world, graph: *mut c_void) { world.graphs.remove(&(graph as usize)).ok_or(INVALID)?; }
    false fn cuGetErrorName(world, code: i32, text: *mut *const c_char) { put(text, words(code, false, ""))?; }
    false fn cuGetErrorString(world, code: i32, text: *mut *const c_char) {
        let finding = if code == world.failure { world.finding.clone() } else { String::new() };
        put(text, words(code, true, &finding))?;
    }
}

/// Bytes of each operand, and true for those that are written.
///
/// # Safety
/// Pairs of numbers that end with a negative one.
unsafe fn extents(mut at: *const i64) -> Vec<(u64, bool)> {
    let mut all = Vec::new();
    // SAFETY: the caller's promise.
    unsafe {
        while *at >= 0 {
            all.push((*at as u64, *at.add(1) != 0));
            at = at.add(2);
        }
    }
    all
}

fn words(code: i32, long: bool, finding: &str) -> *const c_char {
    let (name, text) = match code {
        1 => ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
        2 => ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
        700 => ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
        719 => ("CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"),
        _ => ("CUDA_ERROR", "a failure"),
    };
    let text = match (long, finding) {
        (false, _) => name.into(),
        (true, "") => text.into(),
        (true, finding) => format!("{text} [stand-in: {finding}]"),
    };
    let mut all = WORDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.push((code, CString::new(text).unwrap_or_default()));
    // The text of a string stays where it is when the list grows.
    all.last().map_or(std::ptr::null(), |(_, text)| text.as_ptr())
}
