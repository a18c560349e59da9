//! The Ascend device of the core's contract: plans on NPUs, over the host side, and on the simulator.
//!
//! Both are drivers of `headwater-launch`, whose executable runs plans: steps become launches of kernels, or
//! run through the reference interpreter on the host, and `inspect` says so with the reason.

mod host_side;
mod npu;
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
