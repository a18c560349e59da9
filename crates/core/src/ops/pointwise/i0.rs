//! Modified Bessel functions of the first kind, of orders 0 and 1.

use super::compare::EQ;
use super::erfc::each;
use super::sign::SIGN;
use super::{chain, float_like};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample};
use std::f64::consts::PI;

/// `I₀(self)`.
pub static I0: OpDef = OpDef {
    name: "i0",
    schemas: &["i0(Tensor self) -> Tensor", "special_i0(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let slope = b.call(&I1, &[x])?;
            b.mul(g, slope)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, |x| scaled(0, x) * x.abs().exp())),
    cases,
};

/// `e^−|self| I₀(self)`.
pub static I0E: OpDef = OpDef {
    name: "special_i0e",
    schemas: &["special_i0e(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, y| {
            let first = b.call(&I1E, &[x])?;
            let sign = b.call(&SIGN, &[x])?;
            let decay = b.mul(sign, y)?;
            let slope = b.sub(first, decay)?;
            b.mul(g, slope)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, |x| scaled(0, x))),
    cases,
};

/// `I₁(self)`.
pub static I1: OpDef = OpDef {
    name: "special_i1",
    schemas: &["special_i1(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, y| {
            let zeroth = b.call(&I0, &[x])?;
            let slope = beside(b, x, y, zeroth)?;
            b.mul(g, slope)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, |x| scaled(1, x) * x.abs().exp())),
    cases,
};

/// `e^−|self| I₁(self)`.
pub static I1E: OpDef = OpDef {
    name: "special_i1e",
    schemas: &["special_i1e(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, y| {
            let zeroth = b.call(&I0E, &[x])?;
            let slope = beside(b, x, y, zeroth)?;
            let sign = b.call(&SIGN, &[x])?;
            let decay = b.mul(sign, y)?;
            let slope = b.sub(slope, decay)?;
            b.mul(g, slope)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(60),
    body: Body::Kernel(|_, inputs, outs| each(inputs, outs, |x| scaled(1, x))),
    cases,
};

/// `zeroth − y / x`, and its limit 1/2 at 0.
fn beside(b: &mut Builder, x: ValueId, y: ValueId, zeroth: ValueId) -> Result<ValueId> {
    let ty = b.ty(x).clone();
    let zero = b.one(&EQ, &[x], Attrs::new().with("other", 0))?;
    let one = b.full(&ty, 1.0)?;
    let divisor = b.choose(zero, one, x)?;
    let share = b.div(y, divisor)?;
    let slope = b.sub(zeroth, share)?;
    let half = b.full(&ty, 0.5)?;
    b.choose(zero, half, slope)
}

/// `e^−|x|` times the function of `order`. Up to 30 the power series, whose terms are all positive
/// (Abramowitz and Stegun 9.6.10). Beyond it the asymptotic one (9.7.1), whose smallest term is about
/// `e^−2x`, 1e-26.
fn scaled(order: u32, x: f64) -> f64 {
    let (t, odd) = (x.abs(), order == 1);
    if t.is_infinite() {
        return 0.0_f64.copysign(if odd { x } else { 1.0 });
    }
    let (mut term, mut sum) = (1.0, 1.0);
    let value = if t <= 30.0 {
        let square = 0.25 * t * t;
        for k in 1..=200 {
            let k = f64::from(k);
            term *= square / (k * (k + f64::from(order)));
            sum += term;
            if term < sum * 1e-18 {
                break;
            }
        }
        let first = if odd { 0.5 * t } else { 1.0 };
        (-t).exp() * first * sum
    } else {
        let mu = 4.0 * f64::from(order * order);
        for k in 1..=30 {
            let odd = f64::from(2 * k - 1);
            term *= -(mu - odd * odd) / (f64::from(k) * 8.0 * t);
            sum += term;
        }
        sum / (2.0 * PI * t).sqrt()
    };
    if odd { value.copysign(x) } else { value }
}

fn cases() -> Vec<Case> {
    // Both sides of 30, near each other: none is lost in a sum of all.
    let far = Sample::Values(vec![-33.0, 25.0, 31.0]);
    vec![
        Case::new("plain").range(&[7], -4.0, 4.0),
        Case::new("far").arg(crate::DType::F64, &[3], far),
        // The series of slopes has a limit there, and `e^−|x|` a kink.
        Case::new("zero").arg(crate::DType::F64, &[1], Sample::Values(vec![0.0])).constant(),
        Case::new("integers").index(&[3], 4),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_series_give_known_values_where_they_meet() {
        let known = [
            // Abramowitz and Stegun, table 9.8.
            (0, 1.0, 0.465_759_607_593_640_4),
            (1, 1.0, 0.207_910_415_349_708_5),
            // Sums of 30 digits.
            (0, 30.0, 0.073_145_946_482_237_3),
            (1, 30.0, 0.071_916_330_598_647_55),
        ];
        for (order, x, want) in known {
            // The power series takes 45 terms at 30. Every addition rounds by half a unit of the sum, and
            // every term by two halves for each quotient in it: 15 of them in the mean, as I₁/I₀ · x/2 says.
            // The exponential and its products add three units. The other series has fewer terms.
            let allowed = (0.5 * 45.0 + 15.0 + 3.0) * f64::EPSILON * want;
            for x in [x, f64::next_up(x)] {
                // The slope of the logarithm is at most 1: the step moves the value by less than a unit.
                let error = (scaled(order, x) - want).abs();
                assert!(error <= allowed, "order {order} of {x}: off by {error:e}, {allowed:e} allowed");
            }
            assert!(scaled(order, f64::NAN).is_nan());
        }
    }
}
