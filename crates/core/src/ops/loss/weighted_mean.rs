//! Weighted mean of all elements.

use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::input;
use crate::ops::pointwise::div::DIV;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision};
use crate::row::{Access, RowBuilder};
use crate::tensor::TensorType;

/// `(weighted terms, weights)`, of one shape: `Σ terms / Σ weights`. The weights depend on nothing
/// differentiable ([`TARGET_WEIGHT`](super::target_weight::TARGET_WEIGHT)).
pub static WEIGHTED_MEAN: OpDef = OpDef {
    name: "weighted_mean",
    schemas: &[],
    infer: |cx| {
        let (x, w) = (cx.ty(0)?, cx.ty(1)?);
        ensure!(x.shape == w.shape && x.dtype.is_float() && w.dtype.is_float(), Shape, "{x} weighted by {w}");
        Ok(vec![TensorType::new(x.dtype, [])])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| -> Result<()> {
        let (g, x, weights) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?);
        // Summed again, so that the gradient waits for the weights alone.
        let (shape, dtype) = (cx.ty(x).shape.clone(), cx.ty(g).dtype);
        let total = match shape.rank() {
            0 => weights,
            rank => cx.sum(weights, &(0..rank).collect::<Vec<_>>(), false)?,
        };
        let total = cx.cast(total, dtype)?;
        let each = cx.call(&DIV, &[g, total])?;
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
        let mean = b.expr(&(input(0) / input(1)), &[sum, total]);
        b.store(out[0].dtype, Access::still(rank), mean);
        Ok(b.finish())
    }),
    cases: || vec![Case::new("plain").f(&[2, 3]).range(&[2, 3], 0.1, 2.0).constant()],
};
