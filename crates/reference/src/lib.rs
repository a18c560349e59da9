//! The reference device: plans run through the core's interpreter, slowly and correctly, in a memory space of
//! its own.
//!
//! It is the strictest device that the contract of [`headwater_core::device`] allows, so what is right on it
//! is right on any:
//!
//! * Work is delayed until somebody waits, and the streams take turns in an order that a seed decides
//!   ([`machine`]).
//! * Vector clocks find two streams that use the same bytes, one of them to write, without an event between
//!   them. They do so in whatever order the two happened to run (Fidge 1988, Mattern 1989).
//! * Fresh memory is poisoned, and so is what no step uses any more. A read of bytes that nobody wrote is an
//!   error that names the operator and the model's line ([`memory`]).
//! * Memory is aligned to 512 bytes and no host memory can be lent.
//! * It computes in neither f64 nor i64, unless asked.
//! * Several of them meet in collectives ([`Reference::world`]). Ranks that issue different ones, or in
//!   another order, are an error that names both and their lines.
//!
//! It knows no model and no pass. A new device starts as a copy of this crate.
#![forbid(unsafe_code)]

mod clock;
pub mod device;
mod executable;
pub mod machine;
mod meeting;
pub mod memory;
mod stream;

pub use device::Reference;
