//! Kernels written by hand.

mod add;
mod embedding_grad;

pub use add::add;
pub use embedding_grad::{EmbeddingGrad, embedding_grad};
