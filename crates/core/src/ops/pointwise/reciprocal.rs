//! Reciprocal.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `1 / self`.
pub static RECIPROCAL: OpDef = OpDef {
    name: "reciprocal",
    schemas: &["reciprocal(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, _, y| {
            let square = b.mul(y, y)?;
            let dx = b.mul(g, square)?;
            b.neg(dx)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.recip()])),
    cases: || vec![Case::new("positive").range(&[3, 4], 0.1, 4.0), Case::new("empty").range(&[0], 0.1, 1.0)],
};
