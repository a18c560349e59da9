//! Elementary functions. In f32 they have neither branches nor tables, so that loops over them vectorise; the polynomials
//! are fits of least maximal relative error over the reduced interval. In f64, which serves checking, they are the
//! standard library's. The tests measure every f32 function against f64; its bound is stated with it.

/// In f32.
#[allow(clippy::excessive_precision)]
pub(crate) mod f32 {
    /// Adding and subtracting this rounds to the nearest integer, ties to even, for |x| < 2²²; meanwhile the integer
    /// stands in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    /// ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
    const LN2: (f32, f32) = (0.693_359_375, -2.121_944_4e-4);

    /// `c[0]·xⁿ⁻¹ + … + c[n-1]`.
    #[inline(always)]
    fn polynomial<const N: usize>(x: f32, c: [f32; N]) -> f32 {
        let mut p = c[0];
        for &c in &c[1..] {
            p = p * x + c;
        }
        p
    }

    /// 2ⁿ for n in [-126, 127].
    #[inline(always)]
    fn exp2i(n: i32) -> f32 {
        f32::from_bits((n.wrapping_add(127) << 23) as u32)
    }

    /// eˣ, within 2 ulp, subnormal results included.
    #[inline(always)]
    pub fn exp(x: f32) -> f32 {
        // Beyond these the result is infinite or 0 anyway. A NaN passes: no comparison with it holds.
        let t = if x > 89.0 { 89.0 } else { x };
        let t = if t < -105.0 { -105.0 } else { t };
        let shifted = t * std::f32::consts::LOG2_E + SHIFT;
        let n = shifted - SHIFT;
        let r = (t - n * LN2.0) - n * LN2.1;
        let p = polynomial(r, [0.001381454, 0.008368745, 0.04166839, 0.16666521, 0.49999994]);
        let y = (p * (r * r) + r) + 1.0;
        // 2ⁿ as two factors, each normal even where the result is not.
        let n = (shifted.to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32);
        let half = n >> 1;
        y * exp2i(half) * exp2i(n.wrapping_sub(half))
    }

    /// Natural logarithm, within 2 ulp.
    #[inline(always)]
    pub fn log(x: f32) -> f32 {
        let subnormal = x < f32::MIN_POSITIVE;
        let scaled = if subnormal { x * 8_388_608.0 } else { x };
        let bits = scaled.to_bits() as i32;
        // x = 2ⁿ · m with m in [√½, √2).
        const ROOT_HALF: i32 = 0x3F35_04F3;
        let n = bits.wrapping_sub(ROOT_HALF) >> 23;
        let m = f32::from_bits(bits.wrapping_sub(n << 23) as u32);
        let n = n as f32 - if subnormal { 23.0 } else { 0.0 };
        let f = m - 1.0;
        let p = polynomial(
            f,
            [
                0.06746641,
                -0.11675652,
                0.11888162,
                -0.12405589,
                0.14219552,
                -0.16667996,
                0.20002119,
                -0.2500001,
                0.33333313,
            ],
        );
        let z = f * f;
        let y = n * LN2.1 + p * (z * f);
        let y = (f - 0.5 * z + y) + n * LN2.0;
        let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
        let y = if x == f32::INFINITY { x } else { y };
        if x < 0.0 || x.is_nan() { f32::NAN } else { y }
    }

    /// Hyperbolic tangent, within 2 ulp.
    #[inline(always)]
    pub fn tanh(x: f32) -> f32 {
        let a = x.abs();
        let z = x * x;
        let p = polynomial(z, [-0.0062742396, 0.02107168, -0.05385231, 0.13332586, -0.33333316]);
        let small = a + a * (z * p);
        let large = 1.0 - 2.0 / (exp(a + a) + 1.0);
        (if a < 0.55 { small } else { large }).copysign(x)
    }

    /// Error function, within 2 ulp.
    #[inline(always)]
    pub fn erf(x: f32) -> f32 {
        let a = x.abs();
        let z = x * x;
        let p = polynomial(
            z,
            [8.513116e-05, -0.00081756426, 0.0052038594, -0.026860509, 0.11283715, -0.37612635, 0.12837917],
        );
        let small = a + a * p;
        // 1 − erf is e to minus a polynomial; beyond 4 it is less than half an ulp of 1.
        let t = if a > 4.0 { 4.0 } else { a };
        let g = polynomial(
            t,
            [
                2.0828522e-05,
                -0.00043139252,
                0.00415625,
                -0.025080604,
                0.10822037,
                0.63340086,
                1.1294883,
                -0.00016920385,
            ],
        );
        let large = 1.0 - exp(-g);
        (if a < 0.9 { small } else { large }).copysign(x)
    }
}

/// In f64.
pub(super) mod f64 {
    #[inline(always)]
    pub fn exp(x: f64) -> f64 {
        x.exp()
    }
    #[inline(always)]
    pub fn log(x: f64) -> f64 {
        x.ln()
    }
    #[inline(always)]
    pub fn tanh(x: f64) -> f64 {
        x.tanh()
    }
    #[inline(always)]
    pub fn erf(x: f64) -> f64 {
        libm::erf(x)
    }
}

#[cfg(test)]
mod tests {
    use super::f32 as m;

    /// Largest error in units of the last place of the f32 nearest to the truth, over floats of all magnitudes.
    fn worst(got: fn(f32) -> f32, truth: fn(f64) -> f64, from: f32, to: f32) -> f64 {
        let mut worst = 0.0f64;
        let mut check = |x: f32| {
            if !(from..=to).contains(&x) {
                return;
            }
            let (y, t) = (got(x), truth(x as f64));
            if (t as f32).is_infinite() {
                assert_eq!(y, t as f32, "at {x}");
                return;
            }
            let ulp = ((t as f32).abs().next_up() as f64 - (t as f32).abs() as f64).min(f64::exp2(104.0));
            worst = worst.max((y as f64 - t).abs() / ulp);
        };
        // Every 1009th float of either sign, and a fine even grid.
        (0..u32::MAX / 2018)
            .for_each(|i| [0, 1 << 31].into_iter().for_each(|s| check(f32::from_bits((i * 1009) | s))));
        (0..200_000)
            .for_each(|i| check(from.max(-110.0) + (to.min(110.0) - from.max(-110.0)) * i as f32 / 2e5));
        worst
    }

    #[test]
    fn errors_are_as_stated() {
        let inf = f32::INFINITY;
        let functions: [(&str, fn(f32) -> f32, fn(f64) -> f64, f32, f32); 4] = [
            ("exp", m::exp, f64::exp, -inf, inf),
            ("log", m::log, f64::ln, 0.0, inf),
            ("tanh", m::tanh, f64::tanh, -inf, inf),
            ("erf", m::erf, libm::erf, -inf, inf),
        ];
        for (name, f, truth, from, to) in functions {
            let worst = worst(f, truth, from, to);
            assert!(worst <= 2.0, "{name}: {worst} ulp");
            assert!(f(f32::NAN).is_nan(), "{name} of NaN");
        }
        assert!(m::log(-1.0).is_nan() && m::log(-inf).is_nan());
        assert_eq!((m::exp(-inf), m::exp(inf), m::exp(0.0)), (0.0, inf, 1.0));
        assert_eq!(
            (m::tanh(-0.0).to_bits(), m::erf(-0.0).to_bits()),
            ((-0.0f32).to_bits(), (-0.0f32).to_bits())
        );
    }
}
