//! Elementary functions that the vector unit lacks, in f32.
//!
//! `exp`, `ln`, `sqrt` and division are the chip's. The simulator's are those of `libm`, right to about an
//! ulp; the chips' own errors are not published for these generations. `rsqrt` and `reciprocal` are good to
//! 1e-4 and are not used: root and quotient take their place. Products and sums are rounded one by one, for
//! the vector unit has no fused multiply-add; so polynomials of the CPU's (`headwater_cpu`, least maximal
//! relative error) lose up to an ulp more here. Bounds are stated with the functions, and tests measure them.
//! Temporary values are in the half of a row of banks that the result does not: operands of one instruction
//! are read in the same cycle.

#![allow(clippy::excessive_precision)]

use super::value::{Held, Ty, VectorUnit};
use crate::kernel::{Binary, Compare, Elem, Round, Scaled, Unary};

/// ln Φ(-a) on [0, 5.7]: least maximal error relative to 1 + a².
const NDTR: [f32; 11] = [
    -1.607_188_2e-8,
    4.926_440_6e-7,
    -6.479_699_6e-6,
    4.636_202_7e-5,
    -1.708_362_7e-4,
    -4.760_505_5e-5,
    4.872_420_3e-3,
    -3.638_672e-2,
    -0.318_296_28,
    -0.797_885_8,
    -std::f32::consts::LN_2,
];

/// The same, of least maximal error: 2⁻¹⁸.
const NDTR_COARSE: [f32; 8] = [
    -1.228_069_7e-6,
    4.183_331e-5,
    -6.382_206e-4,
    5.870_437e-3,
    -3.734_624e-2,
    -0.317_842_36,
    -0.797_959_8,
    -std::f32::consts::LN_2,
];

impl VectorUnit {
    /// `c[0]·xⁿ⁻¹ + … + c[n-1]`.
    fn polynomial(&mut self, x: Held, c: &[f32]) -> Held {
        let p = self.scaled(Scaled::Muls, x, c[0]);
        for (i, &c) in c[1..].iter().enumerate() {
            if i > 0 {
                self.binary_to(Binary::Mul, p, p, x);
            }
            self.scaled_to(Scaled::Adds, p, p, c);
        }
        p
    }

    /// `1 / x`.
    pub fn recip(&mut self, x: Held) -> Held {
        let one = self.constant(1.0);
        self.binary(Binary::Div, one, x)
    }

    /// `1 / √x`, within 2 ulp: a root and a quotient.
    pub fn rsqrt(&mut self, x: Held) -> Held {
        let y = self.unary(Unary::Sqrt, x);
        let one = self.constant(1.0);
        self.binary_to(Binary::Div, y, one, y);
        y
    }

    /// `1 / (1 + e⁻ˣ)`; 0 below -88.8, where e⁻ˣ is infinite.
    pub fn sigmoid(&mut self, x: Held) -> Held {
        let y = self.scaled(Scaled::Muls, x, -1.0f32);
        self.unary_to(Unary::Exp, y, y);
        self.scaled_to(Scaled::Adds, y, y, 1.0f32);
        let one = self.constant(1.0);
        self.binary_to(Binary::Div, y, one, y);
        y
    }

    /// `e^x - 1`: Kahan's `(u - 1) x / ln u` with `u = e^x`, in which the errors of `u` cancel.
    pub fn expm1(&mut self, x: Held) -> Held {
        let u = self.unary(Unary::Exp, x);
        let less = self.scaled(Scaled::Adds, u, -1.0f32);
        let y = self.unary(Unary::Ln, u);
        self.binary_to(Binary::Div, y, x, y);
        self.binary_to(Binary::Mul, y, y, less);
        // Beside 0, u is 1 and the result x; where u is 0 or infinite it is u - 1.
        let one = self.compared_with(u, 1.0f32, Compare::Eq);
        self.select_to(y, one, x, y);
        self.give(one);
        let far = self.unary(Unary::Abs, x);
        let far_bits = self.compared_with(far, 80.0f32, Compare::Gt);
        self.select_to(y, far_bits, less, y);
        [far, far_bits, u, less].into_iter().for_each(|t| self.give(t));
        y
    }

