//! Gaussian error linear unit: Hendrycks and Gimpel 2016, exact and tanh forms as in PyTorch.

use super::{float_only, float_promoted};
use crate::diagnostic::{Code, Error, Result};
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

/// `x · Φ(x)`, or its tanh approximation.
pub static GELU: OpDef = OpDef {
    name: "gelu",
    schemas: &["gelu(Tensor self, *, str approximate='none') -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x, attrs) = (cx.grad(0)?, cx.x(0)?, cx.attrs().clone());
        let dx = cx.one(&GELU_BACKWARD, &[g, x], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(forward),
    cases: || {
        vec![
            Case::new("exact").range(&[3, 5], -6.0, 6.0).attr("approximate", "none"),
            Case::new("tanh").range(&[3, 5], -6.0, 6.0).attr("approximate", "tanh"),
        ]
    },
};

/// Gradient of [`GELU`]: `(grad_output, self)`.
pub static GELU_BACKWARD: OpDef = OpDef {
    name: "gelu_backward",
    schemas: &["gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor"],
    infer: float_promoted,
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(20),
    body: Body::Pointwise(backward),
    cases: || {
        vec![
            Case::new("exact").f(&[7]).range(&[7], -6.0, 6.0).attr("approximate", "none"),
            Case::new("tanh").f(&[7]).range(&[7], -6.0, 6.0).attr("approximate", "tanh"),
        ]
    },
};

/// sqrt(2/π) and the cubic coefficient of the tanh form.
const BETA: f64 = SQRT_2 * FRAC_2_SQRT_PI * 0.5;
const KAPPA: f64 = 0.044715;

fn tanh_form(cx: &OpCx) -> Result<bool> {
    match cx.opt_str("approximate")?.unwrap_or("none") {
        "none" => Ok(false),
        "tanh" => Ok(true),
        other => Err(Error::new(Code::Attribute, format!("`approximate` must be none or tanh, got {other}"))),
    }
}

fn tanh_inner(x: Expr) -> Expr {
    let cube = x.clone() * x.clone() * x.clone();
    (float(KAPPA) * cube + x) * BETA
}

fn forward(cx: &OpCx) -> Result<Vec<Expr>> {
    let x = input(0);
    let cdf = if tanh_form(cx)? { (tanh_inner(x.clone()).tanh() + 1.0) * 0.5 } else { x.clone().ndtr() };
    Ok(vec![x * cdf])
}

fn backward(cx: &OpCx) -> Result<Vec<Expr>> {
    let (g, x) = (input(0), input(1));
    let slope = if tanh_form(cx)? {
        // 1 - t² is s (2 - s) with s = 1 + t, the same s that the forward function has: they share it where
        // the forward result is recomputed, and it keeps its bits on devices that compute s without the
        // tangent.
        let s = tanh_inner(x.clone()).tanh() + 1.0;
        let inner = (float(3.0 * KAPPA) * x.clone() * x.clone() + 1.0) * BETA;
        s.clone() * 0.5 + x * 0.5 * (s.clone() * (float(2.0) - s)) * inner
    } else {
        let cdf = x.clone().ndtr();
        let pdf = (x.clone() * x.clone() * -0.5).exp_nonpos() * (FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * 0.5);
        cdf + x * pdf
    };
    Ok(vec![g * slope])
}
