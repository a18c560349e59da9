//! The scalar functions of row programs on f32, f64, i64 and bool, written so that loops over them vectorise.
//! Their meaning is defined by the core's `expr::scalar`.

use crate::math;
use half::{bf16, f16};
use headwater_core::DType;
use headwater_core::dtype::round_to_odd;
use headwater_core::expr::{Binary, Unary};
use headwater_core::reference::scalar;
use headwater_core::row::Reduce;

/// A floating-point computing type.
pub(in crate::rows) trait Real:
    Copy + PartialOrd + std::ops::Add<Output = Self> + 'static
{
    fn unary(op: Unary, x: Self) -> Self;
    fn test(op: Unary, x: Self) -> bool;
    fn binary(op: Binary, a: Self, b: Self) -> Self;
    fn from_i64(x: i64) -> Self;
    fn to_i64(self) -> i64;
    /// To a float dtype and back, rounding once.
    fn round(self, to: DType) -> Self;
    /// An integer to a float dtype of at most this precision, rounding once.
    fn round_i64(x: i64, to: DType) -> Self;
    fn to_f64(self) -> f64;
    fn from_f64(x: f64) -> Self;
    /// The bits of the number as an f32, as a signed number.
    fn bits(self) -> i64;
    /// The f32 of the low 32 bits.
    fn from_bits(x: i64) -> Self;
}

macro_rules! real {
    ($t:ident, $round:expr) => {
        impl Real for $t {
            #[inline(always)]
            fn unary(op: Unary, x: $t) -> $t {
                match op {
                    Unary::Neg => -x,
                    Unary::Abs => x.abs(),
                    Unary::Sign => {
                        let s = if x < 0.0 { -1.0 } else { 0.0 };
                        if x > 0.0 { 1.0 } else { s }
                    }
                    Unary::Exp => math::$t::exp(x),
                    Unary::ExpNonpos => math::$t::exp_nonpos(x),
                    Unary::Expm1 => x.exp_m1(),
                    Unary::Log => math::$t::log(x),
                    Unary::Log1p => x.ln_1p(),
                    Unary::Sqrt => x.sqrt(),
                    Unary::Rsqrt => 1.0 / x.sqrt(),
                    Unary::Recip => 1.0 / x,
                    Unary::Sin => x.sin(),
                    Unary::Cos => x.cos(),
                    Unary::Tan => x.tan(),
                    Unary::Tanh => math::$t::tanh(x),
                    Unary::Atan => x.atan(),
                    Unary::Erf => math::$t::erf(x),
                    Unary::Ndtr => math::$t::ndtr(x),
                    Unary::Floor => x.floor(),
                    Unary::Ceil => x.ceil(),
                    Unary::Trunc => x.trunc(),
                    Unary::Round => x.round_ties_even(),
                    Unary::Sigmoid => math::$t::sigmoid(x),
                    // Functions of bools and integers only; the classes never ask.
                    Unary::Not | Unary::IsNan | Unary::IsInf | Unary::Bits | Unary::FromBits => {
                        Self::test(op, x) as i32 as $t
                    }
                }
            }

            #[inline(always)]
            fn test(op: Unary, x: $t) -> bool {
                match op {
                    Unary::IsNan => x.is_nan(),
                    Unary::IsInf => x.abs() == $t::INFINITY,
                    _ => x == 0.0,
                }
            }

            #[inline(always)]
            fn binary(op: Binary, a: $t, b: $t) -> $t {
                match op {
                    Binary::Add => a + b,
                    Binary::Sub => a - b,
                    Binary::Mul => a * b,
                    Binary::Div => a / b,
                    Binary::FloorDiv if b == 0.0 => a / b,
                    Binary::FloorDiv => {
                        // As the core's definition: what is left when the remainder is taken off.
                        let rest = a % b;
                        let q =
                            (a - rest) / b - if rest != 0.0 && (b < 0.0) != (rest < 0.0) { 1.0 } else { 0.0 };
                        let down = q.floor();
                        let near = if q - down > 0.5 { down + 1.0 } else { down };
                        if q == 0.0 { (0.0 as $t).copysign(a / b) } else { near }
                    }
                    Binary::Rem => {
                        let r = a % b;
                        if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
                    }
                    Binary::Fmod => a % b,
                    Binary::Pow => a.powf(b),
                    Binary::Atan2 => a.atan2(b),
                    // NaN wins: from `a` because no comparison with it holds, from `b` by the second test.
                    Binary::Min => {
                        if b < a || b.is_nan() {
                            b
                        } else {
                            a
                        }
                    }
                    Binary::Max => {
                        if b > a || b.is_nan() {
                            b
                        } else {
                            a
                        }
                    }
                    _ => scalar::compare(op, &a, &b) as i32 as $t,
                }
            }

            #[inline(always)]
            fn from_i64(x: i64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn round(self, to: DType) -> $t {
                let narrow: fn($t) -> f32 = $round;
                match to {
                    DType::F32 => self as f32 as $t,
                    DType::F16 => f16::from_f32(narrow(self)).to_f32() as $t,
                    DType::BF16 => f32::from_bits((bf16_bits(narrow(self)) as u32) << 16) as $t,
                    _ => self,
                }
            }
            #[inline(always)]
            fn round_i64(x: i64, to: DType) -> $t {
                Real::round(x as f64, to) as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn bits(self) -> i64 {
                (self as f32).to_bits() as i32 as i64
            }
            #[inline(always)]
            fn from_bits(x: i64) -> $t {
                f32::from_bits(x as u32) as $t
            }
        }
    };
}
real!(f32, |x| x);
real!(f64, round_to_odd);

/// The bits of the bfloat16 nearest to `x`, ties to even, without branches.
#[inline(always)]
pub(crate) fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    // A NaN stays one: quiet, its sign kept.
    (if x.is_nan() { (bits >> 16) | 0x40 } else { rounded }) as u16
}

/// A float type in memory, converted to and from a computing type.
pub(in crate::rows) trait Memory<T: Real>: Copy {
    /// The same number.
    fn get(self) -> T;
    /// The nearest number, ties to even, rounded once.
    fn of(x: T) -> Self;
}

macro_rules! memory {
    ($($d:ident, $t:ident: |$x:ident| $get:expr, $of:expr;)*) => { $(
        impl Memory<$t> for $d {
            #[inline(always)]
            fn get(self) -> $t {
                let $x = self;
                $get
            }
            #[inline(always)]
            fn of($x: $t) -> $d {
                $of
            }
        }
    )* };
}
memory! {
    f32, f32: |x| x, x;
    f64, f64: |x| x, x;
    f32, f64: |x| x as f64, x as f32;
    bf16, f32: |x| f32::from_bits((x.to_bits() as u32) << 16), bf16::from_bits(bf16_bits(x));
    bf16, f64: |x| f32::from_bits((x.to_bits() as u32) << 16) as f64, bf16::from_bits(bf16_bits(round_to_odd(x)));
}
impl<T: Real> Memory<T> for f16 {
    #[inline(always)]
    fn get(self) -> T {
        T::from_f64(self.to_f32() as f64)
    }
    #[inline(always)]
    fn of(x: T) -> f16 {
        // Rounding an f32 to odd leaves it as it is.
        f16::from_f32(round_to_odd(x.to_f64()))
    }
}

/// An integer type in memory.
pub(in crate::rows) trait Int: Copy + 'static {
    /// The same number.
    fn widen(self) -> i64;
    /// The low bits.
    fn wrap(x: i64) -> Self;
}

