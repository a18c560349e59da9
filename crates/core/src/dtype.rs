//! Element types. Owns sizes, classes, promotion and rounding; knows nothing of shapes or storage.

use std::fmt;
use std::str::FromStr;

/// Element type of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// Boolean, one byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// IEEE binary16.
    F16,
    /// bfloat16: binary32 with 8 bits of significand.
    BF16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
}

/// The kind of numbers that a dtype holds; also the kind of a row-program register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Class {
    /// `bool`
    Bool,
    /// any integer
    Int,
    /// any floating-point type
    Float,
}

impl DType {
    /// Every dtype, narrowest class first.
    pub const ALL: [DType; 10] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Short name, as in the text form: `f32`, `i64`, `bool`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }

    /// The class of numbers this type holds.
    pub const fn class(self) -> Class {
        match self {
            DType::Bool => Class::Bool,
            DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => Class::Int,
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Class::Float,
        }
    }

    /// True if this is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self.class(), Class::Float)
    }

    /// Machine epsilon (distance from 1 to the next number); 0 for integers and bool.
    pub const fn epsilon(self) -> f64 {
        match self {
            DType::F64 => f64::EPSILON,
            DType::F32 => f32::EPSILON as f64,
            DType::F16 => 0.0009765625,
            DType::BF16 => 0.0078125,
            _ => 0.0,
        }
    }

    /// Largest finite value (of the type's class) as f64.
    pub fn max_value(self) -> f64 {
        match self {
            DType::F64 => f64::MAX,
            DType::F32 => f32::MAX as f64,
            DType::F16 => 65504.0,
            DType::BF16 => half::bf16::MAX.to_f64(),
            _ => self.int_range().1 as f64,
        }
    }

    /// Smallest and largest integer the type holds (bool: 0 and 1; floats: the i64 range).
    pub const fn int_range(self) -> (i64, i64) {
        match self {
            DType::Bool => (0, 1),
            DType::U8 => (0, u8::MAX as i64),
            DType::I8 => (i8::MIN as i64, i8::MAX as i64),
            DType::I16 => (i16::MIN as i64, i16::MAX as i64),
            DType::I32 => (i32::MIN as i64, i32::MAX as i64),
            _ => (i64::MIN, i64::MAX),
        }
    }

    /// Rounds `x` to this floating-point type, to nearest, ties to even. Integers: unchanged.
    pub fn round(self, x: f64) -> f64 {
        match self {
            DType::F32 => x as f32 as f64,
            DType::F16 => half::f16::from_f32(round_to_odd(x)).to_f64(),
            DType::BF16 => half::bf16::from_f32(round_to_odd(x)).to_f64(),
            _ => x,
        }
    }

    /// Wraps `x` to this integer type as a C cast does (two's complement; bool: `x != 0`).
    pub const fn wrap(self, x: i64) -> i64 {
        match self {
            DType::Bool => (x != 0) as i64,
            DType::U8 => x as u8 as i64,
            DType::I8 => x as i8 as i64,
            DType::I16 => x as i16 as i64,
            DType::I32 => x as i32 as i64,
            _ => x,
        }
    }

    /// PyTorch's `promote_types`.
    pub fn promote(self, other: DType) -> DType {
        use DType::*;
        if self == other {
            return self;
        }
        match (self.class(), other.class()) {
            (Class::Float, Class::Float) => match (self, other) {
                (F16, BF16) | (BF16, F16) => F32,
                _ => self.max(other),
            },
            (Class::Float, _) => self,
            (_, Class::Float) => other,
            (Class::Int, Class::Int) => match (self, other) {
                // u8 with a signed type needs the next wider signed type.
                (U8, I8) | (I8, U8) => I16,
                _ => self.max(other),
            },
            (Class::Bool, _) => other,
            (_, Class::Bool) => self,
        }
    }
}

/// The f32 next to `x` towards zero, its last bit set if inexact. Rounding that to a type of at most 22
/// significant bits gives what rounding `x` itself would (Boldo and Melquiond 2008). The own conversions of
/// `half` from f64 lose the low bits and so misjudge ties.
pub fn round_to_odd(x: f64) -> f32 {
    let y = x as f32;
    if y as f64 == x || x.is_nan() {
        return y;
    }
    // Bits of a float's magnitude count in order, so one less is the neighbour towards zero.
    let towards_zero = y.to_bits() - ((y as f64).abs() > x.abs()) as u32;
    f32::from_bits(towards_zero | 1)
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = ();
    fn from_str(s: &str) -> Result<Self, ()> {
        DType::ALL.into_iter().find(|d| d.name() == s).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_follows_pytorch() {
        assert_eq!(DType::F16.promote(DType::BF16), DType::F32);
        assert_eq!(DType::U8.promote(DType::I8), DType::I16);
        assert_eq!(DType::I64.promote(DType::F16), DType::F16);
        assert_eq!(DType::Bool.promote(DType::U8), DType::U8);
        for a in DType::ALL {
            for b in DType::ALL {
                assert_eq!(a.promote(b), b.promote(a));
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        assert_eq!(DType::F16.round(2049.0), 2048.0);
        assert_eq!(DType::F16.round(2051.0), 2052.0);
        assert_eq!(DType::F16.round(70000.0), f64::INFINITY);
        assert_eq!(DType::BF16.round(1.0 + 1.0 / 256.0), 1.0);
        // Just above and below a tie, by less than f32 sees.
        let (tie16, tieb, tiny) = (1.0 + f64::exp2(-11.0), 1.0 + f64::exp2(-8.0), f64::exp2(-40.0));
        assert_eq!(DType::F16.round(tie16 + tiny), 1.0 + f64::exp2(-10.0));
        assert_eq!(DType::F16.round(-(tie16 - tiny)), -1.0);
        assert_eq!(DType::BF16.round(tieb + tiny), 1.0 + f64::exp2(-7.0));
        assert_eq!(DType::BF16.round(tieb - tiny), 1.0);
        assert_eq!(DType::F16.round(1e300), f64::INFINITY);
        assert_eq!(DType::F16.round(f64::exp2(-25.0) * 1.0000001), f64::exp2(-24.0));
        assert_eq!(DType::F16.round(-1e-300).to_bits(), (-0.0f64).to_bits());
    }
}
