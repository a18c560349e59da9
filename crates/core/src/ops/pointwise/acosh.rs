//! Inverse hyperbolic cosine.

use super::{chain, float_input, float_like};
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use std::f64::consts::LN_2;

/// `ln(x + √(x² - 1))`, near 1 without cancellation, far out without overflow of the square.
pub static ACOSH: OpDef = OpDef {
    name: "acosh",
    schemas: &["acosh(Tensor self) -> Tensor", "arccosh(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let square = b.mul(x, x)?;
            let left = b.shift(square, -1.0)?;
            let r = b.call(&super::rsqrt::RSQRT, &[left])?;
            b.mul(g, r)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(25),
    body: Body::Pointwise(|cx| {
        let x = float_input(cx)?;
        let t = x.clone() - 1.0;
        let near = (t.clone() + (t.clone() * t.clone() + t * 2.0).sqrt()).log1p();
        let far = x.clone().log() + LN_2;
        Ok(vec![x.gt(float(1e9)).select(far, near)])
    }),
    cases: || vec![Case::new("above one").range(&[3, 4], 1.1, 4.0)],
};