macro_rules! ints {
    ($($d:ident)*) => { $(
        impl Int for $d {
            #[inline(always)]
            fn widen(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn wrap(x: i64) -> $d {
                x as $d
            }
        }
    )* };
}
ints!(u8 i8 i16 i32 i64);

/// The low bits of an integer, as a dtype holds them.
#[inline(always)]
pub(in crate::rows) fn wrap(to: DType, x: i64) -> i64 {
    match to {
        DType::U8 => x as u8 as i64,
        DType::I8 => x as i8 as i64,
        DType::I16 => x as i16 as i64,
        DType::I32 => x as i32 as i64,
        _ => x,
    }
}

/// A type whose reductions are exact.
pub(in crate::rows) trait Exact: Copy {
    fn fold(op: Reduce, a: Self, b: Self) -> Self;
}

impl Exact for i64 {
    #[inline(always)]
    fn fold(op: Reduce, a: i64, b: i64) -> i64 {
        match op {
            Reduce::Sum => a.wrapping_add(b),
            Reduce::Prod => a.wrapping_mul(b),
            Reduce::Max => a.max(b),
            Reduce::Min => a.min(b),
        }
    }
}

/// Reductions of bools: any of them (sum, largest), all of them (product, smallest).
impl Exact for u8 {
    #[inline(always)]
    fn fold(op: Reduce, a: u8, b: u8) -> u8 {
        match op {
            Reduce::Sum | Reduce::Max => a | b,
            Reduce::Prod | Reduce::Min => a & b,
        }
    }
}

/// A comparison as a byte.
#[inline(always)]
pub(in crate::rows) fn compare<T: PartialOrd>(op: Binary, a: T, b: T) -> u8 {
    scalar::compare(op, &a, &b) as u8
}

/// A function of two integers that gives an integer.
#[inline(always)]
pub(in crate::rows) fn binary_int(op: Binary, a: i64, b: i64) -> i64 {
    match op {
        // The common ones here, so that they vectorise.
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        _ => scalar::binary_i(op, a, b),
    }
}

/// A function of two bools (bytes 0 and 1) that gives a bool.
#[inline(always)]
pub(in crate::rows) fn binary_bool(op: Binary, a: u8, b: u8) -> u8 {
    match op {
        Binary::And | Binary::Mul | Binary::Min => a & b,
        Binary::Or | Binary::Add | Binary::Max => a | b,
        Binary::Xor | Binary::Sub => a ^ b,
        _ => compare(op, a, b),
    }
}
