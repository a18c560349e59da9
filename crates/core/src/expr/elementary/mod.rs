//! Elementary functions of f32, defined by the operations that compute them: exact bits, not only a bound.
//!
//! Each function is written once over [`Ops`]: additions, products, fused multiply-adds and operations on
//! bits, each correctly rounded as IEEE 754 says. Implementers are numbers ([`scalar`]), C text ([`text`]),
//! and in devices vectors and machine code. All of them give the same bits wherever arithmetic is IEEE; of a
//! NaN only that it is one. A device that contracts `a · b + c` on its own, or flushes subnormal numbers,
//! must be configured not to (`--fmad=false`, `-ffp-contract=off`).
//!
//! There are neither branches nor tables in memory, so that loops over them vectorise. The polynomials are
//! fits of least maximal relative error over the reduced interval; each function states its bound, which the
//! tests measure against f64. Functions that are not here (sine, cosine, tangent, arcus tangent, `expm1`,
//! `log1p`, powers) are the platform's library's on every device so far, and may differ in the last place.

pub mod scalar;
pub mod text;

use crate::expr::Unary;

/// Operations that the functions are written in: on vectors of f32, on masks, and on the bits of either.
pub trait Ops {
    /// A vector of f32, or of their bits.
    type V: Copy;
    /// A truth value for each lane.
    type M: Copy;

