//! aclrtc: compilation in the process.

use super::{exports, put, text};
use crate::binary::{ANY, StandinBinary, programs_of};
use crate::outcome::{Outcome, PARAM, fail};
use crate::world::{RtcProgram, State, WORLD};
use std::ffi::{c_char, c_int, c_void};

fn program(state: &mut State, handle: *mut c_void) -> Outcome<&mut RtcProgram> {
    state.programs.get_mut(&(handle as usize)).ok_or((176_000, "no such program".into()))
}

fn copy_out(data: &[u8], to: *mut c_char) -> Outcome {
    if to.is_null() {
        return fail(PARAM, "no place for the data");
    }
    // SAFETY: by the contract the buffer has as many bytes as the size that the caller queried.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to.cast(), data.len()) };
    Ok(())
}

exports! {
    /// `aclrtcCreateProg`.
    fn aclrtcCreateProg(
        program: *mut *mut c_void,
        source: *const c_char,
        name: *const c_char,
        header_count: c_int,
        _headers: *const *const c_char,
        _include_names: *const *const c_char,
    ) {
        if header_count != 0 {
            return fail(176_001, "headers are not taken");
        }
        let made = RtcProgram { source: text(source)?, name: text(name)?, binary: Vec::new(), log: String::new() };
        let token = WORLD.token();
        WORLD.state().programs.insert(token, made);
        put(program, token as *mut c_void)
    }

    /// `aclrtcCompileProg`.
    fn aclrtcCompileProg(handle: *mut c_void, count: c_int, options: *const *const c_char) {
        let mut list = Vec::new();
        for i in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: by the contract so many texts.
            list.push(text(unsafe { *options.add(i) })?);
        }
        let mut state = WORLD.state();
        let own = program(&mut state, handle)?;
        if !own.name.ends_with(".asc") || !list.iter().any(|o| o == "--npu-arch=dav-2201") {
            own.log = format!("{}: options {list:?} are for no chip that is compiled for here", own.name);
            return fail(176_002, own.log.clone());
        }
        match programs_of(&own.source, &own.name) {
            Ok(kernels) => {
                let binary = StandinBinary { arch: 2201, magic: ANY, linked: true, kernels };
                own.binary = binary.to_bytes();
                Ok(())
            }
            Err(log) => {
                own.log = log.clone();
                fail(176_003, log)
            }
        }
    }

    /// `aclrtcGetBinDataSize`.
    fn aclrtcGetBinDataSize(handle: *mut c_void, size: *mut usize) {
        let length = program(&mut WORLD.state(), handle)?.binary.len();
        put(size, length)
    }

    /// `aclrtcGetBinData`.
    fn aclrtcGetBinData(handle: *mut c_void, data: *mut c_char) {
        copy_out(&program(&mut WORLD.state(), handle)?.binary, data)
    }

    /// `aclrtcGetCompileLogSize`.
    fn aclrtcGetCompileLogSize(handle: *mut c_void, size: *mut usize) {
        let length = program(&mut WORLD.state(), handle)?.log.len();
        put(size, length)
    }

    /// `aclrtcGetCompileLog`.
    fn aclrtcGetCompileLog(handle: *mut c_void, log: *mut c_char) {
        copy_out(program(&mut WORLD.state(), handle)?.log.as_bytes(), log)
    }

    /// `aclrtcDestroyProg`.
    fn aclrtcDestroyProg(handle: *mut *mut c_void) {
        if handle.is_null() {
            return fail(176_001, "no program");
        }
        // SAFETY: not null, and by the contract a handle.
        let own = unsafe { *handle };
        match WORLD.state().programs.remove(&(own as usize)) {
            Some(_) => Ok(()),
            None => fail(176_000, "no such program"),
        }
    }
}
