//! Inverse of the error function.

use super::erfc::each;
use super::{chain, float_like};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use std::f64::consts::{FRAC_2_SQRT_PI, PI};

/// The `y` with `erf(y) = self`; infinite at ±1, NaN beyond.
pub static ERFINV: OpDef = OpDef {
    name: "erfinv",
    schemas: &["erfinv(Tensor self) -> Tensor", "special_erfinv(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        // 1 / (2/√π e^(-y²))
        chain(cx, |b, g, _, y| {
            let square = b.mul(y, y)?;
            let e = b.call(&super::exp::EXP, &[square])?;
            let dx = b.mul(g, e)?;
            b.scale(dx, 1.0 / FRAC_2_SQRT_PI)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, erfinv)),
    cases: || vec![Case::new("inside").range(&[7], -0.95, 0.95)],
};

/// Winitzki's approximation, refined by Halley's method until f64 is exhausted. Large arguments go through
/// `erfc`, whose distance from 1 keeps its digits.
pub fn erfinv(x: f64) -> f64 {
    if x.abs() >= 1.0 || x.is_nan() || x == 0.0 {
        return match x.abs() {
            0.0 => x,
            1.0 => x * f64::INFINITY,
            _ => f64::NAN,
        };
    }
    let t = x.abs();
    let (a, l) = (0.147, (-t * t).ln_1p());
    let u = 2.0 / (PI * a) + l / 2.0;
    let mut y = ((u * u - l / a).sqrt() - u).sqrt();
    for _ in 0..4 {
        let error = if t < 0.5 { libm::erf(y) - t } else { (1.0 - t) - libm::erfc(y) };
        let newton = error / (FRAC_2_SQRT_PI * (-y * y).exp());
        y -= newton / (1.0 + y * newton);
    }
    y.copysign(x)
}
