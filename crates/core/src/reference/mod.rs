//! The reference interpreter: the oracle every device is judged against. Computes each node in f64 and rounds
//! its results to their dtypes. Slow and obvious; knows no fusion and no threads, and plans only in `memory`.

pub mod memory;

pub use crate::expr::scalar;
pub use crate::row::evaluate as rows;

use crate::diagnostic::{Code, Error, Result};
use crate::graph::{Graph, Node, ValueId};
use crate::ops::{Body, OpCx, OpDef, RegionCopy, Source, collective};
use crate::row::RowProgram;
use crate::shape::Layout;
use crate::tensor::{Data, Tensor, TensorType};
use crate::{Attrs, ensure};

/// Runs a graph and returns its outputs in order.
///
/// # Errors
/// `Graph` if `inputs` are not those of the graph; whatever an operator refuses in the data (`Value`).
pub fn run(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let values = trace(graph, inputs)?;
    Ok(graph.outputs.iter().map(|o| values[o.value.0 as usize].clone()).collect())
}

/// Runs a graph and returns every value, by [`ValueId`].
pub fn trace(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(trace_ranks(graph, &[inputs])?.swap_remove(0))
}

/// Runs one graph on several ranks in lockstep, node by node, each with inputs of its own. Returns the
/// outputs of every rank in order.
///
/// # Errors
/// As [`run`]; `Graph` for a collective of another number of ranks.
pub fn run_ranks(graph: &Graph, inputs: &[Vec<Tensor>]) -> Result<Vec<Vec<Tensor>>> {
    let inputs: Vec<&[Tensor]> = inputs.iter().map(Vec::as_slice).collect();
    let of = |values: Vec<Tensor>| graph.outputs.iter().map(|o| values[o.value.0 as usize].clone()).collect();
    Ok(trace_ranks(graph, &inputs)?.into_iter().map(of).collect())
}

/// Every value of every rank.
fn trace_ranks(graph: &Graph, inputs: &[&[Tensor]]) -> Result<Vec<Vec<Tensor>>> {
    let mut ranks: Vec<Vec<Option<Tensor>>> = vec![vec![None; graph.values.len()]; inputs.len()];
    for (values, inputs) in ranks.iter_mut().zip(inputs) {
        let (given, wanted) = (inputs.len(), graph.inputs.len());
        ensure!(given == wanted, Graph, "{given} inputs for {wanted}");
        for (input, tensor) in graph.inputs.iter().zip(*inputs) {
            let want = graph.ty(input.value);
            ensure!(tensor.ty == *want, Graph, "input {} is {}, expected {want}", input.name, tensor.ty);
            values[input.value.0 as usize] = Some(tensor.clone());
        }
    }
    for node in &graph.nodes {
        let types: Vec<_> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let given = ranks.iter().map(|values| operands_of(node, values)).collect::<Result<Vec<_>>>()?;
        let outs = match node.op.body {
            Body::Collective(_) => apply_ranks(node.op, &node.attrs, &given, &types),
            _ => given.iter().map(|inputs| apply(node.op, &node.attrs, inputs, &types)).collect(),
        };
        let outs = outs.map_err(|e| e.at(graph.origin(node)))?;
        for (values, outs) in ranks.iter_mut().zip(outs) {
            for (&v, t) in node.outputs.iter().zip(outs) {
                values[v.0 as usize] = Some(t);
            }
        }
    }
    // Values of nodes removed by a pass have no definition; they stay empty tensors nobody reads.
    let empty = || Tensor::float(crate::DType::F64, [0], vec![]);
    let whole = |values: Vec<Option<Tensor>>| values.into_iter().map(|v| v.unwrap_or_else(empty)).collect();
    Ok(ranks.into_iter().map(whole).collect())
}

/// The operands of a node among the values of a rank.
fn operands_of<'a>(node: &Node, values: &'a [Option<Tensor>]) -> Result<Vec<Option<&'a Tensor>>> {
    let get = |v: ValueId| {
        let undefined = || Error::new(Code::Graph, format!("{v} is used before it is defined"));
        values[v.0 as usize].as_ref().ok_or_else(undefined)
    };
    node.inputs.iter().map(|v| v.map(get).transpose()).collect()
}

/// Applies a collective to the inputs of all ranks. `outs` are the types its rule infers.
///
/// # Errors
/// `Graph` if it is of another number of ranks, or none.
pub fn apply_ranks(
    op: &OpDef,
    attrs: &Attrs,
    inputs: &collective::Given,
    outs: &[TensorType],
) -> Result<Vec<Vec<Tensor>>> {
    let of = collective::ranks(attrs);
    let result = match (op.body, inputs.first()) {
        (Body::Collective(f), Some(first)) if of == inputs.len() => {
            f(&OpCx { inputs: first.iter().map(|t| t.map(|t| &t.ty)).collect(), attrs }, inputs, outs)
        }
        (Body::Collective(_), _) => {
            Err(Error::new(Code::Graph, format!("it is of {of} ranks, and runs on {}", inputs.len())))
        }
        _ => Err(Error::new(Code::Graph, "it is no collective")),
    };
    result.map_err(|e| e.in_op(op.name))
}

