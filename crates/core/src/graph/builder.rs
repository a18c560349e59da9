//! Builds graphs: by hand, by the importer, and by passes. Infers every type as it goes.

use super::{
    Def, Graph, Input, InputRole, Node, NodeId, Origin, OriginId, Output, OutputRole, Phase, Value, ValueId,
};
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::ops::{self, OpCx, OpDef};
use crate::shape::Shape;
use crate::tensor::TensorType;
use std::sync::Arc;

/// A graph under construction. New nodes take the current origin and phase.
#[derive(Debug)]
pub struct Builder {
    graph: Graph,
    /// Origin given to new nodes.
    pub origin: OriginId,
    /// Phase given to new nodes.
    pub phase: Phase,
    /// Next number of a stream of random numbers.
    stream: i64,
}

impl Default for Builder {
    fn default() -> Self {
        Builder::new()
    }
}

/// Bytes of the largest result, 16 TiB: no machine holds more, and sums over a graph stay far from overflow.
const MAX_BYTES: usize = 1 << 44;

impl Builder {
    /// An empty graph, with one unnamed origin.
    pub fn new() -> Self {
        let graph = Graph { origins: Arc::new(vec![Origin::default()]), ..Graph::default() };
        Builder::extend(graph)
    }

    /// Goes on with a graph.
    pub fn extend(mut graph: Graph) -> Self {
        if graph.origins.is_empty() {
            graph.origins = Arc::new(vec![Origin::default()]);
        }
        let mut b =
            Builder { graph: Graph::default(), origin: OriginId(0), phase: Phase::Forward, stream: 0 };
        b.reserve_streams(&graph);
        b.graph = graph;
        b
    }

    /// Keeps the streams of random numbers that `graph` uses from being given out, for a pass that rebuilds
    /// it here.
    pub fn reserve_streams(&mut self, graph: &Graph) {
        for node in &graph.nodes {
            if let Some(Attr::Int(n)) = node.attrs.get("stream") {
                self.stream = self.stream.max(n + 1);
            }
        }
    }

    /// The number of a stream of random numbers that no other node draws from. Counted in the order of
    /// construction, so the same model always gets the same.
    pub fn stream(&mut self) -> i64 {
        self.stream += 1;
        self.stream - 1
    }

    /// The finished graph.
    pub fn finish(self) -> Graph {
        self.graph
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph so far, to change its inputs' roles or outputs.
    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        self.graph.ty(v)
    }

    /// Adds an origin and makes it current.
    pub fn at(&mut self, origin: Origin) -> OriginId {
        let origins = Arc::make_mut(&mut self.graph.origins);
        origins.push(origin);
        self.origin = OriginId(origins.len() as u32 - 1);
        self.origin
    }

    /// Adds a graph input.
    pub fn input(&mut self, name: impl Into<String>, ty: TensorType, role: InputRole) -> ValueId {
        let value = ValueId(self.graph.values.len() as u32);
        self.graph.values.push(Value { ty, def: Def::Input(self.graph.inputs.len() as u32) });
        self.graph.inputs.push(Input { value, name: name.into(), role });
        value
    }

    /// Adds a trainable parameter.
    pub fn parameter(&mut self, name: &str, dtype: DType, shape: &[usize]) -> ValueId {
        let role = InputRole::Parameter { trainable: true, aliases: Vec::new() };
        self.input(name, TensorType::new(dtype, shape), role)
    }

    /// The key of random numbers (`i64[2]`: seed, step), added as an input on first use.
    pub fn rng(&mut self) -> ValueId {
        if let Some(input) = self.graph.inputs.iter().find(|i| i.role == InputRole::Rng) {
            return input.value;
        }
        self.input("rng", TensorType::new(DType::I64, [2]), InputRole::Rng)
    }

    /// Names a value as an output.
    pub fn output(&mut self, name: impl Into<String>, value: ValueId, role: OutputRole) {
        self.graph.outputs.push(Output { value, name: name.into(), role });
    }

