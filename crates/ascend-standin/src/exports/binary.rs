//! Loading of binaries and lookup of kernels.

use super::{bytes, exports, put, text};
use crate::binary::{ANY, StandinBinary};
use crate::function::Function;
use crate::outcome::{HANDLE, Outcome, PARAM, fail};
use crate::world::{Loaded, WORLD};
use headwater_ascend::host::acl::types::{LOAD_MAGIC, LoadOptions};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// Loads bytes for the current device; `magic` is what the caller says of the cores, if anything.
pub(super) fn load(data: &[u8], magic: Option<u32>) -> Outcome<usize> {
    let wrong = |text: String| (PARAM, text);
    let binary = StandinBinary::parse(data).map_err(wrong)?;
    if !binary.linked {
        return fail(PARAM, "an object that was not linked");
    }
    if binary.arch != WORLD.arch() {
        return fail(PARAM, format!("a binary for {} on {}", binary.arch, WORLD.config.soc));
    }
    if binary.magic != ANY && magic.is_some_and(|m| m != binary.magic) {
        return fail(PARAM, "the magic word is not the binary's");
    }
    let kernels = binary.kernels.iter().map(|k| Function::parse(k, &WORLD.config.soc).map(Arc::new));
    let kernels = kernels.collect::<Result<_, _>>().map_err(wrong)?;
    let mut state = WORLD.state();
    state.current()?;
    let token = WORLD.token();
    state.binaries.insert(token, Loaded { kernels });
    Ok(token)
}

/// The magic word among options of a load.
fn magic_of(options: *const LoadOptions) -> Option<u32> {
    if options.is_null() {
        return None;
    }
    // SAFETY: not null, and by the contract options with so many entries.
    let list = unsafe { std::slice::from_raw_parts((*options).options, (*options).count) };
    list.iter().find(|o| o.kind == LOAD_MAGIC).map(|o| o.value[0])
}

exports! {
    /// `aclrtBinaryLoadFromData`.
    fn aclrtBinaryLoadFromData(
        data: *const c_void,
        count: usize,
        options: *const LoadOptions,
        binary: *mut *mut c_void,
    ) {
        let token = load(&bytes(data, count)?, magic_of(options))?;
        put(binary, token as *mut c_void)
    }

    /// `aclrtBinaryLoadFromFile`.
    fn aclrtBinaryLoadFromFile(path: *const c_char, options: *mut LoadOptions, binary: *mut *mut c_void) {
        let path = text(path)?;
        if !path.starts_with('/') {
            return fail(PARAM, format!("{path} is no absolute path"));
        }
        let data = std::fs::read(&path).map_err(|e| (100_003, format!("{path}: {e}")))?;
        let token = load(&data, magic_of(options))?;
        put(binary, token as *mut c_void)
    }

    /// `aclrtDestroyBinary`.
    fn aclrtDestroyBinary(binary: *mut c_void) {
        match WORLD.state().described.remove(&(binary as usize)) {
            Some(_) => Ok(()),
            None => fail(HANDLE, "no such description"),
        }
    }

    /// `aclrtBinaryLoad`.
    fn aclrtBinaryLoad(described: *mut c_void, binary: *mut *mut c_void) {
        let data = WORLD.state().described.get(&(described as usize)).cloned();
        let token = load(&data.ok_or((HANDLE, "no such description".to_string()))?, None)?;
        put(binary, token as *mut c_void)
    }

    /// `aclrtBinaryUnLoad`.
    fn aclrtBinaryUnLoad(binary: *mut c_void) {
        let mut state = WORLD.state();
        if state.binaries.remove(&(binary as usize)).is_none() {
            return fail(HANDLE, "no such binary");
        }
        state.functions.retain(|_, (of, _)| *of != binary as usize);
        Ok(())
    }

    /// `aclrtBinaryGetFunction`.
    fn aclrtBinaryGetFunction(binary: *mut c_void, name: *const c_char, kernel: *mut *mut c_void) {
        let name = text(name)?;
        let mut state = WORLD.state();
        let Some(loaded) = state.binaries.get(&(binary as usize)) else {
            return fail(HANDLE, "no such binary");
        };
        let Some(function) = loaded.kernels.iter().find(|k| k.name == name).cloned() else {
            return fail(PARAM, format!("the binary has no kernel {name}"));
        };
        let token = WORLD.token();
        state.functions.insert(token, (binary as usize, function));
        put(kernel, token as *mut c_void)
    }
}

/// `aclrtCreateBinary`.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtCreateBinary(data: *const c_void, count: usize) -> *mut c_void {
    let mut made = std::ptr::null_mut();
    crate::world::call("aclrtCreateBinary", || {
        let data = bytes(data, count)?;
        let token = WORLD.token();
        WORLD.state().described.insert(token, data);
        made = token as *mut c_void;
        Ok(())
    });
    made
}
