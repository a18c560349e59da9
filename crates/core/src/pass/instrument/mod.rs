//! Instrumentation of a step: probes of each node's value, counts of gradients that rounding flushes to zero,
//! and injected faults.

mod probes;
mod underflow;

pub use probes::{FAULT, Fault, Probe, inject, probes};
pub use underflow::underflow;
