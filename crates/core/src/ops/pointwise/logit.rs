//! Inverse of the logistic function.

use super::{NO_SECOND, float_input, float_like, float_promoted, through_input};
use crate::diagnostic::Result;
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};

/// `ln(x / (1 - x))`, with `eps` of `x` held between `eps` and `1 - eps`.
pub static LOGIT: OpDef = OpDef {
    name: "logit",
    schemas: &[
        "logit(Tensor self, float? eps=None) -> Tensor",
        "special_logit(Tensor self, float? eps=None) -> Tensor",
    ],
    infer: float_like,
    derivative: Derivative::Rule(|cx| through_input(cx, &LOGIT_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| {
        let x = float_input(cx)?;
        let x = match cx.opt_float("eps")? {
            Some(eps) => x.max(float(eps)).min(float(1.0 - eps)),
            None => x,
        };
        Ok(vec![(x.clone() / (float(1.0) - x)).log()])
    }),
    cases: || {
        vec![
            Case::new("inside").range(&[7], 0.05, 0.95),
            Case::new("held").range(&[7], -0.4, 1.4).attr("eps", 0.1),
        ]
    },
};

/// Gradient of [`LOGIT`]: `(grad_output, self)`; `g / (x (1 - x))`; outside the bounds 0 with `eps`, else
/// NaN.
pub static LOGIT_BACKWARD: OpDef = OpDef {
    name: "logit_backward",
    schemas: &["logit_backward(Tensor grad_output, Tensor self, float? eps=None) -> Tensor"],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(5),
    body: Body::Pointwise(backward),
    cases: || vec![Case::new("inside").f(&[7]).range(&[7], 0.05, 0.95)],
};

fn backward(cx: &OpCx) -> Result<Vec<Expr>> {
    let (g, x) = (input(0), input(1));
    let (bound, outside) = match cx.opt_float("eps")? {
        Some(eps) => (eps, 0.0),
        None => (0.0, f64::NAN),
    };
    let out = x.clone().lt(float(bound)).or(x.clone().gt(float(1.0 - bound)));
    Ok(vec![out.select(float(outside), g / (x.clone() * (float(1.0) - x)))])
}
