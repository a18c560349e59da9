//! Inverse hyperbolic tangent.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `(ln(1 + x) - ln(1 - x)) / 2`.
pub static ATANH: OpDef = OpDef {
    name: "atanh",
    schemas: &["atanh(Tensor self) -> Tensor", "arctanh(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let square = b.mul(x, x)?;
            let minus = b.neg(square)?;
            let d = b.shift(minus, 1.0)?;
            b.div(g, d)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(18),
    body: Body::Pointwise(|cx| {
        let x = float_input(cx)?;
        Ok(vec![(x.clone().log1p() - (-x).log1p()) * 0.5])
    }),
    cases: || {
        vec![Case::new("inside").range(&[3, 4], -0.95, 0.95), Case::new("scalar").range(&[], -0.5, 0.5)]
    },
};
