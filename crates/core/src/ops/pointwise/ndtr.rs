//! Distribution function of the standard normal.

use super::{chain, exp::EXP, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// The probability that a standard normal number is at most `self`.
pub static NDTR: OpDef = OpDef {
    name: "special_ndtr",
    schemas: &["special_ndtr(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let square = b.mul(x, x)?;
            let exponent = b.scale(square, -0.5)?;
            let density = b.call(&EXP, &[exponent])?;
            let density =
                b.scale(density, 0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2)?;
            b.mul(g, density)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(20),
    body: Body::Pointwise(|cx| Ok(vec![super::float_input(cx)?.ndtr()])),
    cases: || vec![Case::new("plain").range(&[7], -3.0, 3.0), Case::new("integers").index(&[3], 3)],
};
