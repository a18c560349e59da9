//! Training state as passes see it: flat storage of what is trained, gradients summed over micro-batches, and
//! the update of a step.

mod accumulate;
mod bind;
mod carried;
mod key;
pub mod layout;
mod reduce;
mod span;
mod sparse;
pub mod states;
pub mod update;

pub use accumulate::accumulate;
pub use bind::bind;
pub use carried::carried;
pub use key::{Kept, StateKey};
pub use layout::{BLOCK, Bucket, BucketLayout, BucketSize, Entry, Master, MomentForm};
pub use reduce::reduce;
pub use span::Span;
pub(crate) use sparse::sparse_tables;
pub use sparse::{SparseEmbeddings, sparse_gradients};
pub use update::{Clip, Moment, UpdateRule, join_graph, sum_graph, update_graph, zero_graph};
