//! The Ascend device of the core's contract: plans on NPUs, over the host side, and on the simulator.
//!
//! Both run the same executable: steps become launches of kernels when a plan is loaded, kernels that differ in names
//! alone are compiled once, and scratch memory is taken once. A step without a kernel runs through the reference
//! interpreter on the host, on bytes that are fetched for it and written back: correct and slow, and `inspect` says so
//! with the reason. What differs between the two devices is behind one small trait.

mod executable;
mod host_step;
mod machine;
mod npu;
mod npu_memory;
mod npu_stream;
mod place;
mod predict;
mod simulator;
mod survey;
mod target;
mod vendor;

pub use npu::Ascend;
pub use predict::predict;
pub use simulator::AscendSim;
pub use survey::{LAUNCH, REPLAY};
pub use vendor::AscendOps;
