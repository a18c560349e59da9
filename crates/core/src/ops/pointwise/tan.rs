//! Tangent.

use super::{chain, float_input, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `tan self`, in radians.
pub static TAN: OpDef = OpDef {
    name: "tan",
    schemas: &["tan(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, _, y| {
            let square = b.mul(y, y)?;
            let slope = b.shift(square, 1.0)?;
            b.mul(g, slope)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.tan()])),
    cases: || vec![Case::new("one branch").range(&[3, 4], -1.3, 1.3)],
};
