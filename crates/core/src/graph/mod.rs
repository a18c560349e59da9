//! The graph: values in static single assignment, nodes in topological order, inputs and outputs with their
//! roles. Owns the data structure; operators, text and passes live elsewhere.

pub mod builder;
mod ops;
pub mod parse;
pub mod text;
pub mod verify;

pub use crate::origin::{NamedDType, Origin, OriginId};
pub use builder::Builder;
pub use parse::parse;
pub use verify::verify;

use crate::attr::Attrs;
use crate::ops::view::slice::SLICE;
use crate::ops::{OpCx, OpDef};
use crate::tensor::TensorType;
use std::fmt;
use std::sync::Arc;

/// A value: an input of the graph or an output of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A node, by its position in the graph's order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// The origin of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Def {
    /// Graph input by position.
    Input(u32),
    /// A node's output by position.
    Node(NodeId, u32),
}

/// A value's type and definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Dtype and shape.
    pub ty: TensorType,
    /// Its one definition.
    pub def: Def,
}

/// Which part of a training step a node belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The model as exported.
    Forward,
    /// Gradients.
    Backward,
    /// Scaling, clipping, optimizer.
    Update,
}

/// One application of an operator.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operator.
    pub op: &'static OpDef,
    /// Tensor arguments in schema order, tensor lists flattened in place; `None` where an optional one is
    /// absent.
    pub inputs: Vec<Option<ValueId>>,
    /// Other arguments, by ATen name.
    pub attrs: Attrs,
    /// Results.
    pub outputs: Vec<ValueId>,
    /// The model's line it comes from.
    pub origin: OriginId,
    /// Part of the step.
    pub phase: Phase,
}

/// The role of a graph input.
#[derive(Clone, Debug, PartialEq)]
pub enum InputRole {
    /// A weight, by its PyTorch name; further names of a tied weight in `aliases`.
    Parameter {
        /// True if it gets a gradient.
        trainable: bool,
        /// Further names under which the state dict holds it.
        aliases: Vec<String>,
    },
    /// State that is not trained; persistent buffers are in the state dict.
    Buffer {
        /// In the state dict.
        persistent: bool,
    },
    /// A tensor constant of the model.
    Constant,
    /// Data that the user feeds.
    User,
    /// `i64[2]`: seed and step, the key of all random numbers.
    Rng,
    /// State of the training step itself: moments, scale, hyperparameters.
    State,
}

/// A graph input.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Its value.
    pub value: ValueId,
    /// PyTorch name (parameters, buffers) or argument name.
    pub name: String,
    /// Its role.
    pub role: InputRole,
}

/// The role of a graph output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputRole {
    /// A result of the model; the first is the loss.
    User,
    /// The new content of an input (a buffer, a parameter, state).
    Mutation(ValueId),
    /// The gradient of the loss with respect to an input.
    Gradient(ValueId),
    /// Gradients of several inputs, or their sums over micro-batches, as one span (`pass::pack`).
    Gradients,
}

/// A graph output.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its value.
    pub value: ValueId,
    /// Name.
    pub name: String,
    /// Its role.
    pub role: OutputRole,
}

/// A computation on tensors. `verify` checks the invariants. Every value has one definition, every node uses
/// only values defined before it, every output type is what the operator's rule infers.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Inputs in order.
    pub inputs: Vec<Input>,
    /// Outputs in order.
    pub outputs: Vec<Output>,
    /// All values, by [`ValueId`].
    pub values: Vec<Value>,
    /// Nodes in topological order, by [`NodeId`].
    pub nodes: Vec<Node>,
    /// Origins, by [`OriginId`]; shared by graphs derived from one another.
    pub origins: Arc<Vec<Origin>>,
}

impl Graph {
    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        &self.values[v.0 as usize].ty
    }

    /// A value.
    pub fn value(&self, v: ValueId) -> &Value {
        &self.values[v.0 as usize]
    }

    /// A node.
    pub fn node(&self, n: NodeId) -> &Node {
        &self.nodes[n.0 as usize]
    }

    /// The node that defines a value, and which of its outputs it is; `None` for an input.
    pub fn producer(&self, v: ValueId) -> Option<(&Node, usize)> {
        match self.value(v).def {
            Def::Input(_) => None,
            Def::Node(n, i) => Some((self.node(n), i as usize)),
        }
    }

    /// The node that makes a value or what it is a slice of, and the nodes that make these slices, the last
    /// first. `None` for an input.
    pub(crate) fn computed(&self, v: ValueId) -> (Option<NodeId>, Vec<NodeId>) {
        let (mut v, mut slices) = (v, Vec::new());
        while let Def::Node(n, _) = self.value(v).def {
            match self.node(n).operands().next() {
                Some(x) if *self.node(n).op == SLICE => {
                    slices.push(n);
                    v = x;
                }
                _ => return (Some(n), slices),
            }
        }
        (None, slices)
    }

    /// The view that a node's operator has: the types of its operands and its attributes.
    pub fn cx<'a>(&'a self, node: &'a Node) -> OpCx<'a> {
        OpCx { inputs: node.inputs.iter().map(|v| v.map(|v| self.ty(v))).collect(), attrs: &node.attrs }
    }

    /// Origin of a node.
    pub fn origin(&self, node: &Node) -> &Origin {
        &self.origins[node.origin.0 as usize]
    }

    /// Puts the nodes in the order of a key of their number and themselves; equal keys keep their order.
    /// Values must stay after their operands.
    pub(crate) fn sort_nodes<K: Ord>(&mut self, key: impl Fn(usize, &Node) -> K) {
        let mut nodes: Vec<(usize, Node)> = std::mem::take(&mut self.nodes).into_iter().enumerate().collect();
        nodes.sort_by_cached_key(|(n, node)| key(*n, node));
        self.nodes = nodes.into_iter().map(|(_, node)| node).collect();
        for (n, node) in self.nodes.iter().enumerate() {
            for (i, v) in node.outputs.iter().enumerate() {
                self.values[v.0 as usize].def = Def::Node(NodeId(n as u32), i as u32);
            }
        }
    }

    /// The input named `name`.
    pub fn input(&self, name: &str) -> Option<&Input> {
        self.inputs.iter().find(|i| i.name == name)
    }

    /// Inputs of `Parameter` role.
    pub fn parameters(&self) -> impl Iterator<Item = &Input> {
        self.inputs.iter().filter(|i| matches!(i.role, InputRole::Parameter { .. }))
    }

    /// Position of an input in `inputs`, by its value.
    pub fn input_index(&self, v: ValueId) -> Option<usize> {
        match self.value(v).def {
            Def::Input(i) => Some(i as usize),
            Def::Node(..) => None,
        }
    }
}

impl Node {
    /// Present tensor arguments.
    pub fn operands(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.inputs.iter().copied().flatten()
    }
}

impl fmt::Debug for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
