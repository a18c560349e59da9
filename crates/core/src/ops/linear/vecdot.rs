//! Scalar products along a dimension.

use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::wrap_dim;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `Σ x · y` along `dim`, the inputs broadcast.
pub static VECDOT: OpDef = OpDef {
    name: "linalg_vecdot",
    schemas: &["linalg_vecdot(Tensor x, Tensor y, *, int dim=-1) -> Tensor"],
    infer: |cx| {
        let (mut shape, dim) = (cx.broadcast()?.to_vec(), dim(cx)?);
        ensure!(cx.dtype(0)? == cx.dtype(1)?, DType, "one dtype is needed: {}", cx.list_types());
        ensure!(cx.dtype(0)?.is_float(), DType, "floats are needed, got {}", cx.list_types());
        shape.remove(dim);
        Ok(vec![TensorType::new(cx.dtype(0)?, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let products = b.mul(required(inputs, 0)?, required(inputs, 1)?)?;
        Ok(vec![b.sum(products, &[dim(cx)?], false)?])
    }),
    cases: || {
        vec![
            Case::new("last").f(&[2, 3]).f(&[2, 3]).attr("dim", -1),
            Case::new("broadcast").f(&[2, 3, 1]).f(&[3, 4]).attr("dim", 1),
        ]
    },
};

fn dim(cx: &OpCx) -> Result<usize> {
    let shape = cx.broadcast()?;
    let dim = cx.opt_int("dim")?.unwrap_or(-1);
    let found = wrap_dim(dim, shape.rank()).filter(|&d| d < shape.rank());
    found.ok_or_else(|| fail!(Attribute, "`dim` = {dim} is out of range for {shape}"))
}
