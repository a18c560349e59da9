//! Exponential function less one.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `e^self - 1`, accurate near 0.
pub static EXPM1: OpDef = OpDef {
    name: "expm1",
    schemas: &["expm1(Tensor self) -> Tensor", "special_expm1(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, _, y| {
            let e = b.shift(y, 1.0)?;
            b.mul(g, e)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.expm1()])),
    cases: || vec![Case::new("plain").f(&[3, 4]), Case::new("empty").f(&[0])],
};
