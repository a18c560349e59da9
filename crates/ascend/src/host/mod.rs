//! The host side: CANN's libraries opened at run time, device memory, streams, compilation and launch.
//!
//! Nothing of the vendor's is needed to build or to test. The libraries are found ([`installation`]) and
//! opened ([`acl`]) when a device is opened; a machine without them gets an error that says what is missing.
//! Objects here own their handles and release them when dropped; a device that failed gives its first error
//! again to every later call.

pub mod acl;
pub mod codes;
pub mod compile;
pub mod device;
pub mod error;
mod exception;
pub mod graph;
pub mod installation;
pub mod launch;
mod log;
pub mod memory;
pub mod operator;
pub mod runtime;
pub mod stream;
pub mod survey;

pub use acl::{LaunchRung, LoadRung};
pub use compile::{CompileUnit, Compiled, Compiler, CompilerOptions};
pub use device::{Device, MemoryInfo};
pub use error::{Error, Result, Site};
pub use graph::Graph;
pub use installation::Installation;
pub use launch::{Argument, CoreKind, Kernel, KernelBinary, Launch, Module};
pub use memory::{DeviceMemory, PinnedMemory};
pub use operator::{Operator, Operators, Workspace};
pub use runtime::{LiveCounts, Runtime, RuntimeSettings};
pub use stream::{Event, Pending, Stream};
pub use survey::Survey;
