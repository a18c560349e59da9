//! Passes: graph to graph, each small, printable and tested alone. In the order of a compilation:
//! (precision), recognize, decompose, narrow, diff, simplify, (update, shard), fuse, recompute, lower to a
//! plan, memory.

pub mod bound;
mod canonical;
mod check;
pub mod decompose;
pub mod diff;
mod draft;
pub mod evaluation;
pub mod fuse;
mod halves;
pub mod host;
pub mod integers;
mod join;
mod layouts;
pub mod lift;
pub mod lower;
mod memory;
mod merge;
mod narrow;
mod order;
pub mod precision;
mod rebuild;
pub mod recognize;
mod recompute;
mod regroup;
mod rematerialize;
mod reuse;
pub mod sensitivity;
pub mod simplify;
mod streams;
pub mod taps;
mod turned;
pub mod underflow;
pub mod wide;

pub use canonical::{canonical, mixed};
pub use check::check_plan;
pub use decompose::decompose;
pub use diff::{differentiate, differentiate_scaled, vjp};
pub use evaluation::{evaluation, without_dropout};
pub use fuse::{fuse, fuse_halves};
pub use host::on_host;
pub use integers::narrow_integers;
pub use lift::lift;
pub use lower::{Streams, plan, plan_halves, plan_on_streams};
pub use narrow::narrow;
pub use order::STREAMS;
pub use recognize::recognize;
pub use recompute::recompute;
pub use rematerialize::{Rematerialized, rematerialize};
pub use sensitivity::sensitivity;
pub use simplify::simplify;
pub use taps::{inject, taps};
pub use underflow::underflow;
pub use wide::split_wide;
