//! The CPU device: runs plans of the core. Owns memory, threads, the row-program evaluator, matrix products
//! and the kernel families; the only crate with `core::arch`. Knows plans and operators, but nothing of
//! models, training or files.
//!
//! Every view of a plan is checked once, when the plan is loaded; inner loops rely on it. Work is split by
//! sizes alone, so that results have the same bits for any number of threads.
#![deny(clippy::print_stderr, clippy::print_stdout)]
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod buffer;
pub mod device;
pub mod element;
mod executor;
pub mod free;
pub mod gemm;
pub mod kernels;
pub mod limits;
mod math;
mod matrix;
pub mod memory;
pub mod pool;
mod prefetch;
mod rows;
mod simd;
mod stream;
mod target;
pub mod tier;
pub mod view;
pub mod workspace;

pub use device::Cpu;
pub use kernels::Kernel;
pub use memory::CpuMemory;
pub use pool::Pool;
pub use tier::Tier;
