//! `self · ln(1 + other)`, and 0 where `self` is 0.

use super::log1p::LOG1P;
use super::{float_arithmetic, floating, operand};
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `self · ln(1 + other)`, 0 where `self` is 0 unless `other` is NaN; broadcast and promoted.
pub static XLOG1PY: OpDef = OpDef {
    name: "special_xlog1py",
    schemas: &["special_xlog1py(Tensor self, Tensor other) -> Tensor"],
    infer: float_arithmetic,
    derivative: Derivative::Rule(|cx| {
        let (g, x, other) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?);
        if cx.needs(0) {
            let log = cx.call(&LOG1P, &[other])?;
            let dx = cx.mul(g, log)?;
            cx.set(0, dx)?;
        }
        if cx.needs(1) {
            let more = cx.shift(other, 1.0)?;
            let slope = cx.div(x, more)?;
            let dy = cx.mul(g, slope)?;
            cx.set(1, dy)?;
        }
        Ok(())
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| {
        let dtype = floating(cx.result_type(&[]));
        let (x, y) = (operand(cx, 0, dtype)?, operand(cx, 1, dtype)?);
        let product = x.clone().eq(float(0.0)).select(float(0.0), x * y.clone().log1p());
        Ok(vec![y.clone().is_nan().select(y, product)])
    }),
    cases: || vec![Case::new("broadcast").range(&[2, 3], 0.1, 2.0).range(&[3], -0.8, 2.0)],
};
