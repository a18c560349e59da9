//! Elements of the flattened tensor, and along a dimension with broadcasting.

use super::gather::GATHER;
use super::index_tensor::INDEX;
use super::integers;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Elements of `self`, counted row-major, at `index`; negative indices count from the end.
pub static TAKE: OpDef = OpDef {
    name: "take",
    schemas: &["take(Tensor self, Tensor index) -> Tensor"],
    infer: |cx| {
        integers(cx, 1)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, cx.shape(1)?.clone())])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let [Some(x), index] = *inputs else { return Err(fail!(Attribute, "an input is missing")) };
        let x = b.reshape(x, &[cx.shape(0)?.numel()])?;
        b.apply(&INDEX, &[Some(x), index], Attrs::new())
    }),
    cases: || {
        let signed = crate::ops::Sample::Uniform(-6.0, 6.0);
        vec![Case::new("wrapped").f(&[2, 3]).arg(crate::DType::I64, &[2, 2], signed)]
    },
};

/// [`GATHER`] with both operands broadcast in the dimensions other than `dim`; absent `dim`: of the flattened
/// operands.
pub static TAKE_ALONG_DIM: OpDef = OpDef {
    name: "take_along_dim",
    schemas: &["take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor"],
    infer: |cx| {
        integers(cx, 1)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, operands(cx)?.2)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let [Some(x), Some(index)] = *inputs else { return Err(fail!(Attribute, "an input is missing")) };
        let (dim, x_shape, index_shape) = operands(cx)?;
        let (x, index) = match cx.opt_int("dim")? {
            Some(_) => (b.expand(x, &x_shape)?, b.expand(index, &index_shape)?),
            None => (b.reshape(x, &x_shape)?, b.reshape(index, &index_shape)?),
        };
        Ok(vec![b.one(&GATHER, &[x, index], Attrs::new().with("dim", dim as i64))?])
    }),
    cases: || {
        vec![
            Case::new("broadcast").f(&[3, 1, 2]).index(&[1, 4, 2], 3).attr("dim", 0),
            Case::new("flattened").f(&[2, 3]).index(&[4], 6),
        ]
    },
};

/// The dimension gathered along and the shapes of both operands.
fn operands(cx: &OpCx) -> Result<(usize, Shape, Shape)> {
    let (x, index) = (cx.shape(0)?, cx.shape(1)?);
    if cx.opt_int("dim")?.is_none() {
        return Ok((0, [x.numel()].into(), [index.numel()].into()));
    }
    ensure!(x.rank() == index.rank(), Shape, "{x} and indices {index} must have as many dimensions");
    let dim = cx.dim("dim", x.rank())?;
    let one_at_dim = |s: &Shape| (0..s.rank()).map(|d| if d == dim { 1 } else { s[d] }).collect::<Shape>();
    let rest = one_at_dim(x).broadcast(&one_at_dim(index));
    let rest = rest.ok_or_else(|| fail!(Shape, "{x} and indices {index} do not broadcast"))?;
    let with = |n: &Shape| (0..n.rank()).map(|d| if d == dim { n[d] } else { rest[d] }).collect();
    Ok((dim, with(x), with(index)))
}
