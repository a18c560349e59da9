//! Fractional part.

use super::{chain, float_only};
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `self - trunc(self)`.
pub static FRAC: OpDef = OpDef {
    name: "frac",
    schemas: &["frac(Tensor self) -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx| chain(cx, |_, g, _, _| Ok(g))),
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|_| Ok(vec![input(0) - input(0).trunc()])),
    cases: || {
        vec![Case::new("between whole numbers").arg(
            crate::DType::F64,
            &[3],
            crate::ops::case::Sample::Values(vec![-1.5, 0.25, 2.75]),
        )]
    },
};
