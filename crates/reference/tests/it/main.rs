//! Tests of the reference device, one executable.

mod contract;
mod halves;
mod operators;
mod streams;
