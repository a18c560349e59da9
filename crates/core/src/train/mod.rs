//! Training state as passes see it: flat storage of what is trained, gradients summed over micro-batches, and
//! the update of a step.

mod accumulate;
mod bind;
mod key;
pub mod layout;
mod span;
pub mod update;

pub use accumulate::accumulate;
pub use bind::bind;
pub use key::{Kept, StateKey};
pub use layout::{BLOCK, Bucket, BucketLayout, BucketSize, Entry, Master};
pub use span::Span;
pub use update::{Clip, Moment, UpdateRule, update_graph, zero_graph};
