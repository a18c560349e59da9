//! Logarithm of the gamma function, and its derivative.

use super::erfc::each;
use super::{chain, float_like};
use crate::fail;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use std::f64::consts::PI;

/// `ln |Γ(self)|`.
pub static LGAMMA: OpDef = OpDef {
    name: "lgamma",
    schemas: &["lgamma(Tensor self) -> Tensor", "special_gammaln(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let slope = b.call(&DIGAMMA, &[x])?;
            b.mul(g, slope)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, libm::lgamma)),
    cases: || {
        vec![Case::new("positive").range(&[7], 0.3, 8.0), Case::new("negative").range(&[2], -1.8, -1.2)]
    },
};

/// `Γ'(self) / Γ(self)`.
pub static DIGAMMA: OpDef = OpDef {
    name: "digamma",
    schemas: &["digamma(Tensor self) -> Tensor", "special_digamma(Tensor self) -> Tensor"],
    infer: float_like,
    // Refused rather than left out: there is a derivative, and a gradient without it would be wrong.
    derivative: Derivative::Rule(|_| {
        Err(fail!(Gradient, "its derivative, the trigamma function, is not implemented"))
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, digamma)),
    cases: || {
        let case = |name, n, lo, hi| Case::new(name).range(&[n], lo, hi).constant();
        vec![case("positive", 7, 0.3, 8.0), case("negative", 2, -1.8, -1.2)]
    },
};

/// Reflection for negative arguments, the recurrence up to 10, then the asymptotic series (Abramowitz and
/// Stegun 6.3.7, 6.3.5, 6.3.18). The first term left out is below 1e-17 there.
fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::NEG_INFINITY.copysign(-x);
    }
    if x < 0.0 {
        // tan of the fraction alone keeps its digits; at a pole there is no value.
        let fraction = x - x.trunc();
        return if fraction == 0.0 { f64::NAN } else { digamma(1.0 - x) - PI / (PI * fraction).tan() };
    }
    let (mut x, mut below) = (x, 0.0);
    while x < 10.0 {
        below += 1.0 / x;
        x += 1.0;
    }
    let z = 1.0 / (x * x);
    // Bernoulli numbers B₂ₙ / 2n.
    let series = [
        1.0 / 12.0,
        -1.0 / 120.0,
        1.0 / 252.0,
        -1.0 / 240.0,
        1.0 / 132.0,
        -691.0 / 32760.0,
        1.0 / 12.0,
        -3617.0 / 8160.0,
    ];
    let tail = series.iter().rev().fold(0.0, |s, c| (s + c) * z);
    x.ln() - 0.5 / x - tail - below
}
