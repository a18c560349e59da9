//! Logarithm of the distribution function of the standard normal, and its inverse.

use super::erfc::each;
use super::erfcx::{ERFCX, erfcx};
use super::erfinv::erfinv;
use super::{chain, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample};
use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

/// `ln Φ(self)`, far below 0 as well.
pub static LOG_NDTR: OpDef = OpDef {
    name: "special_log_ndtr",
    schemas: &["special_log_ndtr(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        // φ / Φ = √(2/π) / erfcx(−x/√2)
        chain(cx, |b, g, x, _| {
            let x = b.scale(x, -FRAC_1_SQRT_2)?;
            let tail = b.call(&ERFCX, &[x])?;
            let g = b.scale(g, (2.0 / PI).sqrt())?;
            b.div(g, tail)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, log_ndtr)),
    cases: || {
        vec![
            Case::new("plain").range(&[7], -3.0, 3.0),
            Case::new("far").range(&[3], -40.0, -5.0),
            Case::new("integers").index(&[3], 4),
        ]
    },
};

/// The `y` with `Φ(y) = self`; infinite at 0 and 1, NaN beyond.
pub static NDTRI: OpDef = OpDef {
    name: "special_ndtri",
    schemas: &["special_ndtri(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        // √(2π) e^(y²/2)
        chain(cx, |b, g, _, y| {
            let square = b.mul(y, y)?;
            let exponent = b.scale(square, 0.5)?;
            let e = b.call(&super::exp::EXP, &[exponent])?;
            let dx = b.mul(g, e)?;
            b.scale(dx, (2.0 * PI).sqrt())
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, ndtri)),
    cases: || {
        let edges = Sample::Values(vec![0.0, 1.0, -0.5]);
        vec![
            Case::new("inside").range(&[7], 0.05, 0.95),
            Case::new("edges").arg(crate::DType::F64, &[3], edges).constant(),
        ]
    },
};

fn log_ndtr(x: f64) -> f64 {
    let t = -x * FRAC_1_SQRT_2;
    if x < -1.0 { (0.5 * erfcx(t)).ln() - 0.5 * x * x } else { (-0.5 * libm::erfc(-t)).ln_1p() }
}

/// Near 0 the quantile follows from `erfc`, whose argument keeps its digits: Newton's method on `ln Φ`.
fn ndtri(p: f64) -> f64 {
    if p >= 0.25 || p <= 0.0 || p.is_nan() {
        return SQRT_2 * erfinv(2.0 * p - 1.0);
    }
    // An upper bound in magnitude, from which Newton's method on a concave function only rises.
    let mut y = -(-2.0 * p.ln()).sqrt();
    for _ in 0..60 {
        let slope = (2.0 / PI).sqrt() / erfcx(-y * FRAC_1_SQRT_2);
        let step = (p.ln() - log_ndtr(y)) / slope;
        y += step;
        if step.abs() <= f64::EPSILON * y.abs() {
            break;
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantile_is_the_inverse() {
        for x in [-37.0, -8.0, -2.0, -0.7, 0.0, 0.5, 3.0] {
            let p = log_ndtr(x).exp();
            let error = (ndtri(p) - x).abs();
            // Rounding of p moves the quantile by p / φ, in the tail by that of its logarithm.
            let density = (-0.5 * x * x).exp() / (2.0 * PI).sqrt();
            let allowed = 8.0 * f64::EPSILON * (x.abs() + p / density * (1.0 + log_ndtr(x).abs()));
            assert!(error <= allowed, "{x}: off by {error:e}, {allowed:e} allowed");
        }
    }
}
