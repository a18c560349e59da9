//! The CUDA device over the stand-in for the vendor's libraries.

mod bits;
mod common;
mod conformance;
mod faults;
mod kernels;
mod llama;
mod migrate;
mod mutants;
mod nvrtc;
mod offline;
