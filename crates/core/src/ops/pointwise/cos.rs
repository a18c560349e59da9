//! Cosine.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `cos self`, in radians.
pub static COS: OpDef = OpDef {
    name: "cos",
    schemas: &["cos(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let s = b.call(&super::sin::SIN, &[x])?;
            let dx = b.mul(g, s)?;
            b.neg(dx)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.cos()])),
    cases: || vec![Case::new("plain").f(&[3, 4]), Case::new("empty").f(&[0])],
};
