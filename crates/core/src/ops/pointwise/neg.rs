//! Negation.

use super::{chain, number_like};
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `-self`.
pub static NEG: OpDef = OpDef {
    name: "neg",
    schemas: &["neg(Tensor self) -> Tensor", "negative(Tensor self) -> Tensor"],
    infer: number_like,
    derivative: Derivative::Rule(|cx| chain(cx, |b, g, _, _| b.neg(g))),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|_| Ok(vec![-input(0)])),
    cases: || vec![Case::new("plain").f(&[3, 4]), Case::new("empty").f(&[0])],
};
