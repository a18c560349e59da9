//! Distances between vectors at the same place of two tensors.

use super::vector_norm::VECTOR_NORM;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// The `p`-norm of `x1 − x2 + eps` along the last dimension, the inputs broadcast.
pub static PAIRWISE_DISTANCE: OpDef = OpDef {
    name: "pairwise_distance",
    schemas: &[
        "pairwise_distance(Tensor x1, Tensor x2, float p=2., float eps=9.9999999999999995e-07, bool keepdim=False) -> Tensor",
    ],
    infer: |cx| {
        let (mut shape, dtype) = (all(cx)?.to_vec(), cx.result_type(&[]));
        cx.opt_float("eps")?;
        let last = shape.pop().ok_or_else(|| fail!(Shape, "distances of scalars"))?;
        ensure!(
            last > 0 || cx.opt_float("p")?.unwrap_or(2.0).is_finite(),
            Shape,
            "no largest of nothing in {}",
            cx.list_types()
        );
        if cx.flag("keepdim")? {
            shape.push(1);
        }
        Ok(vec![TensorType::new(dtype, shape)])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(5),
    body: Body::Decompose(|b, cx, inputs| {
        let (p, eps) = (cx.opt_float("p")?.unwrap_or(2.0), cx.opt_float("eps")?.unwrap_or(1e-6));
        let [x, y] = operands(b, cx, inputs)?;
        Ok(vec![distance(b, x, y, p, eps, cx.flag("keepdim")?)?])
    }),
    cases: || {
        let case = |name| Case::new(name).range(&[3, 2], -2.0, -0.1).range(&[3, 2], 0.1, 2.0);
        vec![
            case("euclidean").attr("p", 2.0).attr("eps", 1e-6),
            case("cubic, kept").attr("p", 3.0).attr("eps", 0.0).attr("keepdim", true),
            Case::new("broadcast").f(&[2, 1, 3]).range(&[4, 3], 3.0, 4.0).attr("p", 1.0).attr("eps", 1e-6),
        ]
    },
};

/// The `p`-norm of all elements of `self − other`, broadcast.
pub static DIST: OpDef = OpDef {
    name: "dist",
    schemas: &["dist(Tensor self, Tensor other, Scalar p=2) -> Tensor"],
    infer: |cx| {
        let count = all(cx)?.numel();
        let finite = cx.opt_float("p")?.unwrap_or(2.0).is_finite();
        ensure!(finite || count > 0, Shape, "no largest of nothing in {}", cx.list_types());
        Ok(vec![TensorType::new(cx.result_type(&[]), [])])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(4),
    body: Body::Decompose(|b, cx, inputs| {
        let [x, y] = operands(b, cx, inputs)?;
        let difference = b.sub(x, y)?;
        let p = cx.opt_float("p")?.unwrap_or(2.0);
        Ok(vec![b.one(&VECTOR_NORM, &[difference], Attrs::new().with("ord", p))?])
    }),
    cases: || {
        let case = |name| Case::new(name).range(&[2, 3], -2.0, -0.1).range(&[3], 0.1, 2.0);
        vec![case("euclidean").attr("p", 2), case("sum").attr("p", 1.0)]
    },
};

/// The `p`-norm of `x − y + eps` along the last dimension.
pub fn distance(b: &mut Builder, x: ValueId, y: ValueId, p: f64, eps: f64, keep: bool) -> Result<ValueId> {
    let difference = b.sub(x, y)?;
    let difference = b.shift(difference, eps)?;
    let attrs = Attrs::new().with("ord", p).with("dim", [-1]).with("keepdim", keep);
    b.one(&VECTOR_NORM, &[difference], attrs)
}

/// Shape of all differences.
fn all(cx: &OpCx) -> Result<Shape> {
    cx.ty(0).and(cx.ty(1))?;
    ensure!(cx.result_type(&[]).is_float(), DType, "a distance needs floats, got {}", cx.list_types());
    cx.broadcast()
}

/// Both inputs in the promoted dtype.
fn operands(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<[ValueId; 2]> {
    let dtype = cx.result_type(&[]);
    Ok([b.cast(required(inputs, 0)?, dtype)?, b.cast(required(inputs, 1)?, dtype)?])
}
