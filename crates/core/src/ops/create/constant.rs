//! A small tensor written into the graph, such as a result of constant folding.

use crate::attr::Attr;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::fail;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::Tensor;
use std::sync::Arc;

/// The tensor `value`. A tensor of one number everywhere is a `full` instead.
pub static CONSTANT: OpDef = OpDef {
    name: "constant",
    schemas: &[],
    infer: |cx| Ok(vec![value(cx)?.ty.clone()]),
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Kernel(|cx, _, _| Ok(vec![value(cx)?.as_ref().clone()])),
    cases: || {
        let floats = Tensor::float(DType::F64, [2, 3], vec![0.0, -0.0, 1.5, f64::INFINITY, 1e-300, -7.25]);
        let ints = Tensor::int(DType::I64, [4], vec![3, -1, i64::MAX, 0]);
        vec![
            Case::new("floats").attr("value", Arc::new(floats)),
            Case::new("ints").attr("value", Arc::new(ints)),
            Case::new("empty").attr("value", Arc::new(Tensor::int(DType::Bool, [0, 2], vec![]))),
        ]
    },
};

fn value<'a>(cx: &OpCx<'a>) -> Result<&'a Arc<Tensor>> {
    match cx.attrs.get("value") {
        Some(Attr::Tensor(t)) => Ok(t),
        Some(other) => Err(fail!(Attribute, "attribute `value` must be a tensor, got {other}")),
        None => Err(fail!(Attribute, "attribute `value` is missing")),
    }
}
