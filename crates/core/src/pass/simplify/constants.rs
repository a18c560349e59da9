//! Constant folding: nodes whose operands are all known run in the reference interpreter now, once. A result
//! of one number everywhere becomes a `full`, any other a `constant`. Graph inputs are not known, and so
//! neither is what is drawn at random: its key is an input.

use super::expression::reduce;
use crate::attr::Attrs;
use crate::dtype::Class;
use crate::expr::Expr;
use crate::graph::{Graph, Node, ValueId};
use crate::ops::create::{constant::CONSTANT, full::FULL};
use crate::ops::{Body, OpCx};
use crate::reference::{self, rows};
use crate::row::RowProgram;
use crate::tensor::{Data, Tensor, TensorType};
use std::collections::HashMap;
use std::sync::Arc;

/// Tensors of more elements are not folded, unless they are one number everywhere: the graph would carry
/// them.
pub const LIMIT: usize = 4096;

/// Larger tensors of bools and integers are known up to this many elements, without being written into the
/// graph: masks.
const KNOWN: usize = 1 << 20;

/// The reference interpreter is slow: nodes of more operations are left to the device.
const MAX_FLOPS: f64 = 1e6;

/// Elements that all foldings of a graph may in total read and write.
const BUDGET: usize = 1 << 24;

/// Knowledge of values.
#[derive(Default)]
pub(super) struct Constants {
    known: HashMap<ValueId, Known>,
    spent: usize,
}

/// A value known beforehand.
enum Known {
    /// This scalar everywhere.
    Uniform(Tensor),
    /// This tensor.
    Tensor(Arc<Tensor>),
}

impl Constants {
    /// The number that a value is everywhere, as a literal.
    pub(super) fn literal(&self, v: ValueId) -> Option<Expr> {
        let Some(Known::Uniform(x)) = self.known.get(&v) else { return None };
        Some(match (&x.data, x.dtype().class()) {
            (Data::Float(v), _) => Expr::Float(v[0]),
            (Data::Int(v), Class::Bool) => Expr::Bool(v[0] != 0),
            (Data::Int(v), _) => Expr::Int(v[0]),
        })
    }

    /// The elements of a value in row-major order, unless they are all the same.
    pub(super) fn elements(&self, v: ValueId) -> Option<&Tensor> {
        match self.known.get(&v)? {
            Known::Tensor(t) => Some(t),
            Known::Uniform(_) => None,
        }
    }

    /// Constants in the place of a node, one for each of its outputs; `None` if it stays as it is.
    pub(super) fn fold(&mut self, graph: &Graph, node: &Node) -> Option<Vec<Node>> {
        if node.op == &CONSTANT {
            let tensor = self.run(graph, node, &[])?;
            self.known.insert(node.outputs[0], Known::Tensor(Arc::new(tensor.into_iter().next()?)));
            return None;
        }
        let results = match self.uniform(graph, node) {
            Some(scalars) => scalars.into_iter().map(Known::Uniform).collect(),
            None => self.evaluate(graph, node)?,
        };
        let made = node.outputs.iter().zip(&results).map(|(&v, known)| constant(known, graph.ty(v), node, v));
        let made: Option<Vec<Node>> = made.collect();
        self.known.extend(node.outputs.iter().copied().zip(results));
        let out = made?;
        // A canonical `full` is no news, and a large view of one is cheaper as it is.
        let large = node.outputs.iter().any(|&v| graph.ty(v).shape.numel() > LIMIT);
        if large && matches!(node.op.body, Body::View(_)) {
            return None;
        }
        let same =
            out.len() == 1 && out[0].op == node.op && out[0].attrs.to_string() == node.attrs.to_string();
        (!same).then_some(out)
    }

    /// The scalar that each output is everywhere, whatever its size.
    fn uniform(&mut self, graph: &Graph, node: &Node) -> Option<Vec<Tensor>> {
        let operands: Vec<ValueId> = node.operands().collect();
        match node.op.body {
            Body::View(_) => match self.known.get(operands.first()?)? {
                Known::Uniform(x) => Some(vec![x.clone(); node.outputs.len()]),
                Known::Tensor(_) => None,
            },
            Body::Pointwise(body) => {
                let exprs = body(&graph.cx(node)).ok()?;
                let literal = |i: usize| self.literal(operands[i]);
                let closed = |e: &Expr| {
                    let e = reduce(e, &literal, &|i| graph.ty(operands[i]).dtype);
                    is_closed(&e).then_some(e)
                };
                let exprs = exprs.iter().map(closed).collect::<Option<Vec<_>>>()?;
                let types: Vec<_> =
                    node.outputs.iter().map(|&v| TensorType::new(graph.ty(v).dtype, [])).collect();
                let dtypes: Vec<_> = types.iter().map(|t| t.dtype).collect();
                rows::run(&RowProgram::pointwise(&[], &[], &dtypes, &exprs), &[], &types).ok()
            }
            _ => None,
        }
    }

