//! Indices of a dimension picked by a vector of them.

use super::gather::GATHER;
use super::integers;
use crate::attr::Attrs;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `self` with dimension `dim` replaced by its indices `index` (a vector or a scalar).
pub static INDEX_SELECT: OpDef = OpDef {
    name: "index_select",
    schemas: &["index_select(Tensor self, int dim, Tensor index) -> Tensor"],
    infer: |cx| {
        let (x, index) = (cx.ty(0)?, cx.shape(1)?);
        integers(cx, 1)?;
        ensure!(index.rank() <= 1, Shape, "the index must be a vector, got {index}");
        let dim = cx.dim("dim", x.shape.rank())?;
        let mut shape = x.shape.to_vec();
        if let Some(size) = shape.get_mut(dim) {
            *size = index.numel();
        }
        Ok(vec![TensorType::new(x.dtype, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let (Some(x), Some(index)) = (inputs[0], inputs[1]) else { return Err(fail!(Attribute, "an input is missing")) };
        let (shape, count) = (cx.shape(0)?, cx.shape(1)?.numel());
        let dim = cx.dim("dim", shape.rank())?;
        // A scalar counts as a vector of one.
        let shape = if shape.rank() == 0 { vec![1] } else { shape.to_vec() };
        let x = b.reshape(x, &shape)?;
        let (mut own, mut full) = (vec![1; shape.len()], shape.clone());
        (own[dim], full[dim]) = (count, count);
        let index = b.reshape(index, &own)?;
        let index = b.expand(index, &full)?;
        let out = b.one(&GATHER, &[x, index], Attrs::new().with("dim", dim as i64))?;
        let rank = cx.shape(0)?.rank();
        Ok(vec![if rank == 0 { b.reshape(out, &[])? } else { out }])
    }),
    cases: || {
        vec![
            Case::new("rows").f(&[3, 2]).index(&[4], 3).attr("dim", 0),
            Case::new("columns").f(&[2, 3]).index(&[2], 3).attr("dim", -1),
        ]
    },
};
