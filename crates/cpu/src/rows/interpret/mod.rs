//! The interpreter: a sequence of operations on tiles, each a loop compiled for every instruction set. Blocks
//! of the iteration space go over threads (`blocks`), tiles over the operations (`tile`), whose loops
//! `dispatch` looks up when a program is scheduled.

mod blocks;
pub(super) mod dispatch;
pub(crate) mod functions;
pub(super) mod loops;
pub(super) mod run;
pub(super) mod scratch;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod simd;
mod tile;
mod transpose;
