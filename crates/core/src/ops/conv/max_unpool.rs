//! The inverse of max pooling: each maximum back in its place.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::index::scatter::SCATTER;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// `(self [..., h, w], indices)`: zeros `[..., *output_size]` with each number at its index in the plane, as
/// max pooling gives them. Of several numbers at one place, one is kept.
pub static MAX_UNPOOL2D: OpDef = OpDef {
    name: "max_unpool2d",
    schemas: &["max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor"],
    infer: |cx| types(cx, 2),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| unpooled(b, cx, inputs, 2)),
    cases: || {
        let at = crate::ops::Sample::Values(vec![0.0, 3.0, 5.0, 7.0, 1.0, 2.0, 4.0, 6.0]);
        let case = Case::new("planes").f(&[1, 2, 2, 2]).arg(DType::I64, &[1, 2, 2, 2], at);
        vec![case.attr("output_size", [2, 4])]
    },
};

/// [`MAX_UNPOOL2D`] of volumes `[..., d, h, w]`.
pub static MAX_UNPOOL3D: OpDef = OpDef {
    name: "max_unpool3d",
    schemas: &[
        "max_unpool3d(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] padding) -> Tensor",
    ],
    infer: |cx| types(cx, 3),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| unpooled(b, cx, inputs, 3)),
    cases: || {
        let at = crate::ops::Sample::Values(vec![0.0, 7.0, 5.0, 2.0]);
        let case = Case::new("volume").f(&[1, 2, 1, 2]).arg(DType::I64, &[1, 2, 1, 2], at);
        vec![case.attr("output_size", [2, 2, 2]).attr("stride", [1, 2, 1]).attr("padding", [0, 0, 0])]
    },
};

fn types(cx: &OpCx, dims: usize) -> Result<Vec<TensorType>> {
    let (x, at, size) = (cx.ty(0)?, cx.ty(1)?, cx.sizes("output_size")?);
    let rank = x.shape.rank();
    ensure!(at.shape == x.shape && at.dtype == DType::I64, Shape, "indices {at} of {x}");
    let fits = (dims + 1..=dims + 2).contains(&rank) && size.rank() == dims;
    ensure!(fits, Shape, "{x} has no {dims} dimensions to be made {size}");
    let shape = Shape::from([&x.shape[..rank - dims], &size].concat());
    ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
    Ok(vec![TensorType::new(x.dtype, shape)])
}

fn unpooled(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>], dims: usize) -> Result<Vec<ValueId>> {
    let (x, ty) = (cx.shape(0)?, types(cx, dims)?.remove(0));
    let lead: usize = x[..x.rank() - dims].iter().product();
    let flat = |of: &[usize]| [lead, of[of.len() - dims..].iter().product()];
    let numbers = b.reshape(required(inputs, 0)?, &flat(x))?;
    let at = b.reshape(required(inputs, 1)?, &flat(x))?;
    let zeros = b.full(&TensorType::new(ty.dtype, flat(&ty.shape)), 0.0)?;
    let spread = b.one(&SCATTER, &[zeros, at, numbers], Attrs::new().with("dim", 1))?;
    Ok(vec![b.reshape(spread, &ty.shape)?])
}
