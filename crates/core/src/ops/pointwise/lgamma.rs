//! Logarithm of the gamma function, and its derivative.

use super::erfc::each;
use super::polygamma::POLYGAMMA;
use super::{chain, float_like};
use crate::attr::Attrs;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
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
    schemas: &[
        "digamma(Tensor self) -> Tensor",
        "special_digamma(Tensor self) -> Tensor",
        "special_psi(Tensor self) -> Tensor",
    ],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let slope = b.one(&POLYGAMMA, &[x], Attrs::new().with("n", 1))?;
            b.mul(g, slope)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, digamma)),
    cases: || {
        let case = |name, n, lo, hi| Case::new(name).range(&[n], lo, hi);
        vec![case("positive", 7, 0.3, 8.0), case("negative", 2, -1.8, -1.2)]
    },
};

/// The logarithm of the gamma function of `p` variables: `p (p − 1) / 4 · ln π + Σ ln Γ(self − j / 2)`,
/// `j < p`.
pub static MVLGAMMA: OpDef = OpDef {
    name: "mvlgamma",
    schemas: &[
        "mvlgamma(Tensor self, int p) -> Tensor",
        "special_multigammaln(Tensor self, int p) -> Tensor",
    ],
    infer: |cx| {
        let p = cx.int("p")?;
        ensure!((1..=1024).contains(&p), Unsupported, "`p` is {p}: 1 to 1024 are supported");
        float_like(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerOutput(120),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let p = cx.int("p")?;
        let x = b.cast(required(inputs, 0)?, float_like(cx)?[0].dtype)?;
        let mut sum = b.call(&LGAMMA, &[x])?;
        for j in 1..p {
            let lower = b.shift(x, -0.5 * j as f64)?;
            let term = b.call(&LGAMMA, &[lower])?;
            sum = b.add(sum, term)?;
        }
        Ok(vec![b.shift(sum, 0.25 * (p * (p - 1)) as f64 * PI.ln())?])
    }),
    cases: || {
        let case = |name, p: i64| Case::new(name).range(&[5], 1.3, 8.0).attr("p", p);
        vec![case("one", 1), case("three", 3)]
    },
};

/// Reflection for negative arguments, the recurrence up to 10, then the asymptotic series (Abramowitz and
/// Stegun 6.3.7, 6.3.5, 6.3.18). The first term left out is below 1e-17 there.
pub fn digamma(x: f64) -> f64 {
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
