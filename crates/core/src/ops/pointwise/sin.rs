//! Sine.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `sin self`, in radians.
pub static SIN: OpDef = OpDef {
    name: "sin",
    schemas: &["sin(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let c = b.call(&super::cos::COS, &[x])?;
            b.mul(g, c)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.sin()])),
    cases: || vec![Case::new("plain").f(&[3, 4]), Case::new("empty").f(&[0])],
};
