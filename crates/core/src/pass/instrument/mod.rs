//! Nodes that look at a step: what each node makes, gradients that rounding flushes to zero, and faults on purpose.

mod probes;
mod underflow;

pub use probes::{FAULT, Fault, Probe, inject, probes};
pub use underflow::underflow;
