//! Derivatives of digamma, and the function of Hurwitz that they are.

use super::erfc::each;
use super::lgamma::digamma;
use super::{chain, float_arithmetic, float_like};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample};
use crate::tensor::{Tensor, TensorType};
use crate::{ensure, fail};

/// The derivative `n` of [`super::lgamma::DIGAMMA`].
pub static POLYGAMMA: OpDef = OpDef {
    name: "polygamma",
    schemas: &["polygamma(int n, Tensor self) -> Tensor", "special_polygamma(int n, Tensor self) -> Tensor"],
    infer: |cx| {
        order(cx)?;
        float_like(cx)
    },
    derivative: Derivative::Rule(|cx| {
        let n = cx.args().int("n")?;
        chain(cx, |b, g, x, _| {
            let slope = b.one(&POLYGAMMA, &[x], Attrs::new().with("n", n + 1))?;
            b.mul(g, slope)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(100),
    body: Body::Kernel(|cx, inputs, outs| {
        let n = order(cx)?;
        each(inputs, outs, |x| polygamma(n, x))
    }),
    cases: || {
        let case = |name, n: i64| Case::new(name).range(&[7], 0.3, 8.0).attr("n", n);
        let negative = Case::new("negative").range(&[3], -2.8, -2.2).attr("n", 2);
        vec![case("digamma", 0), case("trigamma", 1), case("third", 3), negative]
    },
};

/// `Σ (other + k)^−self` over `k ≥ 0`, the function of Hurwitz. There is no gradient by `self`, as in
/// PyTorch.
pub static ZETA: OpDef = OpDef {
    name: "special_zeta",
    schemas: &[
        "special_zeta(Tensor self, Tensor other) -> Tensor",
        "special_zeta.other_scalar(Tensor self, Scalar other) -> Tensor",
    ],
    infer: float_arithmetic,
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        ensure!(!cx.needs(0), Gradient, "there is no derivative by the exponent, as in PyTorch");
        let (g, s, q) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?);
        let more = cx.shift(s, 1.0)?;
        let slope = cx.call(&ZETA, &[more, q])?;
        let slope = cx.mul(s, slope)?;
        let dq = cx.mul(g, slope)?;
        let dq = cx.neg(dq)?;
        cx.set(1, dq)
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(100),
    body: Body::Kernel(zeta_each),
    cases: || {
        let edges = |v: &[f64]| Sample::Values(v.to_vec());
        let float = crate::DType::F64;
        vec![
            Case::new("broadcast").range(&[2, 1], 1.5, 6.0).constant().range(&[3], 0.3, 8.0),
            Case::new("number").range(&[3], 1.5, 6.0).constant().attr("other", 2.0),
            Case::new("edges")
                .arg(float, &[5], edges(&[1.0, 0.5, 2.0, 2.0, 2.5]))
                .constant()
                .arg(float, &[5], edges(&[1.0, 1.0, 0.0, -1.0, -0.5]))
                .constant(),
        ]
    },
};

fn zeta_each(cx: &OpCx, inputs: &[Option<&Tensor>], outs: &[TensorType]) -> Result<Vec<Tensor>> {
    let out = &outs[0];
    let spread = |i: usize| -> Result<Vec<f64>> {
        let Some(t) = inputs.get(i).copied().flatten() else {
            return Ok(vec![cx.float("other")?; out.shape.numel()]);
        };
        let v = t.to_f64();
        Ok(t.shape().broadcast_offsets(&out.shape).map(|at| v[at]).collect())
    };
    let (s, q) = (spread(0)?, spread(1)?);
    let y = s.into_iter().zip(q).map(|(s, q)| hurwitz(s, q)).collect();
    Ok(vec![Tensor::float(out.dtype, out.shape.clone(), y)])
}

fn order(cx: &OpCx) -> Result<u32> {
    let n = cx.int("n")?;
    let known = u32::try_from(n).ok().filter(|n| *n <= 120);
    known.ok_or_else(|| fail!(Unsupported, "derivative {n} of digamma: those from 0 to 120 are supported"))
}

/// `(−1)ⁿ⁺¹ n! ζ(n + 1, x)` (Abramowitz and Stegun 6.4.10), of the first order below 0 by reflection (6.4.7).
fn polygamma(n: u32, x: f64) -> f64 {
    if n == 0 {
        return digamma(x);
    }
    let factorial: f64 = (1..=n).map(f64::from).product();
    let sign = if n.is_multiple_of(2) { -1.0 } else { 1.0 };
    sign * factorial * hurwitz(f64::from(n + 1), x)
}

/// The function of Hurwitz. Infinite at its poles, NaN where PyTorch's is: `s < 1`, or a power of a negative
/// number that is not whole.
fn hurwitz(s: f64, x: f64) -> f64 {
    if s == 1.0 {
        return f64::INFINITY;
    }
    if s.is_nan() || x.is_nan() || s < 1.0 {
        return f64::NAN;
    }
    if x > 0.0 {
        return positive(s, x);
    }
    if x == x.floor() {
        return f64::INFINITY;
    }
    if s != s.floor() {
        return f64::NAN;
    }
    // Terms below 0 count from the one next to 0 downwards: a difference of two sums of positive numbers.
    let above = x - x.floor();
    let below = positive(s, 1.0 - above) - positive(s, 1.0 - x);
    positive(s, above) + if s % 2.0 == 0.0 { below } else { -below }
}

/// First terms, then Euler and Maclaurin's sum of the rest (Abramowitz and Stegun 23.1.30). The first term
/// left out is `B₁₈ / 18! · (s + 16)! / (s − 1)! · z^−17` of the last one taken, with `z > s + 11`. That is
/// 1e-17 at a small s. It is 1e-14 at a large one, where the last term is as small beside the first.
fn positive(s: f64, x: f64) -> f64 {
    let count = (11.0 + s.min(200.0)).ceil();
    let head: f64 = (0..count as u32).map(|k| (x + f64::from(k)).powf(-s)).sum();
    let z = x + count;
    // Bernoulli numbers B₂ₖ / (2k)!.
    let series = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30240.0,
        -1.0 / 1209600.0,
        1.0 / 47900160.0,
        -691.0 / 1307674368000.0,
        1.0 / 74724249600.0,
        -3617.0 / 10670622842880000.0,
    ];
    let last = z.powf(-s);
    let mut rest = z / (s - 1.0) + 0.5;
    let mut factor = s / z;
    for (k, c) in series.iter().enumerate() {
        rest += c * factor;
        let k = 2.0 * k as f64 + 1.0;
        factor *= (s + k) / z * ((s + k + 1.0) / z);
    }
    // A last term of 0 is beyond what counts.
    if last == 0.0 { head } else { head + last * rest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::PI;

    fn near(got: f64, want: f64) {
        assert!((got - want).abs() <= 4.0 * f64::EPSILON * want.abs(), "{got:e} instead of {want:e}");
    }

    #[test]
    fn values_in_closed_form() {
        const ZETA3: f64 = 1.202_056_903_159_594_2;
        near(polygamma(1, 1.0), PI * PI / 6.0);
        near(polygamma(1, 0.5), PI * PI / 2.0);
        near(polygamma(2, 1.0), -2.0 * ZETA3);
        near(polygamma(3, 1.0), PI.powi(4) / 15.0);
        near(polygamma(3, 0.5), PI.powi(4));
        near(hurwitz(10.0, 1.0), PI.powi(10) / 93555.0);
        // The reflection's sine and cosine are 1 and 0 at half numbers below 0.
        near(polygamma(1, -0.5), PI * PI / 2.0 + 4.0);
        near(polygamma(2, -0.5), -14.0 * ZETA3 + 16.0);
    }

    #[test]
    fn recurrence_holds_from_small_to_large_numbers() {
        for n in [1u32, 2, 5, 20, 100] {
            for x in [1e-3_f64, 0.7, 3.3, 12.5, 40.0, 1e3, 1e6, -0.3, -7.6] {
                let factorial: f64 = (1..=n).map(f64::from).product();
                let step =
                    factorial * x.powf(-f64::from(n + 1)) * if n.is_multiple_of(2) { 1.0 } else { -1.0 };
                let (here, next) = (polygamma(n, x), polygamma(n, x + 1.0));
                if !here.is_finite() || here == 0.0 {
                    continue;
                }
                // A power of n rounds by n/2 units.
                let allowed = f64::EPSILON * (8.0 + f64::from(n)) * (here.abs() + next.abs() + step.abs());
                assert!(
                    (next - here - step).abs() <= allowed,
                    "order {n} at {x}: {here:e}, {next:e}, {step:e}"
                );
            }
        }
    }

    #[test]
    fn poles_and_domain_are_pytorchs() {
        assert_eq!(hurwitz(1.0, 2.0), f64::INFINITY);
        assert_eq!(polygamma(1, 0.0), f64::INFINITY);
        assert_eq!(polygamma(2, -3.0), f64::NEG_INFINITY);
        assert!(hurwitz(0.5, 1.0).is_nan() && hurwitz(2.5, -0.5).is_nan());
    }
}
