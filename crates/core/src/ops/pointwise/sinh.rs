//! Hyperbolic sine.

use super::{chain, float_input, float_like};
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `(e^x - e^-x) / 2`: near 0 without cancellation, far out as a product that overflows only where the result
/// does.
pub static SINH: OpDef = OpDef {
    name: "sinh",
    schemas: &["sinh(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let c = b.call(&super::cosh::COSH, &[x])?;
            b.mul(g, c)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(30),
    body: Body::Pointwise(|cx| {
        let x = float_input(cx)?;
        let near = (x.clone().expm1() - (-x.clone()).expm1()) * 0.5;
        let half = (x.clone().abs() * 0.5).exp();
        let far = x.clone().sign() * (half.clone() * 0.5) * half;
        Ok(vec![x.abs().gt(float(20.0)).select(far, near)])
    }),
    cases: || vec![Case::new("near").f(&[3, 4]), Case::new("far").range(&[3], 21.0, 25.0)],
};
