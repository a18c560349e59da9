//! Error function.

use super::{chain, float_input, float_like};
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use std::f64::consts::FRAC_2_SQRT_PI;

/// `2/√π ∫₀ˣ e^(-t²) dt`.
pub static ERF: OpDef = OpDef {
    name: "erf",
    schemas: &["erf(Tensor self) -> Tensor", "special_erf(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let e = gaussian(b, x)?;
            b.mul(g, e)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)?.erf()])),
    cases: || vec![Case::new("plain").f(&[3, 4]), Case::new("empty").f(&[0])],
};

/// `2/√π e^(-x²)`, the derivative of the error function.
pub fn gaussian(b: &mut Builder, x: ValueId) -> Result<ValueId> {
    let square = b.mul(x, x)?;
    let minus = b.neg(square)?;
    let e = b.call(&super::exp::EXP, &[minus])?;
    b.scale(e, FRAC_2_SQRT_PI)
}