    /// `ln(1 + x)`: Kahan's `x ln u / (u - 1)` with `u = 1 + x`, in which the errors of `u` cancel.
    pub fn log1p(&mut self, x: Held) -> Held {
        let u = self.scaled(Scaled::Adds, x, 1.0f32);
        let y = self.unary(Unary::Ln, u);
        let less = self.scaled(Scaled::Adds, u, -1.0f32);
        self.binary_to(Binary::Div, less, x, less);
        self.binary_to(Binary::Mul, less, less, y);
        let one = self.compared_with(u, 1.0f32, Compare::Eq);
        self.select_to(less, one, x, less);
        self.give(one);
        // An infinite u has no such quotient: the result is ln u.
        let far = self.compared_with(x, f32::MAX, Compare::Gt);
        self.select_to(y, far, y, less);
        // And at -1 the quotient is exact, -1 / -1, and ln u is -infinity.
        [far, u, less].into_iter().for_each(|t| self.give(t));
        y
    }

    /// Hyperbolic tangent, within 4 ulp.
    pub fn tanh(&mut self, x: Held) -> Held {
        let z = self.apart(|u| u.binary(Binary::Mul, x, x));
        let small = self.polynomial(z, &[-0.0062742396, 0.02107168, -0.05385231, 0.13332586, -0.33333316]);
        self.binary_to(Binary::Mul, small, small, z);
        self.binary_to(Binary::Mul, small, small, x);
        self.binary_to(Binary::Add, small, small, x);
        // 1 - 2 / (e²ˣ + 1), for both signs: infinities give ±1.
        self.scaled_to(Scaled::Muls, z, x, 2.0f32);
        self.unary_to(Unary::Exp, z, z);
        self.scaled_to(Scaled::Adds, z, z, 1.0f32);
        let two = self.constant(-2.0);
        self.binary_to(Binary::Div, z, two, z);
        self.scaled_to(Scaled::Adds, z, z, 1.0f32);
        let a = self.unary(Unary::Abs, x);
        let near = self.compared_with(a, 0.55f32, Compare::Lt);
        self.select_to(z, near, small, z);
        [a, near, small].into_iter().for_each(|t| self.give(t));
        z
    }

    /// Error function, within 4 ulp.
    pub fn erf(&mut self, x: Held) -> Held {
        let z = self.apart(|u| u.binary(Binary::Mul, x, x));
        let small = self.polynomial(
            z,
            &[-0.000_631_512_9, 0.005_051_094_6, -0.026_802_547, 0.112_827_174, -0.376_125_72, 0.128_379_17],
        );
        self.binary_to(Binary::Mul, small, small, x);
        self.binary_to(Binary::Add, small, small, x);
        // 1 - erf is 2 to the power of a polynomial; beyond 4 it is less than half an ulp of 1.
        let a = self.unary(Unary::Abs, x);
        self.scaled_to(Scaled::Mins, z, a, 4.0f32);
        let t = self.polynomial(
            z,
            &[
                0.000_293_843_68,
                -0.004_498_115_3,
                0.032_488_138,
                -0.150_799_07,
                -0.918_302_7,
                -1.627_448_1,
                -0.000_150_795_3,
            ],
        );
        self.scaled_to(Scaled::Muls, t, t, std::f32::consts::LN_2);
        self.unary_to(Unary::Exp, t, t);
        self.scaled_to(Scaled::Muls, t, t, -1.0f32);
        self.scaled_to(Scaled::Adds, t, t, 1.0f32);
        self.with_sign(t, x, z);
        let near = self.compared_with(a, 0.85f32, Compare::Lt);
        self.select_to(t, near, small, t);
        [near, a, small, z].into_iter().for_each(|b| self.give(b));
        self.keep_nan(t, x);
        t
    }

    /// Distribution function Φ of the standard normal, within 2⁻²², for negative numbers down to -5.7 within
    /// (1 + x²) · 2⁻²¹ · Φ(x), and below within Φ(x). Where 16 bits are kept of results: within 2⁻¹⁷ · Φ(x).
    ///
    /// ln Φ(-a) is a polynomial that goes on to minus infinity beyond the fitted range, [0, 5.7].
    pub fn ndtr(&mut self, x: Held) -> Held {
        let a = self.apart(|u| u.unary(Unary::Abs, x));
        let t = match self.coarse {
            true => self.polynomial(a, &NDTR_COARSE),
            false => self.polynomial(a, &NDTR),
        };
        self.unary_to(Unary::Exp, t, t);
        // The median of Φ(-|x|), 1 - Φ(-|x|) and x times 2¹²⁷: for NaN all three are NaN.
        self.scaled_to(Scaled::Muls, a, x, f32::from_bits(0x7f00_0000));
        self.binary_to(Binary::Max, a, t, a);
        self.scaled_to(Scaled::Muls, t, t, -1.0f32);
        self.scaled_to(Scaled::Adds, t, t, 1.0f32);
        self.binary_to(Binary::Min, t, a, t);
        self.give(a);
        t
    }

