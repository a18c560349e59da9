//! The functions of the interface, in files by subject. Every one is counted, and can be made to fail.

pub mod base;
pub mod binary;
pub mod capture;
pub mod compile;
pub mod control;
pub mod launch;
pub mod memory;
pub mod operator;
pub mod runtime;
pub mod stream;

/// Exported functions that return a status.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty),*) -> headwater_ascend::host::codes::Status {
            $crate::world::call(stringify!($name), || $body)
        }
    )*};
}
pub(crate) use exports;

use crate::outcome::{Outcome, PARAM, fail};

/// Writes an output argument.
pub(crate) fn put<T>(address: *mut T, value: T) -> Outcome {
    if address.is_null() {
        return fail(PARAM, "an output is null");
    }
    // SAFETY: not null, and by the interface's contract a place for a value of this type.
    unsafe { address.write(value) };
    Ok(())
}

/// Text of an argument.
pub(crate) fn text(address: *const std::ffi::c_char) -> Outcome<String> {
    if address.is_null() {
        return fail(PARAM, "a text is null");
    }
    // SAFETY: not null, and by the interface's contract a string that ends with 0.
    Ok(unsafe { std::ffi::CStr::from_ptr(address) }.to_string_lossy().into_owned())
}

/// Bytes of an argument.
pub(crate) fn bytes(address: *const std::ffi::c_void, count: usize) -> Outcome<Vec<u8>> {
    if address.is_null() && count > 0 {
        return fail(PARAM, "data is null");
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: not null, and by the interface's contract so many bytes.
    Ok(unsafe { std::slice::from_raw_parts(address.cast::<u8>(), count) }.to_vec())
}
