//! Softmax along a dimension.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::{Reduce, ReduceSpace};
use crate::tensor::TensorType;

/// `exp(x - max) / Σ exp(x - max)` along `dim`, in `dtype` if given. What is less than the smallest normal
/// number may be 0.
pub static SOFTMAX: OpDef = OpDef {
    name: "softmax",
    schemas: &[
        "softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
        "special_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
        "_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
    ],
    infer: softmax_type,
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, y) = (cx.grad(0)?, cx.y(0));
        let dim = cx.args().int("dim")?;
        let dx = cx.one(&SOFTMAX_BACKWARD, &[g, y], Attrs::new().with("dim", dim))?;
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
        let e = b.expr(&(input(0) - input(1)).exp_nonpos(), &[v, max]);
        let sum = b.sum(e);
        // One division a row rather than one an element, which is slow; at most an ulp further from the
        // quotient.
        let scale = b.expr(&input(0).recip(), &[sum]);
        let y = b.expr(&(input(0) * input(1)), &[e, scale]);
        b.store(out[0].dtype, space.full.clone(), y);
        Ok(b.finish())
    }),
    cases: || {
        vec![
            Case::new("last").f(&[3, 5]).attr("dim", -1),
            Case::new("middle").range(&[2, 4, 3], -80.0, 80.0).attr("dim", 1),
        ]
    },
};

/// Gradient of [`SOFTMAX`]: `(grad_output, output)`; `dx = y · (g − Σ g·y)`.
pub static SOFTMAX_BACKWARD: OpDef = OpDef {
    name: "_softmax_backward_data",
    schemas: &[],
    infer: |cx| {
        let (g, y) = (cx.ty(0)?, cx.ty(1)?);
        let fits = g.shape == y.shape && g.dtype.is_float() && y.dtype.is_float();
        crate::ensure!(fits, Shape, "gradient {g} and result {y} differ, or are no floats");
        cx.dim("dim", y.shape.rank())?;
        Ok(vec![y.clone()])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(4),
    body: Body::Rows(|cx, out| {
        let space = space(cx)?;
        let mut b = space.builder();
        let g = b.read(cx.dtype(0)?, space.full.clone());
        let y = b.read(cx.dtype(1)?, space.full.clone());
        let gy = b.expr(&(input(0) * input(1)), &[g, y]);
        let sum = b.sum(gy);
        let dx = b.expr(&(input(1) * (input(0) - input(2))), &[g, y, sum]);
        b.store(out[0].dtype, space.full.clone(), dx);
        Ok(b.finish())
    }),
    cases: || vec![Case::new("last").f(&[3, 5]).range(&[3, 5], 0.0, 1.0).attr("dim", -1)],
};

/// Type rule of softmax and its logarithm.
pub(super) fn softmax_type(cx: &OpCx) -> Result<Vec<TensorType>> {
    let x = cx.ty(0)?;
    cx.dim("dim", x.shape.rank())?;
    let dtype = match (cx.opt_dtype("dtype")?, cx.flag("half_to_float")?) {
        (Some(d), _) => d,
        (None, true) => DType::F32,
        (None, false) => x.dtype,
    };
    ensure!(dtype.is_float(), DType, "softmax needs floats, got {x}");
    Ok(vec![TensorType::new(dtype, x.shape.clone())])
}

/// Type rule of the gradients, of `(grad_output, output)`.
pub(super) fn softmax_gradient_type(cx: &OpCx) -> Result<Vec<TensorType>> {
    let y = cx.ty(1)?;
    cx.dim("dim", y.shape.rank())?;
    [0, 1].into_iter().try_for_each(|i| cx.expect_floats(i, &y.shape))?;
    Ok(vec![y.clone()])
}

/// Rows along `dim` of input 0.
pub(super) fn space(cx: &OpCx) -> Result<ReduceSpace> {
    let x = cx.shape(0)?;
    let dim = cx.dim("dim", x.rank())?;
    // A scalar has no dimension to reduce: its softmax is over itself.
    let dims: &[usize] = if x.rank() == 0 { &[] } else { &[dim] };
    Ok(ReduceSpace::new(x, dims))
}
