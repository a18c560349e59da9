//! Reads PyTorch exports into Headwater graphs: archives (`.pt2`), or their JSON in memory.
//!
//! The only reader of untrusted bytes: whatever a file holds, the answer is a graph or a typed error with a
//! stable code, never a panic, and never more memory than the file justifies. Pickles are never opened.
//! Stored weights are lent from a memory map. Knows the core's graph and operators, and no device.
#![deny(clippy::print_stderr, clippy::print_stdout)]
#![deny(unsafe_code)]

pub mod archive;
mod arguments;
mod bind;
mod complex;
mod control;
mod conversions;
pub mod dims;
pub mod error;
mod escape;
mod functionalize;
mod importer;
mod masked;
mod origin;
pub mod program;
pub mod report;
mod rewrite;
mod schema;
mod scope;
mod state;
pub mod symbolic;
mod verify;
mod ways_out;
pub mod weights;

pub use archive::{Archive, on_lost_file};
pub use bind::Imported;
pub use dims::Dims;
pub use error::{Code, Error, Result};
pub use program::{Program, Symbol, SymbolicInput};
pub use report::{Note, Unsupported, UnsupportedUse};
pub use rewrite::DROPOUT_OFF;
pub use weights::{GivenTensor, StoredTensor};
