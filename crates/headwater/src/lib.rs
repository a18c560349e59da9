//! Headwater: take a PyTorch model as `torch.export` saves it and train it on another machine, in mixed
//! precision, checked number by number against PyTorch.
//!
//! This crate is the facade: the library that users link and the command line. It owns what people see
//! (reports, tables, commands), and what compares runs: the check against PyTorch, the choice of precision by
//! measuring. Operators, passes, devices and the training loop are in the other crates.
#![deny(clippy::print_stderr, clippy::print_stdout)]
#![forbid(unsafe_code)]

pub mod auto;
pub mod bench;
pub mod check;
pub mod cli;
pub mod compare;
pub mod compile;
pub mod conformance;
pub mod curve;
pub mod devices;
pub mod export;
pub mod fit;
pub mod golden;
pub mod infer;
pub mod inspect;
pub mod kernels;
pub mod machine;
pub mod migrate;
pub mod model;
pub mod precision;
pub mod predicted;
pub mod report;
pub mod settings;
pub mod tensors;
pub mod trace;
pub mod train;
pub mod weights;
pub mod words;

pub use headwater_core as core;
pub use headwater_cpu as cpu;
pub use headwater_import as import;
pub use headwater_runtime as runtime;
