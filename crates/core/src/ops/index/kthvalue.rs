//! The element that is k-th in order.

use super::gather::GATHER;
use super::sort::SORT;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// The k-th smallest element along `dim`, counted from 1, and its i64 index, NaN counting as largest; of
/// equal ones the first come first. The gradient goes to that element alone.
pub static KTHVALUE: OpDef = OpDef {
    name: "kthvalue",
    schemas: &[
        "kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
    ],
    infer: |cx| {
        let (x, [dim, _]) = (cx.ty(0)?, place(cx)?);
        let mut shape = x.shape.to_vec();
        if dim < shape.len() {
            if cx.flag("keepdim")? { shape[dim] = 1 } else { _ = shape.remove(dim) }
        }
        let shape = Shape::from(shape);
        Ok(vec![TensorType::new(x.dtype, shape.clone()), TensorType::new(DType::I64, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerInput(10),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (x, [dim, k]) = (required(inputs, 0)?, place(cx)?);
        let types = (KTHVALUE.infer)(cx)?;
        let shape = cx.shape(0)?;
        let x = b.reshape(x, if shape.rank() == 0 { &[1] } else { shape })?;
        let attrs = Attrs::new().with("dim", dim as i64);
        let order = b.apply(&SORT, &[Some(x)], attrs.clone().with("descending", false))?[1];
        let index = b.slice(order, dim, k - 1, k)?;
        let value = b.one(&GATHER, &[x, index], attrs)?;
        Ok(vec![b.reshape(value, &types[0].shape)?, b.reshape(index, &types[1].shape)?])
    }),
    cases: || {
        vec![
            Case::new("second").distinct(&[2, 4]).attr("k", 2).attr("dim", -1),
            Case::new("kept").distinct(&[3, 2]).attr("k", 3).attr("dim", 0).attr("keepdim", true),
            Case::new("integers").index(&[5], 99).attr("k", 1).attr("dim", 0),
            Case::new("scalar").f(&[]).attr("k", 1).attr("dim", -1),
        ]
    },
};

/// The dimension and k.
fn place(cx: &OpCx) -> Result<[usize; 2]> {
    let x = cx.ty(0)?;
    ensure!(x.dtype.class() != Class::Bool, DType, "truth values have no order, got {x}");
    let (dim, k) = (super::sort::dim(cx)?, cx.size("k")?);
    let n = x.shape.get(dim).copied().unwrap_or(1);
    ensure!((1..=n).contains(&k), Attribute, "`k` is {k} along dimension {dim} of {x}");
    Ok([dim, k])
}
