//! Variance and standard deviation over dimensions.

use super::mean::MEAN;
use super::{dims, kept_shape, program, reduced_count, reduced_shape, restore_reduced};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::Class;
use crate::ensure;
use crate::expr::{Expr, input};
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::compare::EQ;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::{ReduceSpace, RowProgram};
use crate::tensor::TensorType;

/// Variance over `dim` (absent or empty: all): `Σ (x − mean)² / max(0, n − correction)`. `correction` is 1 if
/// absent, 0 with `unbiased` false.
pub static VAR: OpDef = OpDef {
    name: "var",
    schemas: &[
        "var(Tensor self, bool unbiased=True) -> Tensor",
        "var.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor",
        "var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor",
    ],
    infer,
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let g = cx.grad(0)?;
        backward(cx, g)
    }),
    precision: Precision::Full,
    cost: Cost::PerInput(4),
    body: Body::Rows(|cx, out| body(cx, out, input(0))),
    cases,
};

/// Standard deviation, the square root of [`VAR`]. Its gradient at 0 is 0, as PyTorch's.
pub static STD: OpDef = OpDef {
    name: "std",
    schemas: &[
        "std(Tensor self, bool unbiased=True) -> Tensor",
        "std.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor",
        "std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor",
    ],
    infer,
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, y) = (cx.grad(0)?, cx.y(0));
        let slope = cx.div(g, y)?;
        let slope = cx.scale(slope, 0.5)?;
        let zero = cx.one(&EQ, &[y], Attrs::new().with("other", 0.0))?;
        let slope = cx.drop_where(zero, slope)?;
        backward(cx, slope)
    }),
    precision: Precision::Full,
    cost: Cost::PerInput(4),
    body: Body::Rows(|cx, out| body(cx, out, input(0).sqrt())),
    cases,
};

/// [`VAR`] and the mean.
pub static VAR_MEAN: OpDef = OpDef {
    name: "var_mean",
    schemas: &[
        "var_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)",
        "var_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)",
        "var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)",
    ],
    infer: |cx| Ok([infer(cx)?, infer(cx)?].concat()),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(5),
    body: Body::Decompose(|b, cx, inputs| with_mean(b, cx, inputs, &VAR)),
    cases,
};

/// [`STD`] and the mean.
pub static STD_MEAN: OpDef = OpDef {
    name: "std_mean",
    schemas: &[
        "std_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)",
        "std_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)",
        "std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)",
    ],
    infer: |cx| Ok([infer(cx)?, infer(cx)?].concat()),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(5),
    body: Body::Decompose(|b, cx, inputs| with_mean(b, cx, inputs, &STD)),
    cases,
};

/// Gradient of [`VAR`]: `(grad, self)`, the gradient with `dim` kept as 1: `g · 2 / (n − correction) · (x −
/// mean)`.
pub static VAR_BACKWARD: OpDef = OpDef {
    name: "var_backward",
    schemas: &[],
    infer: |cx| {
        let x = cx.ty(1)?;
        correction(cx)?;
        cx.expect_floats(1, &x.shape)?;
        cx.expect_floats(0, &kept_shape(cx, 1)?)?;
        Ok(vec![x.clone()])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(4),
    body: Body::Rows(|cx, out| {
        let x = cx.ty(1)?;
        let space = ReduceSpace::new(&x.shape, &cx.dims("dim", x.shape.rank())?);
        let n = space.inner.iter().product::<usize>() as f64;
        let mut b = space.builder();
        let g = b.read(cx.dtype(0)?, space.kept.clone());
        let v = b.read(x.dtype, space.full.clone());
        let sum = b.sum(v);
        let slope = 2.0 / (n - correction(cx)?).max(0.0);
        let dx = b.expr(&((input(0) - input(1) / n) * (input(2) * slope)), &[v, sum, g]);
        b.store(out[0].dtype, space.full.clone(), dx);
        Ok(b.finish())
    }),
    cases: || vec![Case::new("middle").f(&[2, 1, 3]).f(&[2, 4, 3]).attr("dim", [1]).attr("correction", 1)],
};

fn correction(cx: &OpCx) -> Result<f64> {
    let biased = cx.attrs.get("unbiased").is_some() && !cx.flag("unbiased")?;
    Ok(cx.opt_float("correction")?.unwrap_or(if biased { 0.0 } else { 1.0 }))
}

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let x = cx.ty(0)?;
    correction(cx)?;
    ensure!(x.dtype.class() == Class::Float, DType, "a variance needs floats, got {x}");
    Ok(vec![TensorType::new(x.dtype, reduced_shape(cx)?)])
}

fn body(cx: &OpCx, out: &[TensorType], result: Expr) -> Result<RowProgram> {
    let n = reduced_count(cx)? as f64;
    let divisor = (n - correction(cx)?).max(0.0);
    program(cx, out, |b, _, v| {
        let sum = b.sum(v);
        let square = (input(0) - input(1) / n) * (input(0) - input(1) / n);
        let square = b.expr(&square, &[v, sum]);
        let square = b.sum(square);
        let var = b.expr(&(input(0) / divisor), &[square]);
        Ok([b.expr(&result, &[var])])
    })
}

/// Sets the gradient of the input, given that of the variance.
fn backward(cx: &mut GradCx, g: ValueId) -> Result<()> {
    let (g, x) = (restore_reduced(cx, g)?, cx.x(0)?);
    let (dims, correction) = (cx.of(dims)?, cx.of(correction)?);
    let dims: Vec<i64> = dims.into_iter().map(|d| d as i64).collect();
    let attrs = Attrs::new().with("dim", dims).with("correction", correction);
    let dx = cx.one(&VAR_BACKWARD, &[g, x], attrs)?;
    cx.set(0, dx)
}

fn with_mean(
    b: &mut Builder,
    cx: &OpCx,
    inputs: &[Option<ValueId>],
    spread: &'static OpDef,
) -> Result<Vec<ValueId>> {
    let spread = b.apply(spread, inputs, cx.attrs.clone())?[0];
    let dims: Vec<i64> = dims(cx)?.into_iter().map(|d| d as i64).collect();
    let attrs = Attrs::new().with("dim", dims).with("keepdim", cx.flag("keepdim")?);
    Ok(vec![spread, b.apply(&MEAN, inputs, attrs)?[0]])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("all").f(&[2, 3]),
        Case::new("biased").f(&[2, 3]).attr("unbiased", false),
        Case::new("two kept").f(&[2, 3, 4]).attr("dim", [0, -1]).attr("correction", 0).attr("keepdim", true),
        Case::new("corrected").f(&[2, 5]).attr("dim", [1]).attr("correction", 2.5),
    ]
}
