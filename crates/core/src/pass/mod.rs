//! Passes: graph to graph, each small, printable and tested alone. In the order of a compilation:
//! recognize, decompose, (precision), diff, (simplify, update, shard, fuse), lower to a plan, memory.

pub mod bound;
pub mod decompose;
pub mod diff;
pub mod evaluation;
pub mod fuse;
pub mod lift;
pub mod lower;
pub mod memory;
pub mod precision;
mod rebuild;
pub mod recognize;
pub mod sensitivity;
pub mod simplify;
pub mod taps;

pub use decompose::decompose;
pub use diff::{differentiate, differentiate_scaled};
pub use evaluation::evaluation;
pub use fuse::fuse;
pub use lift::lift;
pub use lower::plan;
pub use memory::check_plan;
pub use recognize::recognize;
pub use sensitivity::sensitivity;
pub use simplify::simplify;
pub use taps::{inject, taps};
