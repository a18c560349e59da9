//! A stand-in for CANN's libraries and compilers: the same C interface over this machine's memory and
//! threads. Tests drive the host path of `headwater-ascend` through the dynamic linker, as on a machine with
//! an NPU.
//!
//! As a dynamic library it is put in the place of `libascendcl.so`, `libruntime.so` and `libacl_rtc.so` by
//! [`install`], which also hides the functions that an older CANN lacks. `standin_…` functions
//! ([`exports::control`]) make calls fail, lose a device, and count what is live. A binary holds the text of
//! kernel programs, and [`run`] has the simulator run them; there is no code of the vendor's here and none is
//! needed.
//!
//! Behaviour follows CANN's public reference where it is stated: handles are checked, work of a stream is
//! asynchronous and in order, a failed task is reported to the exception callback and returned by the next
//! wait. Device memory begins with a pattern, at addresses that are aligned to no more than 64 bytes.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]
// The C interface takes raw pointers in safe-looking functions; the host side's wrappers are its only
// callers.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

mod arena;
pub mod binary;
mod compute;
pub mod config;
pub mod exports;
mod function;
pub mod install;
mod operator;
mod outcome;
mod program;
pub mod run;
mod stream;
mod worker;
mod world;
