//! Arc tangent.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `arctan self`.
pub static ATAN: OpDef = OpDef {
    name: "atan",
    schemas: &["atan(Tensor self) -> Tensor", "arctan(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let square = b.mul(x, x)?;
            let d = b.shift(square, 1.0)?;
            b.div(g, d)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.atan()])),
    cases: || vec![Case::new("plain").f(&[3, 4]), Case::new("empty").f(&[0])],
};
