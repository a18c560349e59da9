//! Elements along a dimension, each at its own index.

use super::scatter::{SCATTER, places};
use super::{given, integers, take};
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::{Tensor, TensorType};

/// `(self, index)`: element `[.., i, ..]` of the result is `self[.., index[.., i, ..], ..]` along `dim`. The
/// index may be smaller than `self` in the other dimensions. Negative indices are refused, as PyTorch does.
pub static GATHER: OpDef = OpDef {
    name: "gather",
    schemas: &["gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"],
    infer: |cx| {
        fits(cx, 0)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, cx.shape(1)?.clone())])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x, index) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?);
        let ty = TensorType::new(cx.ty(g).dtype, cx.ty(x).shape.clone());
        let zeros = cx.full(&ty, 0.0)?;
        let attrs = crate::Attrs::new().with("dim", cx.args().int("dim")?).with("reduce", "sum");
        let dx = cx.one(&SCATTER, &[zeros, index, g], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Kernel(|cx, inputs, outs| {
        let x = given(inputs, 0)?;
        let at = places(cx, given(inputs, 1)?, x.shape())?;
        Ok(vec![Tensor { ty: outs[0].clone(), data: take(x, &at) }])
    }),
    cases: || {
        vec![
            Case::new("first").f(&[3, 4]).index(&[2, 3], 3).attr("dim", 0),
            Case::new("last of three").f(&[2, 3, 4]).index(&[2, 2, 5], 4).attr("dim", -1),
            Case::new("scalar").f(&[]).index(&[], 1).attr("dim", 0),
            Case::new("nothing").f(&[2, 3]).index(&[0, 3], 2).attr("dim", 0),
        ]
    },
};

/// Requires index input 1 to fit input `x` in all dimensions but `dim`.
///
/// # Errors
/// `DType` if the index is not of integers, `Shape` if it does not fit.
pub(super) fn fits(cx: &OpCx, x: usize) -> Result<()> {
    integers(cx, 1)?;
    let (x, index) = (cx.shape(x)?, cx.shape(1)?);
    let dim = cx.dim("dim", x.rank())?;
    let fits = index.numel() == 0
        || index.rank().max(1) == x.rank().max(1)
            && (0..index.rank().min(x.rank())).all(|d| d == dim || index[d] <= x[d]);
    ensure!(fits, Shape, "index {index} does not fit {x} along dimension {dim}");
    Ok(())
}
