//! Training state as passes see it: flat storage of what is trained, and gradients summed over micro-batches.

mod accumulate;
pub mod layout;

pub use accumulate::{accumulate, gradient_name};
pub use layout::{BLOCK, Bucket, BucketLayout, Entry, Master};
