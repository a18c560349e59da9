//! Passes: graph to graph, each small, printable and tested alone. In the order of a compilation:
//! decompose, (precision), diff, simplify, (update, shard, fuse), lower to a plan.

pub mod diff;
