//! Launches by every rung of ACL.

use super::{bytes, exports, put};
use crate::function::Function;
use crate::outcome::{HANDLE, Outcome, PARAM, fail};
use crate::stream::{Arguments, Task};
use crate::world::{LAST_TASK, WORLD};
use headwater_ascend::host::acl::types::{LAUNCH_SCHEDULE, LaunchConfig};
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Arguments that a list takes.
const MOST: usize = 128;

fn function(handle: *mut c_void) -> Outcome<Arc<Function>> {
    let state = WORLD.state();
    let found = state.functions.get(&(handle as usize));
    found.map(|(_, f)| f.clone()).ok_or((HANDLE, "no such kernel".into()))
}

/// Gives a kernel to a stream, with checks that every rung makes.
pub(super) fn launch(
    function: Arc<Function>,
    blocks: u32,
    args: Arguments,
    config: *mut LaunchConfig,
    stream: *mut c_void,
) -> Outcome {
    if blocks == 0 {
        return fail(PARAM, "no blocks");
    }
    if !config.is_null() {
        // SAFETY: not null, and by the contract a configuration with so many attributes.
        let list = unsafe { std::slice::from_raw_parts((*config).attributes, (*config).count) };
        if list.iter().any(|a| a.kind != LAUNCH_SCHEDULE || a.value[0] != 1) {
            return fail(PARAM, "an attribute that is not known");
        }
    }
    let mut state = WORLD.state();
    let device = state.current()?.0;
    let stream = state.stream(stream)?;
    if stream.device != device {
        return fail(107_003, "a stream of another context");
    }
    let task = WORLD.next_task.fetch_add(1, Ordering::Relaxed);
    LAST_TASK.set(task);
    stream.give(Task::Kernel { function, blocks, args, task });
    Ok(())
}

/// The list of the thread: one, as in CANN, made anew by each `Init`.
struct List {
    token: usize,
    bytes: Vec<u8>,
    count: usize,
    finalised: bool,
}

thread_local! {
    static LIST: RefCell<Option<List>> = const { RefCell::new(None) };
}

fn with_list<T>(handle: *mut c_void, f: impl FnOnce(&mut List) -> Outcome<T>) -> Outcome<T> {
    LIST.with_borrow_mut(|list| match list.as_mut().filter(|l| l.token == handle as usize) {
        Some(list) => f(list),
        None => fail(HANDLE, "no such list of arguments"),
    })
}

exports! {
    /// `aclrtLaunchKernelWithArgsArray`.
    fn aclrtLaunchKernelWithArgsArray(
        kernel: *mut c_void,
        blocks: u32,
        stream: *mut c_void,
        config: *mut LaunchConfig,
        args: *mut *mut c_void,
    ) {
        let function = function(kernel)?;
        let (offsets, size) = function.layout();
        let mut block = vec![0; size];
        for (i, (&offset, &length)) in offsets.iter().zip(&function.parameters).enumerate() {
            // SAFETY: by the contract one pointer for each parameter.
            let pointer = unsafe { *args.add(i) };
            block[offset..offset + length].copy_from_slice(&bytes(pointer, length)?);
        }
        launch(function, blocks, Arguments::Bytes(block), config, stream)
    }

    /// `aclrtLaunchKernelWithHostArgs`.
    fn aclrtLaunchKernelWithHostArgs(
        kernel: *mut c_void,
        blocks: u32,
        stream: *mut c_void,
        config: *mut LaunchConfig,
        args: *mut c_void,
        count: usize,
        _placeholders: *mut c_void,
        placeholder_count: usize,
    ) {
        if placeholder_count > 0 {
            return fail(PARAM, "the stand-in has no placeholders");
        }
        launch(function(kernel)?, blocks, Arguments::Bytes(bytes(args, count)?), config, stream)
    }

    /// `aclrtKernelArgsInit`.
    fn aclrtKernelArgsInit(kernel: *mut c_void, list: *mut *mut c_void) {
        function(kernel)?;
        let token = WORLD.token();
        LIST.set(Some(List { token, bytes: Vec::new(), count: 0, finalised: false }));
        put(list, token as *mut c_void)
    }

    /// `aclrtKernelArgsAppend`: every entry at a multiple of 8 bytes.
    fn aclrtKernelArgsAppend(
        list: *mut c_void,
        value: *mut c_void,
        count: usize,
        parameter: *mut *mut c_void,
    ) {
        let value = bytes(value, count)?;
        with_list(list, |list| {
            if list.finalised || list.count == MOST {
                return fail(PARAM, "the list takes no more");
            }
            list.bytes.resize(list.bytes.len().next_multiple_of(8), 0);
            list.bytes.extend_from_slice(&value);
            list.count += 1;
            put(parameter, (list.token + list.count) as *mut c_void)
        })
    }

    /// `aclrtKernelArgsFinalize`.
    fn aclrtKernelArgsFinalize(list: *mut c_void) {
        with_list(list, |list| {
            list.finalised = true;
            Ok(())
        })
    }

    /// `aclrtLaunchKernelWithConfig`.
    fn aclrtLaunchKernelWithConfig(
        kernel: *mut c_void,
        blocks: u32,
        stream: *mut c_void,
        config: *mut LaunchConfig,
        list: *mut c_void,
        reserved: *mut c_void,
    ) {
        if !reserved.is_null() {
            return fail(PARAM, "the reserved argument is not null");
        }
        let args = with_list(list, |list| match list.finalised {
            true => Ok(list.bytes.clone()),
            false => fail(PARAM, "the list is not finalised"),
        })?;
        launch(function(kernel)?, blocks, Arguments::Bytes(args), config, stream)
    }

    /// `aclrtLaunchKernel`: arguments are read on the device, when the kernel starts.
    fn aclrtLaunchKernel(
        kernel: *mut c_void,
        blocks: u32,
        args: *const c_void,
        count: usize,
        stream: *mut c_void,
    ) {
        if count > 0 && !WORLD.state().is_device(args as usize, count) {
            return fail(PARAM, "arguments outside of device memory");
        }
        let args = Arguments::Device(args as usize, count);
        launch(function(kernel)?, blocks, args, std::ptr::null_mut(), stream)
    }
}
