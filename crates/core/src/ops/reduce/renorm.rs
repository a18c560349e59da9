//! Slices held to a norm.

use super::vector_norm::VECTOR_NORM;
use crate::attr::Attrs;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::compare::GT;
use crate::ops::pointwise::reciprocal::RECIPROCAL;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::tensor::TensorType;

/// Each slice along `dim` whose `p`-norm is larger than `maxnorm`, scaled by `maxnorm / (norm + 1e-7)`.
pub static RENORM: OpDef = OpDef {
    name: "renorm",
    schemas: &["renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor"],
    infer: |cx| {
        let x = cx.ty(0)?;
        ensure!(x.dtype.is_float() && x.shape.rank() > 1, Shape, "slices of floats are needed, got {x}");
        cx.dim("dim", x.shape.rank())?;
        let (p, most) = (cx.float("p")?, cx.float("maxnorm")?);
        ensure!(p > 0.0 && p.is_finite() && most >= 0.0, Attribute, "`p` {p} with `maxnorm` {most}");
        Ok(vec![x.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(4),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (x, shape) = (required(inputs, 0)?, cx.shape(0)?);
        let (dim, most) = (cx.dim("dim", shape.rank())?, cx.float("maxnorm")?);
        let over: Vec<i64> = (0..shape.rank()).filter(|&d| d != dim).map(|d| d as i64).collect();
        let attrs = Attrs::new().with("ord", cx.float("p")?).with("dim", over).with("keepdim", true);
        let norm = b.one(&VECTOR_NORM, &[x], attrs)?;
        let large = b.one(&GT, &[norm], Attrs::new().with("other", most))?;
        let some = b.shift(norm, 1e-7)?;
        let scale = b.call(&RECIPROCAL, &[some])?;
        let scale = b.scale(scale, most)?;
        let one = b.full(&TensorType::new(cx.dtype(0)?, b.ty(norm).shape.clone()), 1.0)?;
        let scale = b.choose(large, scale, one)?;
        Ok(vec![b.mul(x, scale)?])
    }),
    cases: || {
        vec![
            Case::new("rows").f(&[3, 4]).attr("p", 2).attr("dim", 0).attr("maxnorm", 1.5),
            Case::new("middle").distinct(&[2, 3, 2]).attr("p", 1.0).attr("dim", 1).attr("maxnorm", 3.0),
        ]
    },
};
