//! Tests of sessions, trainer, data and checkpoints, one executable; fuzzing is an executable of its own.

mod buckets;
mod common;
mod data;
mod faults;
mod lanes;
mod lengths;
mod lent;
mod moments;
mod optimizers;
mod precision;
mod ranks;
mod scaler;
mod sparse;
mod training;
mod update_plan;