    /// Applies an operator; absent optional inputs are `None`.
    ///
    /// # Errors
    /// Refusals of the operator's type rule, with the current origin.
    pub fn apply(
        &mut self,
        op: &'static OpDef,
        inputs: &[Option<ValueId>],
        attrs: Attrs,
    ) -> Result<Vec<ValueId>> {
        let types = self.infer(op, inputs, &attrs)?;
        let node = NodeId(self.graph.nodes.len() as u32);
        let mut outputs = Vec::with_capacity(types.len());
        for (i, ty) in types.into_iter().enumerate() {
            outputs.push(ValueId(self.graph.values.len() as u32));
            self.graph.values.push(Value { ty, def: Def::Node(node, i as u32) });
        }
        self.graph.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            attrs,
            outputs: outputs.clone(),
            origin: self.origin,
            phase: self.phase,
        });
        Ok(outputs)
    }

    fn infer(
        &self,
        op: &'static OpDef,
        inputs: &[Option<ValueId>],
        attrs: &Attrs,
    ) -> Result<Vec<TensorType>> {
        let types = inputs.iter().map(|v| v.map(|v| self.graph.ty(v))).collect();
        let cx = OpCx { inputs: types, attrs };
        let check = |types: Vec<TensorType>| {
            for t in &types {
                // Dimensions of size 0 hide no others: work is cut by rows, however few columns they have.
                let sizes = t.shape.iter().map(|&d| d.max(1));
                let bytes = sizes.into_iter().try_fold(t.dtype.size(), usize::checked_mul);
                ensure!(
                    bytes.is_some_and(|n| n <= MAX_BYTES),
                    Size,
                    "result {t} is larger than memory can be"
                );
            }
            Ok(types)
        };
        (op.infer)(&cx)
            .and_then(check)
            .map_err(|e| e.in_op(op.name).at(&self.graph.origins[self.origin.0 as usize]))
    }

    /// Applies an operator to inputs that are all present and returns its first output.
    pub fn one(&mut self, op: &'static OpDef, inputs: &[ValueId], attrs: Attrs) -> Result<ValueId> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        Ok(self.apply(op, &inputs, attrs)?[0])
    }

    /// Applies an operator without attributes and returns its first output.
    pub fn call(&mut self, op: &'static OpDef, inputs: &[ValueId]) -> Result<ValueId> {
        self.one(op, inputs, Attrs::new())
    }

    /// `a + b`, broadcast and promoted.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.one(&ops::pointwise::add::ADD, &[a, b], Attrs::new())
    }

    /// `a · b`, broadcast and promoted.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.one(&ops::pointwise::mul::MUL, &[a, b], Attrs::new())
    }

    /// `a · c` for a number, in `a`'s dtype.
    pub fn scale(&mut self, a: ValueId, c: f64) -> Result<ValueId> {
        if c == 1.0 {
            return Ok(a);
        }
        self.one(&ops::pointwise::mul::MUL, &[a], Attrs::new().with("other", c))
    }

    /// `a` converted to `dtype`; `a` itself if it has it already.
    pub fn cast(&mut self, a: ValueId, dtype: DType) -> Result<ValueId> {
        if self.ty(a).dtype == dtype {
            return Ok(a);
        }
        self.one(&ops::pointwise::to::TO, &[a], Attrs::new().with("dtype", dtype))
    }

    /// A tensor of one value.
    pub fn full(&mut self, ty: &TensorType, value: f64) -> Result<ValueId> {
        let attrs =
            Attrs::new().with("size", ty.shape.to_ints()).with("fill_value", value).with("dtype", ty.dtype);
        self.one(&ops::create::full::FULL, &[], attrs)
    }

    /// Sum over dimensions (none: no change).
    pub fn sum(&mut self, a: ValueId, dims: &[usize], keepdim: bool) -> Result<ValueId> {
        if dims.is_empty() {
            return Ok(a);
        }
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        self.one(&ops::reduce::sum::SUM, &[a], Attrs::new().with("dim", dims).with("keepdim", keepdim))
    }

    /// The same elements under another shape.
    pub fn reshape(&mut self, a: ValueId, shape: &[usize]) -> Result<ValueId> {
        if self.ty(a).shape[..] == *shape {
            return Ok(a);
        }
        self.one(&ops::view::reshape::RESHAPE, &[a], Attrs::new().with("shape", Shape::new(shape).to_ints()))
    }

    /// Dimensions reordered: result dimension `i` is `dims[i]` of `a`.
    pub fn permute(&mut self, a: ValueId, dims: &[usize]) -> Result<ValueId> {
        if dims.iter().enumerate().all(|(i, &d)| i == d) {
            return Ok(a);
        }
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        self.one(&ops::view::permute::PERMUTE, &[a], Attrs::new().with("dims", dims))
    }

    /// The last two dimensions exchanged.
    pub fn transpose_last(&mut self, a: ValueId) -> Result<ValueId> {
        let rank = self.ty(a).shape.rank();
        let mut dims: Vec<usize> = (0..rank).collect();
        dims.swap(rank - 2, rank - 1);
        self.permute(a, &dims)
    }

    /// Broadcast to `shape`.
    pub fn expand(&mut self, a: ValueId, shape: &[usize]) -> Result<ValueId> {
        if self.ty(a).shape[..] == *shape {
            return Ok(a);
        }
        self.one(&ops::view::expand::EXPAND, &[a], Attrs::new().with("size", Shape::new(shape).to_ints()))
    }

    /// Sums away what broadcasting to `a`'s shape from `shape` repeated.
    pub fn sum_to(&mut self, a: ValueId, shape: &[usize]) -> Result<ValueId> {
        let from = self.ty(a).shape.clone();
        if from[..] == *shape {
            return Ok(a);
        }
        ensure!(from.rank() >= shape.len(), Shape, "{from} cannot be summed to {}", Shape::new(shape));
        let lead = from.rank() - shape.len();
        let dims: Vec<usize> =
            (0..from.rank()).filter(|&d| d < lead || (shape[d - lead] == 1 && from[d] != 1)).collect();
        let summed = self.sum(a, &dims, true)?;
        self.reshape(summed, shape)
    }

    /// Matrix product over the last two dimensions, batched and broadcast over the others.
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.one(&ops::linear::matmul::MATMUL, &[a, b], Attrs::new())
    }
}
