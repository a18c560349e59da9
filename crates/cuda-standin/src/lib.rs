//! A stand-in for NVIDIA's driver, NVRTC and cuBLASLt: the same C interface over this machine's memory and a
//! C++ compiler. Tests drive the CUDA device through the dynamic linker, as on a machine with a GPU. There is
//! no code of the vendor's here.
//!
//! As a dynamic library it is put in the place of `libcuda.so.1`, `libnvrtc.so.13` and `libcublasLt.so.13` by
//! [`install`]. A "binary" is a dynamic library that the C++ compiler makes of the very text that NVRTC would
//! get, with `simt.h` in the middle of the prelude. A launch runs block after block, threads as fibers, and
//! checks bounds, unwritten bytes, races, barriers and exchanges of lanes ([`machine`]). `standin_…`
//! functions ([`exports::control`]) configure it, make calls fail and count handles. Needs an x86-64 and a
//! C++ compiler; [`install::missing`] says what lacks.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]
// The C interface takes raw pointers in safe-looking functions; the host side's wrappers are its only
// callers.
#![allow(clippy::not_unsafe_ptr_arg_deref)]
// Fields and functions of the stand-in are named after what they stand for.
#![allow(missing_docs)]

pub mod exports;
mod fiber;
pub mod install;
pub mod machine;
pub mod memory;
pub mod product;
pub mod world;
