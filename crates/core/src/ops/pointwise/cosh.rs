//! Hyperbolic cosine.

use super::{chain, float_input, float_like};
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `(e^x + e^-x) / 2`, as a product that overflows only where the result does.
pub static COSH: OpDef = OpDef {
    name: "cosh",
    schemas: &["cosh(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let s = b.call(&super::sinh::SINH, &[x])?;
            b.mul(g, s)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| {
        let half = (float_input(cx)?.abs() * 0.5).exp();
        Ok(vec![(half.clone() * 0.5) * half.clone() + (float(0.5) / half.clone()) / half])
    }),
    cases: || vec![Case::new("plain").f(&[3, 4]), Case::new("empty").f(&[0])],
};
