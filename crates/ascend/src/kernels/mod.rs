//! Kernels written by hand.

mod add;

pub use add::add;
