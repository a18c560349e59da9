//! Inverse hyperbolic sine.

use super::{chain, float_input, float_like};
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use std::f64::consts::LN_2;

/// `sign(x) ln(|x| + √(x² + 1))`, near 0 without cancellation, far out without overflow of the square.
pub static ASINH: OpDef = OpDef {
    name: "asinh",
    schemas: &["asinh(Tensor self) -> Tensor", "arcsinh(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let square = b.mul(x, x)?;
            let left = b.shift(square, 1.0)?;
            let r = b.call(&super::rsqrt::RSQRT, &[left])?;
            b.mul(g, r)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(25),
    body: Body::Pointwise(|cx| {
        let x = float_input(cx)?;
        let a = x.clone().abs();
        let square = a.clone() * a.clone();
        let near = (a.clone() + square.clone() / ((square + 1.0).sqrt() + 1.0)).log1p();
        let far = a.clone().log() + LN_2;
        Ok(vec![x.sign() * a.gt(float(1e9)).select(far, near)])
    }),
    cases: || vec![Case::new("plain").f(&[3, 4]), Case::new("empty").f(&[0])],
};