/// Applies one operator. `outs` are the types its rule infers.
pub fn apply(
    op: &OpDef,
    attrs: &Attrs,
    inputs: &[Option<&Tensor>],
    outs: &[TensorType],
) -> Result<Vec<Tensor>> {
    let cx = OpCx { inputs: inputs.iter().map(|t| t.map(|t| &t.ty)).collect(), attrs };
    let present: Vec<&Tensor> = inputs.iter().copied().flatten().collect();
    let result = match op.body {
        Body::Pointwise(f) => f(&cx).and_then(|exprs| {
            let types: Vec<_> = present.iter().map(|t| (t.dtype(), &t.shape()[..])).collect();
            let dtypes: Vec<_> = outs.iter().map(|t| t.dtype).collect();
            rows::run(&RowProgram::pointwise(&types, &outs[0].shape, &dtypes, &exprs), &present, outs)
        }),
        Body::Rows(f) => f(&cx, outs).and_then(|p| rows::run(&p, &present, outs)),
        Body::View(view) => (0..outs.len())
            .map(|i| {
                let x = present[0];
                let layout = (view.layout)(&cx, &Layout::contiguous(x.shape()), i)?;
                let layout =
                    layout.ok_or_else(|| Error::new(Code::Graph, "a contiguous tensor cannot be viewed"))?;
                Ok(gather(x, &layout, &outs[i]))
            })
            .collect(),
        Body::Copies(f) => f(&cx, &outs[0]).map(|copies| vec![copy_regions(&copies, inputs, &outs[0])]),
        Body::Kernel(reference) | Body::Update(reference) => reference(&cx, inputs, outs),
        Body::Decompose(f) => decomposed(f, &cx, attrs, inputs),
        Body::Collective(_) => {
            apply_ranks(op, attrs, &[inputs.to_vec()], outs).map(|mut all| all.swap_remove(0))
        }
    };
    result.map_err(|e| e.in_op(op.name))
}

type Decompose = fn(&mut crate::Builder, &OpCx, &[Option<ValueId>]) -> Result<Vec<ValueId>>;

/// Builds the small graph an operator stands for and runs that.
fn decomposed(f: Decompose, cx: &OpCx, attrs: &Attrs, inputs: &[Option<&Tensor>]) -> Result<Vec<Tensor>> {
    let mut b = crate::Builder::new();
    let ids: Vec<_> =
        inputs.iter().map(|t| t.map(|t| b.input("", t.ty.clone(), crate::graph::InputRole::User))).collect();
    let outs = f(&mut b, &OpCx { inputs: cx.inputs.clone(), attrs }, &ids)?;
    let graph = b.finish();
    let mut tensors: Vec<Tensor> = inputs.iter().copied().flatten().cloned().collect();
    // An operator alone has no key of random numbers: it gets seed 0, step 0.
    tensors.extend(graph.inputs[tensors.len()..].iter().map(|i| Tensor::full(graph.ty(i.value), 0.0)));
    let values = trace(&graph, &tensors)?;
    Ok(outs.iter().map(|v| values[v.0 as usize].clone()).collect())
}

/// The elements of `x` that `layout` names, converted to `out`.
fn gather(x: &Tensor, layout: &Layout, out: &TensorType) -> Tensor {
    let at = layout.offsets();
    let data = match &x.data {
        Data::Float(v) => Data::Float(at.iter().map(|&i| v[i as usize]).collect()),
        Data::Int(v) => Data::Int(at.iter().map(|&i| v[i as usize]).collect()),
    };
    Tensor { ty: TensorType::new(x.dtype(), layout.shape.clone()), data }.cast(out.dtype)
}

fn copy_regions(copies: &[RegionCopy], inputs: &[Option<&Tensor>], ty: &TensorType) -> Tensor {
    let mut out = Tensor::full(ty, 0.0);
    let extent = |c: &RegionCopy| crate::Shape::new(&c.extent);
    for c in copies {
        let own = ty.shape.strides();
        let dst = Layout {
            shape: extent(c),
            strides: own.iter().zip(&c.step).map(|(s, &k)| s * k as isize).collect(),
            offset: own.iter().zip(&c.start).map(|(s, &i)| s * i as isize).sum(),
        };
        let source = match c.source {
            Source::Fill(x) => Tensor::full(&TensorType::new(ty.dtype, extent(c)), x),
            Source::Input(i) => {
                let x = inputs[i].expect("a copy reads a present input");
                let lead = ty.shape.rank() - x.shape().rank();
                let own = x.shape().strides();
                let stride = |d: usize| if d < lead { 0 } else { own[d - lead] };
                let src = Layout {
                    shape: extent(c),
                    strides: (0..ty.shape.rank()).map(|d| stride(d) * c.source_step[d]).collect(),
                    offset: (0..ty.shape.rank()).map(|d| stride(d) * c.source_start[d] as isize).sum(),
                };
                gather(x, &src, &TensorType::new(ty.dtype, extent(c)))
            }
        };
        for (i, k) in dst.offsets().into_iter().enumerate() {
            match (&mut out.data, &source.data) {
                (Data::Float(o), Data::Float(v)) => o[k as usize] = v[i],
                (Data::Int(o), Data::Int(v)) => o[k as usize] = v[i],
                _ => unreachable!("gather casts to the output's dtype"),
            }
        }
    }
    out
}
