//! The Ascend device: Huawei's NPUs of the generations A2/A3 (`__NPU_ARCH__` 2201) and 310P (2002).
//!
//! A kernel is one typed instruction program ([`kernel`]). Ascend C text and the simulator's execution both
//! come from it, so they cannot diverge. [`chip`] is the table of what a chip has; what it lacks is refused
//! when a program is verified, never at run time. The [`host`] side opens the vendor's libraries at run time;
//! nothing here is needed to build. Knows the core's graphs and plans; nothing of models, training or files.

pub mod aclnn;
pub mod chip;
pub mod device;
pub mod emit;
pub mod host;
pub mod kernel;
pub mod kernels;
pub mod lower;
pub mod sim;
pub mod timing;
mod words;

pub use chip::{Arch, Chip};
pub use kernel::finding::{Finding, Rule};
