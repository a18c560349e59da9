//! Steps of plans as launches of kernels.
//!
//! A step either becomes launches ([`Lowered`]) or is refused with the construct that has no kernel ([`Refusal`]); then
//! it runs through the reference on the host, and reports list it with that reason. Devices lower steps when they load a
//! plan; nothing here executes anything.

mod launch;
mod rows;

pub use launch::{Arg, Launch, Lowered, Refusal};
pub use rows::rows;
