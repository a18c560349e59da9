//! Sums to a shape that broadcasts to this one.

use crate::dtype::Class;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, required};
use crate::tensor::TensorType;

/// The sum over the dimensions that broadcasting from `size` would repeat.
pub static SUM_TO_SIZE: OpDef = OpDef {
    name: "sum_to_size",
    schemas: &["sum_to_size(Tensor self, SymInt[] size) -> Tensor"],
    infer: |cx| {
        let (x, size) = (cx.ty(0)?, cx.sizes("size")?);
        let fits = size.broadcast(&x.shape).is_some_and(|s| s == x.shape);
        ensure!(fits, Shape, "{size} does not broadcast to {x}");
        ensure!(x.dtype.class() == Class::Float || size == x.shape, DType, "sums of {x}: convert it first");
        Ok(vec![TensorType::new(x.dtype, size)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(1),
    body: Body::Decompose(|b, cx, inputs| Ok(vec![b.sum_to(required(inputs, 0)?, &cx.sizes("size")?)?])),
    cases: || {
        vec![
            Case::new("rows").f(&[2, 3, 4]).attr("size", [3, 1]),
            Case::new("all").f(&[2, 3]).attr("size", Vec::<i64>::new()),
            Case::new("same").f(&[2, 3]).attr("size", [2, 3]),
        ]
    },
};
