//! The CUDA device: NVIDIA's GPUs.
//!
//! Row programs and small kernels are CUDA C text ([`text`]), compiled by NVRTC at run time; products are
//! cuBLASLt's. The driver and both libraries are opened at run time ([`host`]), so nothing of the vendor's is
//! needed to build or to test. Steps become launches in [`lower`]; the rest runs through the reference on the
//! host. Not yet measured on hardware: tests run the very text on a stand-in for the libraries. Knows the
//! core's plans; nothing of models, training or files.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod device;
pub mod host;
pub mod lower;
pub mod offline;
pub mod program;
mod target;
pub mod text;

pub use device::Cuda;
pub use offline::Offline;
pub use program::CudaProgram;
