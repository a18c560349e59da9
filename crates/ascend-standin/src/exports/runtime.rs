//! libruntime: the rung below ACL.

use super::binary::load;
use super::launch::launch;
use super::{bytes, exports, put, text};
use crate::outcome::{HANDLE, PARAM, fail};
use crate::stream::Arguments;
use crate::world::WORLD;
use headwater_ascend::host::acl::types::RuntimeBinary;
use std::ffi::{c_char, c_void};

exports! {
    /// `rtDevBinaryRegister`.
    fn rtDevBinaryRegister(binary: *const RuntimeBinary, handle: *mut *mut c_void) {
        if binary.is_null() {
            return fail(PARAM, "no binary");
        }
        // SAFETY: not null, and by the contract such a structure.
        let binary = unsafe { &*binary };
        let token = load(&bytes(binary.data, binary.length as usize)?, Some(binary.magic))?;
        put(handle, token as *mut c_void)
    }

    /// `rtDevBinaryUnRegister`.
    fn rtDevBinaryUnRegister(handle: *mut c_void) {
        let mut state = WORLD.state();
        if state.binaries.remove(&(handle as usize)).is_none() {
            return fail(HANDLE, "no such binary");
        }
        state.stubs.retain(|_, (of, _)| *of != handle as usize);
        Ok(())
    }

    /// `rtFunctionRegister`.
    fn rtFunctionRegister(
        binary: *mut c_void,
        stub: *const c_void,
        stub_name: *const c_char,
        kernel: *const c_void,
        _mode: u32,
    ) {
        let (_, name) = (text(stub_name)?, text(kernel.cast())?);
        let mut state = WORLD.state();
        let Some(loaded) = state.binaries.get(&(binary as usize)) else {
            return fail(HANDLE, "no such binary");
        };
        let Some(function) = loaded.kernels.iter().find(|k| k.name == name).cloned() else {
            return fail(PARAM, format!("the binary has no kernel {name}"));
        };
        if state.stubs.contains_key(&(stub as usize)) {
            return fail(507_028, "registered twice");
        }
        state.stubs.insert(stub as usize, (binary as usize, function));
        Ok(())
    }

    /// `rtKernelLaunch`.
    fn rtKernelLaunch(
        stub: *const c_void,
        blocks: u32,
        args: *mut c_void,
        count: u32,
        _memory: *mut c_void,
        stream: *mut c_void,
    ) {
        let function = WORLD.state().stubs.get(&(stub as usize)).map(|(_, f)| f.clone());
        let Some(function) = function else { return fail(507_027, "no such kernel") };
        let args = Arguments::Bytes(bytes(args, count as usize)?);
        launch(function, blocks, args, std::ptr::null_mut(), stream)
    }

    /// `rtGetC2cCtrlAddr`.
    fn rtGetC2cCtrlAddr(address: *mut u64, bytes: *mut u32) {
        put(address, 0xFF75_0000)?;
        put(bytes, 4096)
    }
}
