//! Complementary error function without its decay.

use super::erfc::each;
use super::{NO_SECOND, chain, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use std::f64::consts::FRAC_2_SQRT_PI;

/// `e^(self²) erfc(self)`.
pub static ERFCX: OpDef = OpDef {
    name: "special_erfcx",
    schemas: &["special_erfcx(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let slope = b.call(&ERFCX_SLOPE, &[x])?;
            b.mul(g, slope)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, erfcx)),
    cases,
};

/// Derivative of [`ERFCX`], `2 x y − 2/√π`, without its cancellation.
pub static ERFCX_SLOPE: OpDef = OpDef {
    name: "erfcx_slope",
    schemas: &["headwater::erfcx_slope(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: NO_SECOND,
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, slope)),
    cases,
};

fn cases() -> Vec<Case> {
    vec![
        Case::new("plain").range(&[7], -2.0, 3.0),
        Case::new("far").range(&[3], 5.0, 40.0),
        Case::new("integers").index(&[3], 4),
    ]
}

/// Its definition up to 2; beyond, a continued fraction.
pub fn erfcx(x: f64) -> f64 {
    if x < 2.0 || x.is_nan() {
        return (x * x).exp() * libm::erfc(x);
    }
    0.5 * FRAC_2_SQRT_PI / (x + tail(x))
}

fn slope(x: f64) -> f64 {
    if x < 2.0 || x.is_nan() {
        return 2.0 * x * erfcx(x) - FRAC_2_SQRT_PI;
    }
    -FRAC_2_SQRT_PI * tail(x) / (x + tail(x))
}

/// The part of `1 / (√π y)` above x: Laplace's continued fraction (Abramowitz and Stegun 7.1.14), whose 100
/// terms leave less than 1e-17 from 2 on.
fn tail(x: f64) -> f64 {
    0.5 / (2..=100).rev().fold(x, |below, k| x + 0.5 * f64::from(k) / below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fraction_continues_the_definition() {
        for x in [2.0, 2.5, 3.0, 4.0_f64] {
            let plain = (x * x).exp() * libm::erfc(x);
            // The square rounds by half a unit, which the exponential multiplies by x².
            let allowed = f64::EPSILON * (4.0 + x * x) * plain;
            assert!((erfcx(x) - plain).abs() <= allowed, "{x}: {:e} and {plain:e}", erfcx(x));
        }
        assert_eq!(erfcx(f64::INFINITY), 0.0);
    }

    #[test]
    fn the_slope_keeps_its_digits_where_its_terms_cancel() {
        // The tail is 1/2x (1 − 1/x² + 5/2x⁴ …): three terms, and x⁻⁶ is 1e-18 of the first.
        let x: f64 = 1e3;
        let u = 1.0 / (x * x);
        let tail = 0.5 / x * (1.0 - u + 2.5 * u * u);
        let want = -FRAC_2_SQRT_PI * tail / (x + tail);
        assert!((slope(x) - want).abs() <= 8.0 * f64::EPSILON * want.abs(), "{:e}, not {want:e}", slope(x));
        let plain = 2.0 * 2.0 * erfcx(2.0) - FRAC_2_SQRT_PI;
        assert!((slope(2.0) - plain).abs() <= 4.0 * f64::EPSILON * FRAC_2_SQRT_PI);
    }
}
