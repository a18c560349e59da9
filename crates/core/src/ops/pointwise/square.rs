//! Square.

use super::{chain, number_like};
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `self²`.
pub static SQUARE: OpDef = OpDef {
    name: "square",
    schemas: &["square(Tensor self) -> Tensor"],
    infer: number_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let dx = b.mul(g, x)?;
            b.scale(dx, 2.0)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|_| Ok(vec![input(0) * input(0)])),
    cases: || vec![Case::new("plain").f(&[3, 4]), Case::new("empty").f(&[0])],
};