    /// The results of a node whose operands are all known, if all are small.
    fn evaluate(&mut self, graph: &Graph, node: &Node) -> Option<Vec<Known>> {
        let small = |v: ValueId| {
            let ty = graph.ty(v);
            ty.shape.numel() <= if ty.dtype.is_float() { LIMIT } else { KNOWN }
        };
        if matches!(node.op.body, Body::Decompose(_))
            || !node.outputs.iter().copied().chain(node.operands()).all(small)
        {
            return None;
        }
        let operands: Vec<Option<Tensor>> = node
            .inputs
            .iter()
            .map(|v| match v {
                None => Some(None),
                Some(v) => self.known.get(v).map(|k| Some(k.tensor(graph.ty(*v)))),
            })
            .collect::<Option<_>>()?;
        let operands: Vec<Option<&Tensor>> = operands.iter().map(Option::as_ref).collect();
        let results = self.run(graph, node, &operands)?;
        Some(results.into_iter().map(Known::new).collect())
    }

    /// Runs a node in the reference interpreter, unless that takes too long. What is wrong with the data is
    /// left to be said when the graph runs.
    fn run(&mut self, graph: &Graph, node: &Node, operands: &[Option<&Tensor>]) -> Option<Vec<Tensor>> {
        let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let inputs = operands.iter().map(|t| t.map(|t| &t.ty)).collect();
        let (flops, _) = node.op.cost_of(&OpCx { inputs, attrs: &node.attrs }, &types);
        let elements: usize =
            operands.iter().flatten().map(|t| &t.ty).chain(&types).map(|t| t.shape.numel()).sum();
        if flops > MAX_FLOPS || self.spent + elements > BUDGET {
            return None;
        }
        self.spent += elements;
        reference::apply(node.op, &node.attrs, operands, &types).ok()
    }
}

impl Known {
    fn new(t: Tensor) -> Known {
        fn same<T: Copy, B: PartialEq>(v: &[T], bits: impl Fn(T) -> B) -> bool {
            v.first().is_some_and(|&first| v.iter().all(|&x| bits(x) == bits(first)))
        }
        let ty = TensorType::new(t.dtype(), []);
        match &t.data {
            Data::Float(v) if same(v, f64::to_bits) => {
                Known::Uniform(Tensor { ty, data: Data::Float(vec![v[0]]) })
            }
            Data::Int(v) if same(v, |i| i) => Known::Uniform(Tensor { ty, data: Data::Int(vec![v[0]]) }),
            _ => Known::Tensor(Arc::new(t)),
        }
    }

    fn tensor(&self, ty: &TensorType) -> Tensor {
        let n = ty.shape.numel();
        match self {
            Known::Tensor(t) => t.as_ref().clone(),
            Known::Uniform(x) => Tensor {
                ty: ty.clone(),
                data: match &x.data {
                    Data::Float(v) => Data::Float(vec![v[0]; n]),
                    Data::Int(v) => Data::Int(vec![v[0]; n]),
                },
            },
        }
    }
}

/// A node that makes a known value: `full` where that gives the same bits, else `constant` if small enough.
fn constant(known: &Known, ty: &TensorType, from: &Node, output: ValueId) -> Option<Node> {
    let (op, attrs) = match known {
        Known::Uniform(x) if full_is(x) => (&FULL, full(x, ty)),
        _ if ty.shape.numel() <= LIMIT => (&CONSTANT, Attrs::new().with("value", Arc::new(known.tensor(ty)))),
        _ => return None,
    };
    Some(Node { op, inputs: vec![], attrs, outputs: vec![output], origin: from.origin, phase: from.phase })
}

fn full(x: &Tensor, ty: &TensorType) -> Attrs {
    let attrs = Attrs::new().with("size", ty.shape.to_ints()).with("dtype", ty.dtype);
    match (&x.data, ty.dtype.class()) {
        (Data::Float(v), _) => attrs.with("fill_value", v[0]),
        (Data::Int(v), Class::Bool) => attrs.with("fill_value", v[0] != 0),
        (Data::Int(v), _) => attrs.with("fill_value", v[0]),
    }
}

/// True if `full` makes this scalar, bit for bit.
fn full_is(x: &Tensor) -> bool {
    let made = reference::apply(&FULL, &full(x, &x.ty), &[], std::slice::from_ref(&x.ty));
    match (made.as_deref(), &x.data) {
        (Ok([t]), Data::Float(v)) => t.floats()[0].to_bits() == v[0].to_bits(),
        (Ok([t]), Data::Int(v)) => t.ints() == v,
        _ => false,
    }
}

/// True if an expression reads nothing.
fn is_closed(e: &Expr) -> bool {
    match e {
        Expr::Input(_) | Expr::Coord(_) => false,
        Expr::Float(_) | Expr::Int(_) | Expr::Bool(_) => true,
        Expr::Unary(_, a) | Expr::Cast(_, a) => is_closed(a),
        Expr::Binary(_, a, b) => is_closed(a) && is_closed(b),
        Expr::Select(c, a, b) => is_closed(c) && is_closed(a) && is_closed(b),
    }
}
