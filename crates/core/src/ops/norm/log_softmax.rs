//! Logarithm of softmax along a dimension, computed without forming the softmax.

use super::softmax::{softmax_gradient_type, softmax_type, space};
use crate::attr::Attrs;
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision};
use crate::row::Reduce;

/// `x − max − log Σ exp(x − max)` along `dim`, computed in `dtype` if given.
pub static LOG_SOFTMAX: OpDef = OpDef {
    name: "log_softmax",
    schemas: &[
        "log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
        "special_log_softmax(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor",
        "_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
    ],
    infer: softmax_type,
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, y, dim) = (cx.grad(0)?, cx.y(0), cx.args().int("dim")?);
        let dx = cx.one(&LOG_SOFTMAX_BACKWARD, &[g, y], Attrs::new().with("dim", dim))?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(5),
    body: Body::Rows(|cx, out| {
        let (x, space) = (cx.ty(0)?, space(cx)?);
        let mut b = space.builder();
        let v = b.read(x.dtype, space.full.clone());
        let v = b.expr(&input(0).cast(out[0].dtype), &[v]);
        let max = b.reduce(Reduce::Max, v);
        let v = b.expr(&(input(0) - input(1)), &[v, max]);
        let e = b.expr(&input(0).exp_nonpos(), &[v]);
        let sum = b.sum(e);
        let y = b.expr(&(input(0) - input(1).log()), &[v, sum]);
        b.store(out[0].dtype, space.full.clone(), y);
        Ok(b.finish())
    }),
    cases: || {
        vec![
            Case::new("last").f(&[3, 5]).attr("dim", -1),
            Case::new("middle").range(&[2, 4, 3], -80.0, 80.0).attr("dim", 1),
            Case::new("scalar").f(&[]).attr("dim", 0),
        ]
    },
};

/// Gradient of [`LOG_SOFTMAX`]: `(grad_output, output)`; `dx = g − exp(y) · Σ g`.
pub static LOG_SOFTMAX_BACKWARD: OpDef = OpDef {
    name: "_log_softmax_backward_data",
    schemas: &[],
    infer: softmax_gradient_type,
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(4),
    body: Body::Rows(|cx, out| {
        let space = space(cx)?;
        let mut b = space.builder();
        let g = b.read(cx.dtype(0)?, space.full.clone());
        let y = b.read(cx.dtype(1)?, space.full.clone());
        let sum = b.sum(g);
        let dx = b.expr(&(input(0) - input(1).exp_nonpos() * input(2)), &[g, y, sum]);
        b.store(out[0].dtype, space.full.clone(), dx);
        Ok(b.finish())
    }),
    cases: || vec![Case::new("last").f(&[3, 5]).range(&[3, 5], -4.0, 0.0).attr("dim", -1)],
};
