//! The events of a run, written down: JSON lines and TensorBoard event files. Observers of the trainer; they
//! change nothing.

mod json;
mod tensorboard;

pub use json::JsonLines;
pub use tensorboard::TensorBoard;
