//! The scalar functions of expressions, on f64, i64 and bool. This is their definition.

use crate::expr::{Binary, Unary};

/// A float function of one. `IsNan` and `IsInf` give 1 or 0 (see [`unary_test`]); `Bits` and `FromBits` are
/// [`bits`] and [`from_bits`].
pub fn unary_f(op: Unary, x: f64) -> f64 {
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        // PyTorch: the sign of 0, -0 and NaN is 0.
        Unary::Sign => (x > 0.0) as i64 as f64 - (x < 0.0) as i64 as f64,
        Unary::Exp | Unary::ExpNonpos => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Recip => 1.0 / x,
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Tanh => x.tanh(),
        Unary::Atan => x.atan(),
        Unary::Erf => libm::erf(x),
        Unary::Ndtr => 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Trunc => x.trunc(),
        Unary::Round => x.round_ties_even(),
        Unary::Sigmoid => {
            // The branch keeps exp from overflowing.
            if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
        }
        Unary::Not => (x == 0.0) as i64 as f64,
        Unary::IsNan => x.is_nan() as i64 as f64,
        Unary::IsInf => x.is_infinite() as i64 as f64,
        Unary::Bits | Unary::FromBits => x,
    }
}

/// The bits of a number as an f32, as a signed number.
pub fn bits(x: f64) -> i64 {
    (x as f32).to_bits() as i32 as i64
}

/// The f32 of the low 32 bits.
pub fn from_bits(x: i64) -> f64 {
    f32::from_bits(x as u32) as f64
}

/// A test of a float.
pub fn unary_test(op: Unary, x: f64) -> bool {
    unary_f(op, x) != 0.0
}

/// An integer function of one; functions of floats alone give 0 (the type rules never ask).
pub fn unary_i(op: Unary, x: i64) -> i64 {
    match op {
        Unary::Neg => x.wrapping_neg(),
        Unary::Abs => x.wrapping_abs(),
        Unary::Sign => x.signum(),
        Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round => x,
        Unary::Not => !x,
        _ => 0,
    }
}

/// A float function of two that gives a float.
pub fn binary_f(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::FloorDiv => floor_div(a, b),
        Binary::Rem => {
            let r = a % b;
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        }
        Binary::Fmod => a % b,
        Binary::Pow => a.powf(b),
        Binary::Atan2 => a.atan2(b),
        Binary::Min => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else {
                a.min(b)
            }
        }
        Binary::Max => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else {
                a.max(b)
            }
        }
        _ => compare(op, &a, &b) as i64 as f64,
    }
}

/// Python's `//`: what is left of `a` when the remainder is taken off, so that 1 // 0.1 is 9.
fn floor_div(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let rest = a % b;
    let quotient = (a - rest) / b - (rest != 0.0 && (b < 0.0) != (rest < 0.0)) as i64 as f64;
    match quotient.floor() {
        _ if quotient == 0.0 => 0.0f64.copysign(a / b),
        down if quotient - down > 0.5 => down + 1.0,
        down => down,
    }
}

/// An integer function of two that gives an integer.
pub fn binary_i(op: Binary, a: i64, b: i64) -> i64 {
    match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div => a.checked_div(b).unwrap_or(0),
        Binary::FloorDiv => {
            let q = a.checked_div(b).unwrap_or(0);
            if b != 0 && a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) { q - 1 } else { q }
        }
        Binary::Rem => {
            let r = a.checked_rem(b).unwrap_or(0);
            if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
        }
        Binary::Fmod => a.checked_rem(b).unwrap_or(0),
        Binary::Pow => match u32::try_from(b) {
            Ok(b) => a.wrapping_pow(b),
            // A negative power of an integer is 0 except for 1 and -1.
            Err(_) => match a {
                1 => 1,
                -1 => 1 - 2 * (b & 1),
                _ => 0,
            },
        },
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Atan2 => 0,
        _ => compare(op, &a, &b) as i64,
    }
}

/// A comparison of two numbers; false for operations that are none.
#[inline(always)]
pub fn compare<T: PartialOrd>(op: Binary, a: &T, b: &T) -> bool {
    match op {
        Binary::Eq => a == b,
        Binary::Ne => a != b,
        Binary::Lt => a < b,
        Binary::Le => a <= b,
        Binary::Gt => a > b,
        Binary::Ge => a >= b,
        _ => false,
    }
}
