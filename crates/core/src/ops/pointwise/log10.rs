//! Decimal logarithm.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use std::f64::consts::LOG10_E;

/// `log₁₀ self`.
pub static LOG10: OpDef = OpDef {
    name: "log10",
    schemas: &["log10(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let dx = b.div(g, x)?;
            b.scale(dx, LOG10_E)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(9),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.log() * LOG10_E])),
    cases: || vec![Case::new("positive").range(&[3, 4], 0.1, 4.0), Case::new("empty").range(&[0], 0.1, 1.0)],
};
