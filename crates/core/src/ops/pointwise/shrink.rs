//! Numbers near 0 set to 0.

use super::{NO_SECOND, float_only, float_promoted, through_input};
use crate::diagnostic::Result;
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};

/// `x` where `|x| > lambd`, else 0.
pub static HARDSHRINK: OpDef = OpDef {
    name: "hardshrink",
    schemas: &["hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx| through_input(cx, &SHRINK_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| Ok(vec![near_zero(cx, input(0))?.select(float(0.0), input(0))])),
    cases: || vec![Case::new("plain").distinct(&[7]).attr("lambd", 0.7)],
};

/// `x` moved by `lambd` towards 0, and 0 where that would pass it.
pub static SOFTSHRINK: OpDef = OpDef {
    name: "softshrink",
    schemas: &["softshrink(Tensor self, Scalar lambd=0.5) -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx| through_input(cx, &SHRINK_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        let (x, lambd) = (input(0), cx.opt_float("lambd")?.unwrap_or(0.5));
        let moved = x.clone().gt(float(0.0)).select(x.clone() - lambd, x.clone() + lambd);
        Ok(vec![near_zero(cx, x)?.select(float(0.0), moved)])
    }),
    cases: || vec![Case::new("plain").distinct(&[7]).attr("lambd", 0.7)],
};

/// Gradient of both: `(grad_output, self)`; `g` where `|x| > lambd`, else 0.
pub static SHRINK_BACKWARD: OpDef = OpDef {
    name: "shrink_backward",
    schemas: &["headwater::shrink_backward(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor"],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| Ok(vec![near_zero(cx, input(1))?.select(float(0.0), input(0))])),
    cases: || vec![Case::new("plain").f(&[7]).distinct(&[7]).attr("lambd", 0.7)],
};

fn near_zero(cx: &OpCx, x: Expr) -> Result<Expr> {
    Ok(x.abs().le(float(cx.opt_float("lambd")?.unwrap_or(0.5))))
}
