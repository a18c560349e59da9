//! Cosine embedding loss: pairs that are alike point the same way, others do not.

use super::{Reduction, term_dtype};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::pointwise::{compare::EQ, relu::RELU, sqrt::SQRT};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// Added to squares of lengths, so that vectors of zeros have a direction: a number of f32, as PyTorch's.
const EPSILON: f64 = 1e-12_f32 as f64;

/// `(input1 [N, D], input2 [N, D], target [N])`, or without N: with c the cosine of the angle between both
/// vectors, `1 − c` where the target is 1 and `max(0, c − margin)` where it is −1, reduced.
pub static COSINE_EMBEDDING_LOSS: OpDef = OpDef {
    name: "cosine_embedding_loss",
    schemas: &[
        "cosine_embedding_loss(Tensor input1, Tensor input2, Tensor target, float margin=0., int reduction=1) -> Tensor",
    ],
    infer: |cx| {
        let terms = terms(cx)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, Reduction::of(cx)?.shape(&terms))])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(8),
    body: Body::Decompose(|b, cx, inputs| {
        let (dtype, dims) = (term_dtype(cx.dtype(0)?)?, [terms(cx)?.rank()]);
        let (x, y) = (b.cast(required(inputs, 0)?, dtype)?, b.cast(required(inputs, 1)?, dtype)?);
        let target = required(inputs, 2)?;
        let mut inner = |a, c| {
            let products = b.mul(a, c)?;
            b.sum(products, &dims, false)
        };
        let [xy, xx, yy] = [inner(x, y)?, inner(x, x)?, inner(y, y)?];
        let (xx, yy) = (b.shift(xx, EPSILON)?, b.shift(yy, EPSILON)?);
        let lengths = b.mul(xx, yy)?;
        let lengths = b.call(&SQRT, &[lengths])?;
        let cosine = b.div(xy, lengths)?;
        let apart = b.neg(cosine)?;
        let apart = b.shift(apart, 1.0)?;
        let near = b.shift(cosine, -cx.opt_float("margin")?.unwrap_or(0.0))?;
        let near = b.call(&RELU, &[near])?;
        let mut of = |label: i64, term| {
            let chosen = b.one(&EQ, &[target], Attrs::new().with("other", label))?;
            b.keep_where(chosen, term)
        };
        let (alike, others) = (of(1, apart)?, of(-1, near)?);
        let terms = b.add(alike, others)?;
        let loss = Reduction::of(cx)?.apply(b, terms)?;
        Ok(vec![b.cast(loss, cx.dtype(0)?)?])
    }),
    cases: || {
        let case = |name, reduction: i64| {
            let target = Sample::Values(vec![1.0, -1.0, -1.0]);
            let case = Case::new(name).f(&[3, 4]).f(&[3, 4]).arg(crate::DType::I64, &[3], target);
            case.attr("margin", -0.9).attr("reduction", reduction)
        };
        let one =
            Case::new("one pair").f(&[3]).f(&[3]).arg(crate::DType::I64, &[], Sample::Values(vec![1.0]));
        vec![case("each", 0), case("mean", 1), case("sum", 2), one.attr("margin", 0.5).attr("reduction", 1)]
    },
};

/// Shape of the terms: that of the target.
fn terms(cx: &OpCx) -> Result<Shape> {
    let (x, y, target) = (cx.ty(0)?, cx.ty(1)?, cx.ty(2)?);
    let same = x.dtype == y.dtype && x.dtype.is_float() && x.shape == y.shape;
    ensure!(same, Shape, "vectors of one shape and float dtype are needed, got {}", cx.list_types());
    let (rank, fits) = (target.shape.rank(), x.shape.rank() == target.shape.rank() + 1);
    ensure!(
        rank <= 1 && fits && x.shape[..rank] == target.shape[..],
        Shape,
        "inputs [N, D] and a target [N], or [D] and a scalar, are needed, got {}",
        cx.list_types()
    );
    cx.opt_float("margin")?;
    Ok(target.shape.clone())
}
