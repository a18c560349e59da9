//! Nodes that look at a step: what each node makes, gradients that rounding flushes to zero, and faults on purpose.

mod taps;
mod underflow;

pub use taps::{FAULT, Fault, Tap, inject, taps};
pub use underflow::underflow;
