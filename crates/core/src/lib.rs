//! Headwater's core: the graph, its operators, and the passes that turn a forward graph into a planned
//! training step.
//!
//! Plain data and pure functions. No I/O, no threads, nothing unsafe is done: [`device::Foreign`] alone
//! states a contract for those who do. Nothing here knows a device beyond its `Target`.
#![deny(clippy::print_stderr, clippy::print_stdout)]
#![deny(unsafe_code)]

pub mod attr;
pub mod axes;
pub mod callable;
pub mod carry;
pub mod compile;
pub mod conformance;
pub mod device;
pub mod diagnostic;
pub mod dtype;
pub mod evaluate;
mod exact;
pub mod exactness;
pub mod expand;
pub mod expr;
pub mod graph;
pub mod ops;
pub mod origin;
pub mod pass;
pub mod plan;
pub mod random;
pub mod ranks;
pub mod reference;
pub mod row;
pub mod shape;
pub mod stats;
mod syntax;
pub mod target;
pub mod tensor;
pub mod train;

pub use attr::{Attr, Attrs};
pub use diagnostic::{Code, Error, Result};
pub use dtype::{Class, DType};
pub use evaluate::evaluate;
pub use graph::{Builder, Graph, Node, NodeId, ValueId};
pub use ops::{OpCx, OpDef, Registry};
pub use shape::{Layout, Shape};
pub use tensor::{Tensor, TensorType};