    /// -1, 0 or 1; 0 for NaN.
    pub fn sign(&mut self, x: Held) -> Held {
        let zero = self.filled(x.extent, 0.0);
        let y = self.filled(x.extent, 1.0);
        let positive = self.compared_with(x, 0.0f32, Compare::Gt);
        self.select_to(y, positive, y, zero);
        self.give(positive);
        self.fill(zero, -1.0f32);
        let negative = self.compared_with(x, 0.0f32, Compare::Lt);
        self.select_to(y, negative, zero, y);
        self.give(negative);
        self.give(zero);
        y
    }

    /// Rounds to an integer. Without an instruction for it (310P), through i32: numbers from 2²³ on are
    /// integers, and the sign of a zero that comes out is positive.
    pub fn round(&mut self, x: Held, round: Round) -> Held {
        if crate::kernel::cast_exists(self.arch(), Elem::F32, Elem::F32, round, false) {
            return self.cast(x, Ty::F32, round);
        }
        let whole = self.cast(x, Ty::I32, round);
        let y = self.cast(whole, Ty::F32, Round::None);
        self.give(whole);
        let a = self.unary(Unary::Abs, x);
        let near = self.compared_with(a, 8_388_608.0f32, Compare::Lt);
        self.select_to(y, near, y, x);
        self.give(near);
        self.give(a);
        y
    }

    /// Sine, or cosine, of numbers up to 2¹⁵ π in magnitude within 2⁻²², of larger ones with a growing error.
    ///
    /// x less the nearest multiple n of π (cosine: odd multiple of π/2), which is split into four parts:
    /// products of the first three, of 8 bits, with n are exact below 2¹⁵ (Cody and Waite). Then an odd
    /// Taylor polynomial to x¹¹, off by less than 6e-8 at π/2, and the sign of n.
    pub fn sine(&mut self, x: Held, cosine: bool) -> Held {
        const PARTS: [f32; 4] =
            [3.140625, 0.000965118408203125, 2.5331974029541016e-06, 1.984187258941006e-09];
        let (before, behind) = if cosine { (0.5, -0.5) } else { (0.0, 0.0) };
        let t = self.scaled(Scaled::Muls, x, std::f32::consts::FRAC_1_PI);
        if cosine {
            self.scaled_to(Scaled::Adds, t, t, before);
        }
        let n = self.round(t, Round::Rint);
        // Parity: n - 2 round(n / 2) is 0 or ±1.
        self.scaled_to(Scaled::Muls, t, n, 0.5f32);
        let half = self.round(t, Round::Rint);
        self.scaled_to(Scaled::Muls, half, half, -2.0f32);
        self.binary_to(Binary::Add, half, half, n);
        if cosine {
            self.scaled_to(Scaled::Adds, n, n, behind);
        }
        let r = self.scaled(Scaled::Muls, n, -PARTS[0]);
        self.binary_to(Binary::Add, r, r, x);
        for part in &PARTS[1..] {
            self.scaled_to(Scaled::Muls, t, n, -part);
            self.binary_to(Binary::Add, r, r, t);
        }
        self.give(n);
        self.binary_to(Binary::Mul, t, r, r);
        let p = self
            .polynomial(t, &[-2.505_210_8e-8, 2.755_732e-6, -1.984_127e-4, 8.333_333_3e-3, -0.166_666_67]);
        self.binary_to(Binary::Mul, p, p, t);
        self.binary_to(Binary::Mul, p, p, r);
        self.binary_to(Binary::Add, p, p, r);
        self.give(r);
        // The sign: 1 - 2 n² for n of -1, 0, 1.
        self.binary_to(Binary::Mul, half, half, half);
        self.scaled_to(Scaled::Muls, half, half, -2.0f32);
        self.scaled_to(Scaled::Adds, half, half, 1.0f32);
        self.binary_to(Binary::Mul, p, p, half);
        self.give(half);
        self.give(t);
        p
    }

    /// Gives `y` the sign of `x`, for `y` not negative; `room` is overwritten.
    fn with_sign(&mut self, y: Held, x: Held, room: Held) {
        self.scaled_to(Scaled::Muls, room, y, -1.0f32);
        let negative = self.compared_with(x, 0.0f32, Compare::Lt);
        self.select_to(y, negative, room, y);
        self.give(negative);
    }

    /// NaN where `x` is one: minima and comparisons may have dropped it.
    fn keep_nan(&mut self, y: Held, x: Held) {
        let is = self.compared(x, x, Compare::Eq);
        self.select_to(y, is, y, x);
        self.give(is);
    }
}
