//! The vendor's libraries, opened at run time: the driver (libcuda), the compiler (NVRTC) and matrix products
//! (cuBLASLt).
//!
//! Each is a table of functions found by name ([`table`]). A machine without one gets an error that names
//! what is missing, where it was searched for and what works without it. Objects own their handles and
//! release them when dropped. A context whose work failed gives its first error to every later call.

pub mod compile;
pub mod context;
pub mod error;
pub mod graph;
pub mod library;
pub mod memory;
pub mod products;
pub mod stream;
pub mod survey;
pub mod table;

pub use compile::Compiler;
pub use context::Context;
pub use error::{Error, Result};
pub use library::Installation;
pub use memory::{DeviceMemory, PinnedMemory};
pub use stream::{Event, Function, Pending, Stream};
pub use survey::Survey;
