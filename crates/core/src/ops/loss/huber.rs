//! Losses that are quadratic near zero and linear far away: Huber 1964, and Girshick 2015's smooth form.

use super::mse::difference;
use super::{Reduction, pair_type};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::{float, input};
use crate::ops::pointwise::abs::ABS;
use crate::ops::pointwise::promoted;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};

/// `d²/2` of `d = input − target` up to `delta`, then `delta · (|d| − delta/2)`.
pub static HUBER_LOSS: OpDef = OpDef {
    name: "huber_loss",
    schemas: &["huber_loss(Tensor self, Tensor target, int reduction=1, float delta=1.) -> Tensor"],
    infer: |cx| {
        let delta = width(cx, "delta")?;
        ensure!(delta > 0.0, Attribute, "`delta` must be positive, got {delta}");
        pair_type(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(5),
    body: Body::Decompose(|b, cx, inputs| {
        let d = difference(b, cx, inputs)?;
        let terms = b.one(&HUBER, &[d], Attrs::new().with("delta", width(cx, "delta")?))?;
        Reduction::of(cx)?.finish(b, cx, terms)
    }),
    cases: || {
        let case = |name| Case::new(name).distinct(&[2, 3]).distinct(&[2, 3]);
        vec![
            case("mean").attr("reduction", 1).attr("delta", 1.0),
            case("each, narrow").attr("reduction", 0).attr("delta", 0.3),
        ]
    },
};

/// [`HUBER_LOSS`] divided by its width `beta`; with width 0 the absolute difference.
pub static SMOOTH_L1_LOSS: OpDef = OpDef {
    name: "smooth_l1_loss",
    schemas: &["smooth_l1_loss(Tensor self, Tensor target, int reduction=1, float beta=1.) -> Tensor"],
    infer: |cx| {
        let beta = width(cx, "beta")?;
        ensure!(beta >= 0.0, Attribute, "`beta` must not be negative, got {beta}");
        pair_type(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(5),
    body: Body::Decompose(|b, cx, inputs| {
        let (d, beta) = (difference(b, cx, inputs)?, width(cx, "beta")?);
        let terms = if beta == 0.0 {
            b.one(&ABS, &[d], Attrs::new())?
        } else {
            let terms = b.one(&HUBER, &[d], Attrs::new().with("delta", beta))?;
            b.scale(terms, 1.0 / beta)?
        };
        Reduction::of(cx)?.finish(b, cx, terms)
    }),
    cases: || {
        let case = |name| Case::new(name).distinct(&[2, 3]).distinct(&[2, 3]);
        vec![
            case("mean").attr("reduction", 1).attr("beta", 1.0),
            case("sum, narrow").attr("reduction", 2).attr("beta", 0.3),
            case("no width").attr("reduction", 1).attr("beta", 0.0),
        ]
    },
};

/// [`HUBER_LOSS`] of each difference.
pub static HUBER: OpDef = OpDef {
    name: "huber",
    schemas: &["headwater::huber(Tensor difference, float delta) -> Tensor"],
    infer: |cx| {
        width(cx, "delta")?;
        cx.expect_floats(0, cx.shape(0)?)?;
        promoted(cx)
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, d, attrs) = (cx.grad(0)?, cx.x(0)?, cx.attrs().clone());
        let dx = cx.one(&HUBER_BACKWARD, &[g, d], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        let (delta, size) = (width(cx, "delta")?, input(0).abs());
        let far = (size.clone() - 0.5 * delta) * delta;
        Ok(vec![size.le(float(delta)).select(input(0) * input(0) * 0.5, far)])
    }),
    cases: || vec![Case::new("both sides").distinct(&[7]).attr("delta", 0.8)],
};

/// Gradient of [`HUBER`]: `(grad, difference)` to the gradient times the difference limited to `±delta`.
pub static HUBER_BACKWARD: OpDef = OpDef {
    name: "huber_backward",
    schemas: &["headwater::huber_backward(Tensor grad, Tensor difference, float delta) -> Tensor"],
    infer: |cx| {
        width(cx, "delta")?;
        [0, 1].into_iter().try_for_each(|i| cx.expect_floats(i, cx.shape(1)?))?;
        promoted(cx)
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|cx| {
        let delta = width(cx, "delta")?;
        Ok(vec![input(0) * input(1).max(float(-delta)).min(float(delta))])
    }),
    cases: || vec![Case::new("both sides").f(&[7]).distinct(&[7]).attr("delta", 0.8)],
};

fn width(cx: &OpCx, name: &str) -> Result<f64> {
    Ok(cx.opt_float(name)?.unwrap_or(1.0))
}
