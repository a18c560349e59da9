//! Reciprocal square root.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `1 / √self`.
pub static RSQRT: OpDef = OpDef {
    name: "rsqrt",
    schemas: &["rsqrt(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, _, y| {
            let cube = b.power(y, 3)?;
            let dx = b.mul(g, cube)?;
            b.scale(dx, -0.5)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.rsqrt()])),
    cases: || vec![Case::new("positive").range(&[3, 4], 0.1, 4.0), Case::new("empty").range(&[0], 0.1, 1.0)],
};
