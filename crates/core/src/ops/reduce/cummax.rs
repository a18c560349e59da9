//! Running maximum and minimum along a dimension, with indices.

use super::cumsum::lanes;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ops::index::scatter::SCATTER;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample};
use crate::tensor::{Data, Tensor, TensorType};

/// Largest of the elements `0..=i` along `dim` and its i64 index, of equal ones the last; NaN, once met,
/// stays.
pub static CUMMAX: OpDef = OpDef {
    name: "cummax",
    schemas: &["cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)"],
    infer,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        reference(cx, inputs, outs, |new, old| new >= old, |new, old| new >= old)
    }),
    cases,
};

/// Smallest of the elements `0..=i`; otherwise as [`CUMMAX`].
pub static CUMMIN: OpDef = OpDef {
    name: "cummin",
    schemas: &["cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)"],
    infer,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        reference(cx, inputs, outs, |new, old| new <= old, |new, old| new <= old)
    }),
    cases,
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let x = cx.ty(0)?;
    cx.dim("dim", x.shape.rank())?;
    Ok(vec![x.clone(), TensorType::new(DType::I64, x.shape.clone())])
}

/// `wins(new, old)` says whether a new element replaces the best so far.
fn reference(
    cx: &OpCx,
    inputs: &[Option<&Tensor>],
    outs: &[TensorType],
    float_wins: fn(f64, f64) -> bool,
    int_wins: fn(i64, i64) -> bool,
) -> Result<Vec<Tensor>> {
    let x = inputs[0].expect("typed");
    let wins = |new: usize, old: usize| match &x.data {
        Data::Float(v) => v[new].is_nan() || (!v[old].is_nan() && float_wins(v[new], v[old])),
        Data::Int(v) => int_wins(v[new], v[old]),
    };
    let numel = outs[0].shape.numel();
    let (mut from, mut index) = (vec![0; numel], vec![0; numel]);
    for lane in lanes(&outs[0], cx.dim("dim", outs[0].shape.rank())?) {
        let mut best = 0;
        for (i, &at) in lane.iter().enumerate() {
            if wins(at, lane[best]) {
                best = i;
            }
            (from[at], index[at]) = (lane[best], best as i64);
        }
    }
    let values = match &x.data {
        Data::Float(v) => Data::Float(from.iter().map(|&at| v[at]).collect()),
        Data::Int(v) => Data::Int(from.iter().map(|&at| v[at]).collect()),
    };
    let values = Tensor { ty: outs[0].clone(), data: values };
    Ok(vec![values, Tensor::int(DType::I64, outs[1].shape.clone(), index)])
}

/// The gradients of all places that an element was the best of go to that element.
fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, index, dim) = (cx.grad(0)?, cx.y(1), cx.args().int("dim")?);
    let ty = cx.ty(g).clone();
    let zeros = cx.full(&ty, 0.0)?;
    let attrs = Attrs::new().with("dim", dim).with("reduce", "sum");
    let dx = cx.one(&SCATTER, &[zeros, index, g], attrs)?;
    cx.set(0, dx)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("middle").distinct(&[2, 4, 3]).attr("dim", 1),
        Case::new("ties").arg(DType::I64, &[4], Sample::Values(vec![1.0, 3.0, 3.0, 2.0])).attr("dim", 0),
        Case::new("scalar").f(&[]).attr("dim", 0),
    ]
}
