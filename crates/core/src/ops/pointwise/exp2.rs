//! Exponential function of base 2.

use super::{chain, float_input, float_like};
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use std::f64::consts::LN_2;

/// `2^self`.
pub static EXP2: OpDef = OpDef {
    name: "exp2",
    schemas: &["exp2(Tensor self) -> Tensor", "special_exp2(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, _, y| {
            let dx = b.mul(g, y)?;
            b.scale(dx, LN_2)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| Ok(vec![float(2.0).pow(float_input(cx)?)])),
    cases: || vec![Case::new("plain").f(&[3, 4]), Case::new("empty").f(&[0])],
};
