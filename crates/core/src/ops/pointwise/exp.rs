//! Exponential function.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `e^self`.
pub static EXP: OpDef = OpDef {
    name: "exp",
    schemas: &["exp(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| chain(cx, |b, g, _, y| b.mul(g, y))),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.exp()])),
    cases: || vec![Case::new("plain").f(&[3, 4]), Case::new("empty").f(&[0])],
};
