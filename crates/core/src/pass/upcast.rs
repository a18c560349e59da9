//! Changes every floating-point dtype of a graph to one: f64 for the truth, f32, bf16 or f16 to see the cost
//! of a precision. The casts that a model spells out are lifted too, since the model in that precision is
//! requested. Comes before decomposition, whose own casts are a matter of the operator.

use super::rebuild::rebuild;
use crate::attr::{Attr, Attrs};
use crate::diagnostic::{Code, Error, Result};
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::graph::{Builder, Graph, Input, Node, ValueId};
use crate::ops::pointwise::to::TO;
use crate::ops::schema::{Arg, ArgType, Schema};
use crate::ops::{Body, OpCx, OpDef};
use crate::tensor::TensorType;
use std::sync::Arc;

/// The graph with `dtype` in the place of every floating-point dtype: inputs, attributes (casts, factories,
/// constants) and results. Inputs and outputs keep their order, names and roles.
///
/// Numbers among the attributes stay as written, as in PyTorch: an epsilon of 1e-12, or a mask's −3.4e38, the
/// most negative f32. Where that is beyond a 16-bit `dtype`, operators put its most negative number there.
/// Stashes of a forward operator for its gradient (the statistics of a norm) keep the dtype its type rule
/// gives them.
///
/// An operator on integers alone that makes floats of the default dtype (a division, `arange(0.5)`) makes
/// `dtype`.
///
/// # Errors
/// `DType` if `dtype` is no float; `Graph` for a fused program, which is made after this; what a type rule
/// refuses.
pub fn upcast(graph: &Graph, dtype: DType) -> Result<Graph> {
    upcast_with(graph, dtype, |_, _, _, _| Ok(()))
}

/// As [`upcast`]; `built` sees each node as it was, with its operands and results in the new graph, and may
/// add nodes.
pub(crate) fn upcast_with(
    graph: &Graph,
    dtype: DType,
    mut built: impl FnMut(&mut Builder, &Node, &[Option<ValueId>], &[ValueId]) -> Result<()>,
) -> Result<Graph> {
    ensure!(dtype.is_float(), DType, "a graph is lifted to a floating-point dtype, not {dtype}");
    let input = |_: &Input, ty: &TensorType| {
        let lifted = if ty.dtype.is_float() { dtype } else { ty.dtype };
        TensorType { dtype: lifted, shape: ty.shape.clone() }
    };
    rebuild(graph, input, |b, node, operands| {
        let attrs = attributes(node, dtype)?;
        let from_ints = !node.operands().any(|v| graph.ty(v).dtype.is_float());
        let to_float = node.outputs.first().is_some_and(|&v| graph.ty(v).dtype.is_float());
        let results = if from_ints && to_float {
            from_integers(b, node.op, operands.to_vec(), attrs, dtype)?
        } else {
            b.apply(node.op, operands, attrs)?
        };
        built(b, node, operands, &results)?;
        Ok(results)
    })
}

/// A node's attributes with `dtype` for every floating-point dtype.
pub(crate) fn attributes(node: &Node, dtype: DType) -> Result<Attrs> {
    let mut out = Attrs::new();
    for (name, attr) in node.attrs.iter() {
        out.set(
            name,
            match attr {
                Attr::DType(d) if d.is_float() => Attr::DType(dtype),
                Attr::Tensor(t) if t.dtype().is_float() => Attr::Tensor(Arc::new(t.cast_saturating(dtype))),
                Attr::Program(_) => return Err(Error::new(Code::Graph, "a fused program cannot be lifted")),
                other => other.clone(),
            },
        );
    }
    // `_softmax` of f16 to f32: there is one float dtype now.
    out.remove("half_to_float");
    Ok(out)
}

/// Applies an operator whose operands are no floats and whose first result is, so that this is `dtype` and
/// computed in it.
fn from_integers(
    b: &mut Builder,
    op: &'static OpDef,
    mut inputs: Vec<Option<ValueId>>,
    mut attrs: Attrs,
    dtype: DType,
) -> Result<Vec<ValueId>> {
    let infer = |b: &Builder, inputs: &[Option<ValueId>], attrs: &Attrs| {
        let cx = OpCx { inputs: inputs.iter().map(|v| v.map(|v| b.ty(v))).collect(), attrs };
        (op.infer)(&cx).ok().and_then(|t| t.first().map(|t| t.dtype))
    };
    if infer(b, &inputs, &attrs) != Some(dtype) {
        let is_dtype = |a: &Arg| a.name == "dtype" && a.ty == ArgType::DType;
        let schemas = op.schemas.iter().filter_map(|&s| Schema::parse(s).ok());
        if schemas.flat_map(|s| s.args).any(|a| is_dtype(&a)) {
            attrs.set("dtype", dtype);
        } else if let Body::Pointwise(_) = op.body {
            for v in inputs.iter_mut().flatten() {
                if b.ty(*v).dtype.class() == Class::Int {
                    *v = b.cast(*v, dtype)?;
                }
            }
        }
    }
    let outputs = b.apply(op, &inputs, attrs)?;
    // Numbers that the model states, such as those of a mask.
    let cast = |v: ValueId| match b.ty(v).dtype {
        d if d.is_float() && d != dtype => {
            b.one(&TO, &[v], Attrs::new().with("dtype", dtype).with("saturate", true))
        }
        _ => Ok(v),
    };
    outputs.into_iter().map(cast).collect()
}
