//! Logarithm of one more.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `ln(1 + self)`, accurate near 0.
pub static LOG1P: OpDef = OpDef {
    name: "log1p",
    schemas: &["log1p(Tensor self) -> Tensor", "special_log1p(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let d = b.shift(x, 1.0)?;
            b.div(g, d)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.log1p()])),
    cases: || vec![Case::new("positive").range(&[3, 4], 0.1, 4.0), Case::new("empty").range(&[0], 0.1, 1.0)],
};
