//! The functions of one f32: what every other implementer is compared with.

use super::Ops;
use crate::expr::Unary;

/// A number as a vector of one lane.
struct One;

impl Ops for One {
    type V = f32;
    type M = bool;

    #[inline(always)]
    fn num(&mut self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn add(&mut self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(&mut self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(&mut self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn div(&mut self, a: f32, b: f32) -> f32 {
        a / b
    }
    #[inline(always)]
    fn fma(&mut self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn max(&mut self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn min(&mut self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }
    #[inline(always)]
    fn lt(&mut self, a: f32, b: f32) -> bool {
        a < b
    }
    #[inline(always)]
    fn eq(&mut self, a: f32, b: f32) -> bool {
        a == b
    }
    #[inline(always)]
    fn is_nan(&mut self, a: f32) -> bool {
        a.is_nan()
    }
    #[inline(always)]
    fn select(&mut self, m: bool, a: f32, b: f32) -> f32 {
        if m { a } else { b }
    }
    #[inline(always)]
    fn bits(&mut self, x: u32) -> f32 {
        f32::from_bits(x)
    }
    #[inline(always)]
    fn and(&mut self, a: f32, b: f32) -> f32 {
        f32::from_bits(a.to_bits() & b.to_bits())
    }
    #[inline(always)]
    fn or(&mut self, a: f32, b: f32) -> f32 {
        f32::from_bits(a.to_bits() | b.to_bits())
    }
    #[inline(always)]
    fn sub_int(&mut self, a: f32, b: f32) -> f32 {
        f32::from_bits(a.to_bits().wrapping_sub(b.to_bits()))
    }
    #[inline(always)]
    fn shift_left(&mut self, a: f32, n: u8) -> f32 {
        f32::from_bits(a.to_bits() << n)
    }
    #[inline(always)]
    fn shift_right(&mut self, a: f32, n: u8) -> f32 {
        f32::from_bits((a.to_bits() as i32 >> n) as u32)
    }
    #[inline(always)]
    fn lookup(&mut self, table: [u32; 8], a: f32) -> f32 {
        f32::from_bits(table[(a.to_bits() & 7) as usize])
    }
    #[inline(always)]
    fn int_to_float(&mut self, a: f32) -> f32 {
        a.to_bits() as i32 as f32
    }
}

macro_rules! one {
    ($($name:ident)*) => { $(
        #[doc = concat!("See [`super::", stringify!($name), "`].")]
        #[inline(always)]
        pub fn $name(x: f32) -> f32 {
            super::$name(&mut One, x)
        }
    )* };
}
one!(exp exp_nonpos log tanh erf ndtr sigmoid);

/// A function by its name in expressions; `None` for those that are not in [`super::FUNCTIONS`].
#[inline(always)]
pub fn unary(function: Unary, x: f32) -> Option<f32> {
    super::unary(&mut One, function, x)
}

#[cfg(test)]
mod tests {
    use super as m;

    /// Largest error in units of the last place of the f32 nearest to the truth, over floats of all
    /// magnitudes.
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
        for i in 0..=2_000_000 {
            let x = -87.0 * (i as f32 / 2e6);
            let (got, truth) = (m::exp_nonpos(x) as f64, (x as f64).exp());
            let bound = (2.0 + x.abs() as f64 / 8.0) * f32::EPSILON as f64 * truth;
            assert!((got - truth).abs() <= bound, "exp_nonpos of {x}: {got} for {truth}");
        }
        let worst = worst(m::sigmoid, |x| 1.0 / (1.0 + (-x).exp()), -87.0, inf);
        assert!(worst <= 4.0, "sigmoid: {worst} ulp");
        assert_eq!([-inf, -88.1, 0.0, inf].map(m::sigmoid), [0.0, 0.0, 0.5, 1.0]);
        assert!(m::sigmoid(f32::NAN).is_nan());
        for i in -2_000_000..=2_000_000 {
            let x = 7.0 * (i as f32 / 2e6);
            let (got, truth) =
                (m::ndtr(x) as f64, 0.5 * libm::erfc(-f64::from(x) * std::f64::consts::FRAC_1_SQRT_2));
            let below = 2.0 * (1.0 + f64::from(x * x)) * truth;
            let bound = if x < -5.7 { truth } else { f64::from(f32::EPSILON) * below.min(1.0) };
            assert!((got - truth).abs() <= bound, "ndtr of {x}: {got} for {truth}");
        }
        assert_eq!([0.0, f32::MIN, -inf, f32::MAX, inf].map(m::ndtr), [0.5, 0.0, 0.0, 1.0, 1.0]);
        assert!(m::ndtr(f32::NAN).is_nan());
        assert!(m::exp_nonpos(f32::NAN).is_nan() && m::exp_nonpos(f32::from_bits(0x7FFF_FFFF)).is_nan());
        for x in [-87.5, -88.0, -88.1, -90.0, f32::MIN, -inf] {
            assert!(
                (0.0..f32::MIN_POSITIVE).contains(&m::exp_nonpos(x))
                    && (x > -88.1 || m::exp_nonpos(x) == 0.0),
                "of {x}"
            );
        }
        assert_eq!(m::exp_nonpos(0.0), 1.0);
        assert!(m::log(-1.0).is_nan() && m::log(-inf).is_nan());
        assert_eq!((m::exp(-inf), m::exp(inf), m::exp(0.0)), (0.0, inf, 1.0));
        assert_eq!(
            (m::tanh(-0.0).to_bits(), m::erf(-0.0).to_bits()),
            ((-0.0f32).to_bits(), (-0.0f32).to_bits())
        );
    }
}
