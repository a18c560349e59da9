//! Tests of the CPU device, one executable; those that replace the allocator are executables of their own.

mod attention;
mod common;
mod contract;
mod convolution;
mod custom_kernel;
mod embedding_grad;
mod empty;
mod in_place;
mod max_pool;
mod norms;
mod operators;
mod pairs;
