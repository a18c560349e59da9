//! aclrtc: compilation in this process.
#![allow(unsafe_code)]

use super::{CompileUnit, failed, file_name};
use crate::host::acl::symbols::Compilation;
use crate::host::acl::types::ProgHandle;
use crate::host::codes::{self, Status};
use crate::host::error::{Error, Result};
use std::ffi::{CString, c_char};

/// Status codes of aclrtc begin with these; the table of `aclError` has them not.
fn describe(status: Status) -> String {
    let known = match status {
        176_000 => "the program is invalid",
        176_001 => "an input is invalid",
        176_002 => "an option is invalid",
        176_003 => "the source does not compile",
        176_004 => "the object does not link",
        276_000 | 276_001 => "no memory for the compilation",
        576_000 => "the compiler failed",
        other => return codes::describe(other),
    };
    format!("{known} ({status})")
}

/// A compilation, destroyed when dropped.
struct Program<'a> {
    functions: &'a Compilation,
    handle: ProgHandle,
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `aclrtcCreateProg`, destroyed once.
        unsafe { (self.functions.aclrtcDestroyProg)(&mut self.handle) };
    }
}

impl Program<'_> {
    /// Bytes by a function that tells their count and one that writes them.
    fn bytes(
        &self,
        size: unsafe extern "C" fn(ProgHandle, *mut usize) -> Status,
        data: unsafe extern "C" fn(ProgHandle, *mut c_char) -> Status,
    ) -> std::result::Result<Vec<u8>, Status> {
        let mut count = 0;
        // SAFETY: the program is alive; writes one number.
        match unsafe { size(self.handle, &mut count) } {
            0 => {}
            status => return Err(status),
        }
        let mut bytes = vec![0u8; count];
        // SAFETY: the program is alive, and the buffer has the size that it states.
        match unsafe { data(self.handle, bytes.as_mut_ptr().cast()) } {
            0 => Ok(bytes),
            status => Err(status),
        }
    }
}

/// Compiles a unit.
///
/// # Errors
/// [`Error::Compile`] with the compiler's log.
pub(super) fn compile(functions: &Compilation, unit: &CompileUnit, flags: &[String]) -> Result<Vec<u8>> {
    let c_text = |text: &str| {
        CString::new(text).map_err(|_| Error::Usage(format!("the unit {} has a zero in its text", unit.name)))
    };
    let fail = |status, log: &str| failed("aclrtc", unit, describe(status), log);
    // The suffix names the language.
    let (source, name) = (c_text(&unit.source)?, c_text(&file_name(unit, "asc"))?);
    let flags = flags.iter().map(|f| c_text(f)).collect::<Result<Vec<_>>>()?;
    let pointers: Vec<*const c_char> = flags.iter().map(|f| f.as_ptr()).collect();
    let mut handle = ProgHandle::NULL;
    // SAFETY: both texts end with 0 and are copied by the call; there are no headers. Writes one handle.
    let status = unsafe {
        (functions.aclrtcCreateProg)(
            &mut handle,
            source.as_ptr(),
            name.as_ptr(),
            0,
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    if status != 0 {
        return Err(fail(status, ""));
    }
    let program = Program { functions, handle };
    // SAFETY: the program is alive; so many texts that end with 0.
    let status = unsafe { (functions.aclrtcCompileProg)(handle, pointers.len() as i32, pointers.as_ptr()) };
    if status != 0 {
        let log = program.bytes(functions.aclrtcGetCompileLogSize, functions.aclrtcGetCompileLog);
        let log = String::from_utf8_lossy(&log.unwrap_or_default()).into_owned();
        return Err(fail(status, log.trim_end_matches('\0')));
    }
    let bytes = program.bytes(functions.aclrtcGetBinDataSize, functions.aclrtcGetBinData);
    match bytes {
        Ok(bytes) if !bytes.is_empty() => Ok(bytes),
        Ok(_) => Err(failed("aclrtc", unit, "it gave no bytes".into(), "")),
        Err(status) => Err(fail(status, "")),
    }
}
