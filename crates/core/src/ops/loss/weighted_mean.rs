//! Weighted mean of all elements.

use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision};
use crate::row::{Access, RowBuilder};
use crate::tensor::TensorType;

/// `(weighted terms, weights)`, of one shape: `Σ terms / Σ weights`, and `1 / Σ weights` for the gradient. The weights
/// depend on nothing differentiable: the losses that make them refuse to differentiate class weights.
pub static WEIGHTED_MEAN: OpDef = OpDef {
    name: "weighted_mean",
    schemas: &[],
    infer: |cx| {
        let (x, w) = (cx.ty(0)?, cx.ty(1)?);
        ensure!(x.shape == w.shape && x.dtype.is_float() && w.dtype.is_float(), Shape, "{x} weighted by {w}");
        Ok(vec![TensorType::new(x.dtype, []); 2])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| -> Result<()> {
        cx.only_outputs_before(1)?;
        let (g, inverse, x) = (cx.grad(0)?, cx.y(1), cx.x(0)?);
        let each = cx.mul(g, inverse)?;
        let shape = cx.ty(x).shape.clone();
        let dx = cx.expand(each, &shape)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerInput(2),
    body: Body::Rows(|cx, out| {
        let x = cx.ty(0)?;
        let rank = x.shape.rank();
        let mut b = RowBuilder::new(&[], &x.shape);
        let [terms, weights] = [x.dtype, cx.dtype(1)?].map(|d| b.read(d, Access::identity(rank)));
        let (sum, total) = (b.sum(terms), b.sum(weights));
        for (ty, e) in out.iter().zip([input(0) / input(1), float(1.0) / input(1)]) {
            let v = b.expr(&e, &[sum, total]);
            b.store(ty.dtype, Access::still(rank), v);
        }
        Ok(b.finish())
    }),
    cases: || vec![Case::new("plain").f(&[2, 3]).range(&[2, 3], 0.1, 2.0).constant()],
};
