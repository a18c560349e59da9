//! Tests of the graph, operators and passes, one executable.

mod common;
mod compile;
mod custom_operator;
mod derivatives;
mod differentiation;
mod distribute;
mod elementary;
mod fusion;
mod lift;
mod modules;
mod narrow;
mod operators;
mod pack;
mod plan_text;
mod planning;
mod ranks;
mod recognize;
mod recognize_attention;
mod recompute;
mod rematerialize;
mod scaling;
mod sensitivity;
mod simplify;
mod stats;
mod text;
mod verify;
