//! Square root.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `√self`.
pub static SQRT: OpDef = OpDef {
    name: "sqrt",
    schemas: &["sqrt(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, _, y| {
            let d = b.scale(y, 2.0)?;
            b.div(g, d)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.sqrt()])),
    cases: || vec![Case::new("positive").range(&[3, 4], 0.1, 4.0), Case::new("empty").range(&[0], 0.1, 1.0)],
};
