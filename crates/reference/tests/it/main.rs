//! Tests of the reference device, one executable.

mod callable;
mod contract;
mod halves;
mod operators;
mod streams;
mod world;
