//! Rust types of the elements of each dtype, with widening and narrowing of floats.

use crate::math;
pub use half::{bf16, f16};
pub use headwater_core::DType;
use headwater_core::dtype::round_to_odd;
use std::any::TypeId;

/// A type of elements of tensors. `u8` holds both `u8` and `bool` (bytes 0 and 1).
pub trait Element: bytemuck::Pod + Send + Sync + PartialEq + PartialOrd + std::fmt::Debug {
    /// True if tensors of `dtype` hold this type.
    fn holds(dtype: DType) -> bool;
}

macro_rules! elements {
    ($($t:ty: $($d:ident)|+;)*) => { $(
        impl Element for $t {
            fn holds(dtype: DType) -> bool {
                matches!(dtype, $(DType::$d)|+)
            }
        }
    )* };
}
elements!(u8: U8 | Bool; i8: I8; i16: I16; i32: I32; i64: I64; f16: F16; bf16: BF16; f32: F32; f64: F64;);

/// A floating-point element.
pub trait Float: Element {
    /// The type it is computed in: f32, or f64 for f64.
    type Wide: Wide;
    /// The same number.
    fn widen(self) -> Self::Wide;
    /// Rounded to nearest, ties to even.
    fn narrow(x: Self::Wide) -> Self;
    /// Rounded to nearest, ties to even, once.
    fn from_f64(x: f64) -> Self;
}

/// True if both are one type: decided when the caller is compiled.
pub(crate) fn same<A: 'static, B: 'static>() -> bool {
    TypeId::of::<A>() == TypeId::of::<B>()
}

/// The first `n` lanes, a power of two, as one: the upper half is combined with the lower one until one is
/// left.
#[inline(always)]
pub(crate) fn halved<T: Copy, const N: usize>(mut lanes: [T; N], n: usize, f: impl Fn(T, T) -> T) -> T {
    let mut n = n;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = f(lanes[i], lanes[i + n]);
        }
    }
    lanes[0]
}

/// Sum of the first `n` lanes, a power of two.
#[inline(always)]
pub(crate) fn total<T: Copy + std::ops::Add<Output = T>, const N: usize>(lanes: [T; N], n: usize) -> T {
    halved(lanes, n, |a, b| a + b)
}

/// A type floats are computed in.
pub trait Wide:
    Float<Wide = Self>
    + Default
    + std::iter::Sum
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
    + std::ops::SubAssign
    + std::ops::MulAssign
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// -inf.
    const NEG_INFINITY: Self;
    /// e to this power.
    fn exp(self) -> Self;
    /// e to this power, for weights: fast, for powers up to 88; no normal number below -87.3, and 0 below
    /// -88.1.
    fn exp_nonpos(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// `1 / (1 + e⁻ˣ)`.
    fn sigmoid(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// True if this is not a number.
    fn is_nan(self) -> bool;
    /// The same number.
    fn to_f64(self) -> f64;
}

macro_rules! wide {
    ($t:ident, $exp:path, $exp_nonpos:path, $tanh:path, $sigmoid:path) => {
        impl Float for $t {
            type Wide = $t;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(x: $t) -> $t {
                x
            }
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                x as $t
            }
        }
        impl Wide for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const NEG_INFINITY: $t = $t::NEG_INFINITY;
            #[inline(always)]
            fn exp(self) -> $t {
                $exp(self)
            }
            #[inline(always)]
            fn exp_nonpos(self) -> $t {
                $exp_nonpos(self)
            }
            #[inline(always)]
            fn tanh(self) -> $t {
                $tanh(self)
            }
            #[inline(always)]
            fn sigmoid(self) -> $t {
                $sigmoid(self)
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                $t::sqrt(self)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $t::is_nan(self)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
        }
    };
}
// Loops over the one for f32 vectorise.
wide!(f32, math::f32::exp, math::f32::exp_nonpos, math::f32::tanh, math::f32::sigmoid);
wide!(f64, f64::exp, f64::exp, f64::tanh, math::f64::sigmoid);

macro_rules! narrow {
    ($t:ident) => {
        impl Float for $t {
            type Wide = f32;
            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }
            #[inline(always)]
            fn narrow(x: f32) -> $t {
                $t::from_f32(x)
            }
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                $t::from_f32(round_to_odd(x))
            }
        }
    };
}
narrow!(f16);
narrow!(bf16);

/// Runs an expression with `T` bound to the element type of a float dtype; panics for others, which the
/// kernel's `takes` must have refused.
#[macro_export]
macro_rules! float_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::element::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::element::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::element::DType::F16 => {
                type $T = $crate::element::f16;
                $body
            }
            $crate::element::DType::BF16 => {
                type $T = $crate::element::bf16;
                $body
            }
            other => unreachable!("a float kernel was given {other}"),
        }
    };
}

/// Runs an expression with `T` bound to the element type of any dtype.
#[macro_export]
macro_rules! any_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::element::DType::Bool | $crate::element::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::element::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::element::DType::I16 => {
                type $T = i16;
                $body
            }
            $crate::element::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::element::DType::I64 => {
                type $T = i64;
                $body
            }
            float => $crate::float_dtype!(float, $T => $body),
        }
    };
}
