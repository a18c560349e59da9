//! Runs plans and owns all mutable state: parameters, moments, buffers, random state, the data's position;
//! trains, evaluates, measures, logs and saves.
//!
//! Knows devices only through `core::device`, and models only as graphs with named inputs: not where they
//! come from. All files it reads are treated as hostile: what they hold ends in typed errors, never in a
//! panic.
#![deny(clippy::print_stderr, clippy::print_stdout)]
#![deny(unsafe_code)]

pub mod adapt;
pub mod amp;
mod average;
mod batches;
mod bytes;
pub mod checkpoint;
pub mod config;
mod course;
pub mod data;
mod digest;
pub mod error;
mod evaluation;
pub mod log;
pub mod optim;
mod quiet;
pub mod scaler;
pub mod schedule;
pub mod score;
pub mod session;
mod together;
pub mod trainer;

pub use average::Average;
pub use batches::Batches;
pub use bytes::Bytes;
pub use checkpoint::Store;
pub use config::TrainConfig;
pub use data::Dataset;
pub use error::{Error, Result};
pub use session::{Session, SessionModel, Weights};
pub use trainer::{Event, Observer, Summary, Trainer};