    /// This number in all lanes.
    fn num(&mut self, x: f32) -> Self::V;
    /// `a + b`.
    fn add(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a − b`.
    fn sub(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b`.
    fn mul(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, rounded once.
    fn fma(&mut self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger one; `b` where neither is larger (a NaN, equal numbers).
    fn max(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller one; `b` where neither is smaller.
    fn min(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// True where `a < b`.
    fn lt(&mut self, a: Self::V, b: Self::V) -> Self::M;
    /// True where `a == b`.
    fn eq(&mut self, a: Self::V, b: Self::V) -> Self::M;
    /// True where `a` is a NaN.
    fn is_nan(&mut self, a: Self::V) -> Self::M;
    /// Lanes of `a` where the mask is true, of `b` elsewhere.
    fn select(&mut self, m: Self::M, a: Self::V, b: Self::V) -> Self::V;
    /// These bits in all lanes.
    fn bits(&mut self, x: u32) -> Self::V;
    /// Bits that both have.
    fn and(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Bits that either has.
    fn or(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Difference of the bits as integers of 32 bits, wrapping.
    fn sub_int(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Bits shifted left.
    fn shift_left(&mut self, a: Self::V, n: u8) -> Self::V;
    /// Bits shifted right, with copies of the sign.
    fn shift_right(&mut self, a: Self::V, n: u8) -> Self::V;
    /// The entry of a table, at the index in the three lowest bits of each lane.
    fn lookup(&mut self, table: [u32; 8], a: Self::V) -> Self::V;
    /// The bits as a 32-bit integer, converted to f32; exact below 2²⁴ in magnitude, which is all that the
    /// functions require.
    fn int_to_float(&mut self, a: Self::V) -> Self::V;
}

/// The functions that are defined here.
pub const FUNCTIONS: [Unary; 7] =
    [Unary::Exp, Unary::ExpNonpos, Unary::Log, Unary::Tanh, Unary::Erf, Unary::Ndtr, Unary::Sigmoid];

/// A function by its name in expressions; `None` for those that are not defined here ([`FUNCTIONS`]).
#[inline(always)]
pub fn unary<L: Ops>(l: &mut L, function: Unary, x: L::V) -> Option<L::V> {
    Some(match function {
        Unary::Exp => exp(l, x),
        Unary::ExpNonpos => exp_nonpos(l, x),
        Unary::Log => log(l, x),
        Unary::Tanh => tanh(l, x),
        Unary::Erf => erf(l, x),
        Unary::Ndtr => ndtr(l, x),
        Unary::Sigmoid => sigmoid(l, x),
        _ => return None,
    })
}

/// Adding and subtracting this rounds to the nearest integer, ties to even, for |x| < 2²²; meanwhile the
/// integer is in the low bits.
const SHIFT: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
#[allow(clippy::excessive_precision)]
const LN2: (f32, f32) = (0.693_359_375, -2.121_944_4e-4);

/// `c[0]·xⁿ⁻¹ + … + c[n-1]`.
#[inline(always)]
fn polynomial<L: Ops, const N: usize>(l: &mut L, x: L::V, c: [f32; N]) -> L::V {
    let mut p = l.num(c[0]);
    let mut i = 1;
    while i < N {
        let k = l.num(c[i]);
        p = l.fma(p, x, k);
        i += 1;
    }
    p
}

/// The same, for long ones: even and odd powers separately (second-order Horner), for shorter dependency
/// chains.
#[inline(always)]
fn halves<L: Ops, const N: usize>(l: &mut L, x: L::V, c: [f32; N]) -> L::V {
    let z = l.mul(x, x);
    let mut sums = [l.num(c[0]), l.num(c[1])];
    let mut i = 2;
    while i < N {
        let k = l.num(c[i]);
        sums[i % 2] = l.fma(sums[i % 2], z, k);
        i += 1;
    }
    // The last coefficient is that of the even powers.
    l.fma(sums[N % 2], x, sums[(N - 1) % 2])
}

/// The magnitude.
#[inline(always)]
pub fn abs<L: Ops>(l: &mut L, x: L::V) -> L::V {
    let mask = l.bits(0x7FFF_FFFF);
    l.and(x, mask)
}

/// A magnitude with the sign of another number.
#[inline(always)]
fn with_sign<L: Ops>(l: &mut L, magnitude: L::V, of: L::V) -> L::V {
    let mask = l.bits(1 << 31);
    let (sign, magnitude) = (l.and(of, mask), abs(l, magnitude));
    l.or(magnitude, sign)
}

/// Powers of 2 in steps of an eighth. It is subtracted from the number of eighths, in the place of an
/// exponent's integer and the first three bits of the mantissa. The bits of the power are left.
const EIGHTHS: [u32; 8] = {
    const BITS: [u32; 8] = [
        0x3f80_0000,
        0x3f8b_95c2,
        0x3f98_37f0,
        0x3fa5_fed7,
        0x3fb5_04f3,
        0x3fc5_672a,
        0x3fd7_44fd,
        0x3fea_c0c7,
    ];
    let (mut less, mut i) = ([0; 8], 0);
    while i < 8 {
        less[i] = (i as u32) << 20;
        less[i] -= BITS[i] - BITS[0];
        i += 1;
    }
    less
};

/// eˣ, within 2 ulp, subnormal results included.
#[inline(always)]
#[allow(clippy::excessive_precision)]
pub fn exp<L: Ops>(l: &mut L, x: L::V) -> L::V {
    // Beyond these the result is infinite or 0 anyway. A NaN passes: it is the second operand.
    let (high, low) = (l.num(89.0), l.num(-105.0));
    let t = l.min(high, x);
    let t = l.max(low, t);
    // Eighths of powers of 2; twice the bias of an exponent comes with them, for the two factors below.
    let (log2e, shift) = (l.num(8.0 * std::f32::consts::LOG2_E), l.num(SHIFT + 8.0 * 254.0));
    let shifted = l.fma(t, log2e, shift);
    let n = l.sub(shifted, shift);
    let (high, low) = (l.num(-LN2.0 / 8.0), l.num(-LN2.1 / 8.0));
    let r = l.fma(n, high, t);
    let r = l.fma(n, low, r);
    let y = polynomial(l, r, [0.166_642_98, 0.500_064_8, 1.0, 1.0]);
    // 2ⁿ as two factors, each normal even where the result is not.
    let half = l.shift_right(shifted, 4);
    let half = l.shift_left(half, 23);
    let rest = l.shift_left(shifted, 20);
    let rest = l.sub_int(rest, half);
    let eighths = l.lookup(EIGHTHS, shifted);
    let rest = l.sub_int(rest, eighths);
    let y = l.mul(y, half);
    l.mul(y, rest)
}

/// The number that puts an integer of eighths into the low bits, with the bias of an exponent.
const BIASED: f32 = SHIFT + 8.0 * 127.0;

/// 2 to the power of eighths that were added to [`BIASED`], and of `r` further ones, from -½ to ½.
#[inline(always)]
fn power<L: Ops>(l: &mut L, shifted: L::V, r: L::V) -> L::V {
    let y = polynomial(l, r, [0.000_108_391_054, 0.003_754_025_6, 0.086_643_405, 1.0]);
    let scale = l.shift_left(shifted, 20);
    let eighths = l.lookup(EIGHTHS, shifted);
    let scale = l.sub_int(scale, eighths);
    l.mul(y, scale)
}

/// 2 to the power of t/8, for t in [-1000, 1016].
#[inline(always)]
fn exp2<L: Ops>(l: &mut L, t: L::V) -> L::V {
    let shift = l.num(BIASED);
    let shifted = l.add(t, shift);
    let less = l.sub(shift, shifted);
    let r = l.add(t, less);
    power(l, shifted, r)
}

/// The power of 2 that eˣ is: eighths as [`power`] takes them, and the remainder. The latter is off by as
/// much as log₂ e is rounded.
#[inline(always)]
fn eighths<L: Ops>(l: &mut L, x: L::V) -> (L::V, L::V) {
    let (log2e, shift) = (l.num(8.0 * std::f32::consts::LOG2_E), l.num(BIASED));
    let shifted = l.fma(x, log2e, shift);
    let less = l.sub(shift, shifted);
    (shifted, l.fma(x, log2e, less))
}

/// eˣ for x in [-87, 88], within 2 + |x| / 8 ulp, for log₂ e is rounded; no normal number below that, and
/// 0 at -88.03.
#[inline(always)]
fn quick<L: Ops>(l: &mut L, x: L::V) -> L::V {
    let (shifted, r) = eighths(l, x);
    power(l, shifted, r)
}

/// eˣ of what is 0 at most, such as a score less the largest one; in truth for x up to 88. 0 below -88.1,
/// and between that and -87.3 no normal number. Within 2 + |x| / 8 ulp: beyond 5.4 no more than a
/// rounding of x makes.
#[inline(always)]
#[allow(clippy::excessive_precision)]
pub fn exp_nonpos<L: Ops>(l: &mut L, x: L::V) -> L::V {
    // The power of 2 whose exponent is 0, and no eighths more: bits of 0.
    let low = l.num(-88.03);
    let x = l.max(low, x);
    quick(l, x)
}

/// Natural logarithm, within 2 ulp.
#[inline(always)]
#[allow(clippy::excessive_precision)]
pub fn log<L: Ops>(l: &mut L, x: L::V) -> L::V {
    let (least, up) = (l.num(f32::MIN_POSITIVE), l.num(8_388_608.0));
    let subnormal = l.lt(x, least);
    let larger = l.mul(x, up);
    let scaled = l.select(subnormal, larger, x);
    // x = 2ⁿ · m with m in [√½, √2).
    let root_half = l.bits(0x3F35_04F3);
    let n = l.sub_int(scaled, root_half);
    let n = l.shift_right(n, 23);
    let m = l.shift_left(n, 23);
    let m = l.sub_int(scaled, m);
    let (down, zero, one) = (l.num(23.0), l.num(0.0), l.num(1.0));
    let down = l.select(subnormal, down, zero);
    let n = l.int_to_float(n);
    let n = l.sub(n, down);
    let f = l.sub(m, one);
    let p = polynomial(
        l,
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
    let z = l.mul(f, f);
    let (high, low, half) = (l.num(LN2.0), l.num(LN2.1), l.num(-0.5));
    let cube = l.mul(z, f);
    let cube = l.mul(p, cube);
    let y = l.fma(n, low, cube);
    let f = l.fma(half, z, f);
    let y = l.add(f, y);
    let y = l.fma(n, high, y);
    let (infinity, lowest, nan) = (l.num(f32::INFINITY), l.num(f32::NEG_INFINITY), l.num(f32::NAN));
    let at_zero = l.eq(x, zero);
    let y = l.select(at_zero, lowest, y);
    let at_infinity = l.eq(x, infinity);
    let y = l.select(at_infinity, x, y);
    let negative = l.lt(x, zero);
    let y = l.select(negative, nan, y);
    let none = l.is_nan(x);
    l.select(none, nan, y)
}

/// Hyperbolic tangent, within 2 ulp.
#[inline(always)]
#[allow(clippy::excessive_precision)]
pub fn tanh<L: Ops>(l: &mut L, x: L::V) -> L::V {
    let a = abs(l, x);
    let z = l.mul(x, x);
    let p = polynomial(l, z, [-0.0062742396, 0.02107168, -0.05385231, 0.13332586, -0.33333316]);
    let cube = l.mul(a, z);
    let small = l.fma(cube, p, a);
    let (one, two, bound, most) = (l.num(1.0), l.num(2.0), l.num(0.55), l.num(40.0));
    // Beyond this it is 1.
    let e = l.min(most, a);
    let e = l.add(e, e);
    let e = quick(l, e);
    let e = l.add(e, one);
    let e = l.div(two, e);
    let large = l.sub(one, e);
    let is_small = l.lt(a, bound);
    let y = l.select(is_small, small, large);
    with_sign(l, y, x)
}

/// Error function, within 2 ulp.
#[inline(always)]
#[allow(clippy::excessive_precision)]
pub fn erf<L: Ops>(l: &mut L, x: L::V) -> L::V {
    let a = abs(l, x);
    let z = l.mul(x, x);
    let p = polynomial(
        l,
        z,
        [-0.000_631_512_9, 0.005_051_094_6, -0.026_802_547, 0.112_827_174, -0.376_125_72, 0.128_379_17],
    );
    let small = l.fma(a, p, a);
    // 1 − erf is 2 to a polynomial; beyond 4 it is less than half an ulp of 1.
    let four = l.num(4.0);
    let far = l.lt(four, a);
    let t = l.select(far, four, a);
    let t = polynomial(
        l,
        t,
        [
            8.0 * 0.000_293_843_68,
            8.0 * -0.004_498_115_3,
            8.0 * 0.032_488_138,
            8.0 * -0.150_799_07,
            8.0 * -0.918_302_7,
            8.0 * -1.627_448_1,
            8.0 * -0.000_150_795_3,
        ],
    );
    let e = exp2(l, t);
    let (one, bound) = (l.num(1.0), l.num(0.85));
    let large = l.sub(one, e);
    let is_small = l.lt(a, bound);
    let y = l.select(is_small, small, large);
    with_sign(l, y, x)
}

/// Distribution function Φ of the standard normal, within 2⁻²³, for negative numbers within (1 + x²) ·
/// 2⁻²² · Φ(x), and 0 below -5.7.
#[inline(always)]
#[allow(clippy::excessive_precision)]
pub fn ndtr<L: Ops>(l: &mut L, x: L::V) -> L::V {
    let a = abs(l, x);
    // Eighths of log₂ Φ(-a).
    let t = halves(
        l,
        a,
        [
            -2.232_443_7e-7,
            6.659_307_5e-6,
            -8.524_046_3e-5,
            0.000_595_677_64,
            -0.002_177_054_1,
            -0.000_136_391_11,
            0.055_755_753,
            -0.419_661_07,
            -3.673_721,
            -9.208_839_4,
            -8.0,
        ],
    );
    let e = exp2(l, t);
    let (bound, zero, one) = (l.num(5.7), l.num(0.0), l.num(1.0));
    let far = l.lt(bound, a);
    let e = l.select(far, zero, e);
    let upper = l.sub(one, e);
    let negative = l.lt(x, zero);
    l.select(negative, e, upper)
}

/// 1 / (1 + e⁻ˣ), within 4 ulp; below -87.3 no normal number, and 0 below -88.1.
#[inline(always)]
#[allow(clippy::excessive_precision)]
pub fn sigmoid<L: Ops>(l: &mut L, x: L::V) -> L::V {
    // exp of a negative number cannot overflow.
    let (sign, one, zero, low) = (l.bits(1 << 31), l.num(1.0), l.num(0.0), l.num(-88.03));
    let down = l.or(x, sign);
    let down = l.max(low, down);
    let (shifted, r) = eighths(l, down);
    // The part of log₂ e that an f32 lacks: a result near 0 is as good as this exponential is.
    let rest = l.num(8.0 * 1.925_963e-8);
    let r = l.fma(down, rest, r);
    let e = power(l, shifted, r);
    let sum = l.add(one, e);
    let upper = l.div(one, sum);
    let lower = l.mul(e, upper);
    let negative = l.lt(x, zero);
    l.select(negative, lower, upper)
}
