//! Passes: graph to graph, each small, printable and tested alone; the last, `lower`, makes the plan. One
//! folder or file for each stage of `compile::STAGES`, in its order, then what stages share.

mod canonical;
pub mod decompose;
mod demand;
pub mod differentiate;
mod distribute;
pub mod epilogues;
pub mod evaluation;
pub mod fuse;
pub mod host;
pub mod instrument;
pub mod lower;
pub mod masks;
pub mod narrow_integers;
pub mod pack;
pub mod precision;
pub mod products;
pub mod recognize;
mod recompute;
mod rematerialize;
pub mod simplify;
pub mod split_wide;
pub mod upcast;

pub mod bound;
mod phases;
mod rebuild;

pub use canonical::{canonical, mixed};
pub use decompose::{decompose, decompose_forward};
pub use demand::demand;
pub use differentiate::{differentiate, differentiate_scaled, vjp};
pub use distribute::distribute;
pub use epilogues::epilogues;
pub use evaluation::{evaluation, without_dropout};
pub use fuse::{fuse, fuse_halves};
pub use host::on_host;
pub use instrument::{inject, probes, underflow};
pub use lower::{STREAMS, check_plan, plan, plan_halves};
pub use masks::masks_as_means;
pub use narrow_integers::narrow_integers;
pub use pack::pack;
pub use products::join_products;
pub use recognize::recognize;
pub use recompute::recompute;
pub use rematerialize::{Rematerialized, rematerialize};
pub use simplify::simplify;
pub use split_wide::split_wide;
pub use upcast::upcast;
