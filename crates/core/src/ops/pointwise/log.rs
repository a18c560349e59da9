//! Natural logarithm.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `ln self`.
pub static LOG: OpDef = OpDef {
    name: "log",
    schemas: &["log(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| chain(cx, |b, g, x, _| b.div(g, x))),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.log()])),
    cases: || vec![Case::new("positive").range(&[3, 4], 0.1, 4.0), Case::new("empty").range(&[0], 0.1, 1.0)],
};
