//! The runtime of devices that compile kernels: launches and their arguments, scratch memory, steps on the
//! host, recordings of launches, distinct kernels, the cache of binaries, and the way each step would run.
//!
//! A device is a [`Driver`]. It turns a step into launches ([`Lowered`]) of its own programs ([`Program`]),
//! or refuses it with the construct that has no kernel ([`Refusal`]); then the step runs through the
//! reference interpreter on the host, on bytes that are fetched for it and written back. [`Loaded`] is the
//! executable of all such devices. Knows no chip, no language of kernels and no vendor's library.

mod cache;
mod distinct;
mod driver;
mod executable;
mod host;
mod host_step;
mod host_stream;
mod lowered;
mod place;
mod site;
mod survey;
mod used;

pub use cache::{Cache, FileError};
pub use distinct::{Distinct, hash};
pub use driver::{BoundArgument, BoundLaunch, Driver, IndexFault, Queue};
pub use executable::Loaded;
pub use host::{Host, HostBuffer, memory_of};
pub use host_stream::HostStream;
pub use lowered::{
    LibraryOperand, LibraryStep, Lowered, LoweredArg, LoweredLaunch, Parameter, ParameterKind, Program,
    Refusal,
};
pub use site::Site;
pub use survey::survey;
pub use used::Used;
