//! Numbers of symbolic expressions, and what functions make of them: exact in integers and quotients,
//! checked.

use super::Function;
use std::fmt;

/// A number of Python's: exact integers, floats, bools.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// `int`
    Int(i64),
    /// An exact quotient in lowest terms, denominator above 1.
    Ratio(i64, i64),
    /// `float`
    Float(f64),
    /// `bool`
    Bool(bool),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Int(i) => write!(f, "{i}"),
            Number::Ratio(a, b) => write!(f, "{a}/{b}"),
            Number::Float(x) => write!(f, "{x:?}"),
            Number::Bool(b) => write!(f, "{b}"),
        }
    }
}

/// A quotient in lowest terms; `None` if it is none or does not fit.
pub(super) fn ratio(a: i128, b: i128) -> Option<Number> {
    if b == 0 {
        return None;
    }
    let (mut x, mut y) = (a.unsigned_abs(), b.unsigned_abs());
    while y != 0 {
        (x, y) = (y, x % y);
    }
    let (g, sign) = (x.max(1) as i128, if b < 0 { -1 } else { 1 });
    let (a, b) = (i64::try_from(sign * a / g).ok()?, i64::try_from(sign * b / g).ok()?);
    Some(if b == 1 { Number::Int(a) } else { Number::Ratio(a, b) })
}

impl Number {
    /// The integer; a bool counts as 0 or 1.
    pub fn int(self) -> Option<i64> {
        match self {
            Number::Int(i) => Some(i),
            Number::Bool(b) => Some(b as i64),
            _ => None,
        }
    }

    /// The nearest float.
    pub fn float(self) -> f64 {
        match self {
            Number::Int(i) => i as f64,
            Number::Ratio(a, b) => a as f64 / b as f64,
            Number::Float(x) => x,
            Number::Bool(b) => b as i64 as f64,
        }
    }

    /// Numerator and denominator, if exact.
    fn exact(self) -> Option<(i128, i128)> {
        match self {
            Number::Ratio(a, b) => Some((a as i128, b as i128)),
            n => n.int().map(|i| (i as i128, 1)),
        }
    }
}

/// A float that is a whole number within 64 bits.
fn whole(x: f64) -> Option<Number> {
    (x >= i64::MIN as f64 && x < i64::MAX as f64).then_some(Number::Int(x as i64))
}

/// Applies a function; `None` if it has no value.
pub(super) fn apply(f: Function, args: &[Number]) -> Option<Number> {
    use Function::*;
    match (f, args) {
        (Add | Mul | Min | Max, args) => {
            let (first, rest) = args.split_first()?;
            rest.iter().try_fold(*first, |a, &b| binary(f, a, b))
        }
        (And, args) => all_bools(args).map(|b| Number::Bool(b.iter().all(|&b| b))),
        (Or, args) => all_bools(args).map(|b| Number::Bool(b.iter().any(|&b| b))),
        (Not, &[Number::Bool(b)]) => Some(Number::Bool(!b)),
        (If, &[Number::Bool(c), a, b]) => Some(if c { a } else { b }),
        (ModularIndexing, &[x, d, m]) => binary(Mod, binary(FloorDiv, x, d)?, m),
        (_, &[a, b]) => binary(f, a, b),
        (_, &[x]) => unary(f, x),
        _ => None,
    }
}

fn all_bools(args: &[Number]) -> Option<Vec<bool>> {
    args.iter().map(|a| if let Number::Bool(b) = a { Some(*b) } else { None }).collect()
}

fn unary(f: Function, x: Number) -> Option<Number> {
    use Function::*;
    match f {
        Pos | Identity => Some(x),
        Neg => match x {
            Number::Float(v) => Some(Number::Float(-v)),
            _ => binary(Sub, Number::Int(0), x),
        },
        Abs => {
            let negative = binary(Lt, x, Number::Int(0))? == Number::Bool(true);
            if negative { unary(Neg, x) } else { Some(x) }
        }
        ToFloat => Some(Number::Float(x.float())),
        Sqrt => Some(Number::Float(x.float().sqrt())),
        Floor | Ceil | Trunc | ToInt | Round => match x.exact() {
            Some((a, b)) => {
                let floor = a.div_euclid(b);
                let up = match f {
                    Floor => false,
                    Ceil => a.rem_euclid(b) != 0,
                    Trunc | ToInt => a < 0 && a.rem_euclid(b) != 0,
                    // To the even one of two equally near.
                    _ => 2 * a.rem_euclid(b) > b || (2 * a.rem_euclid(b) == b && floor % 2 != 0),
                };
                i64::try_from(floor + up as i128).ok().map(Number::Int)
            }
            None => whole(match f {
                Floor => x.float().floor(),
                Ceil => x.float().ceil(),
                Round => x.float().round_ties_even(),
                _ => x.float().trunc(),
            }),
        },
        _ => None,
    }
}

fn binary(f: Function, x: Number, y: Number) -> Option<Number> {
    use Function::*;
    if let (Eq, Number::Bool(a), Number::Bool(b)) = (f, x, y) {
        return Some(Number::Bool(a == b));
    }
    let Some(((a, p), (b, q))) = x.exact().zip(y.exact()) else {
        return float_binary(f, x.float(), y.float());
    };
    // Numerators and denominators fit 64 bits, so products fit 127.
    let (left, right) = (a * q, b * p);
    let integral = p == 1 && q == 1;
    Some(match f {
        Add => return ratio(left.checked_add(right)?, p * q),
        Sub => return ratio(left.checked_sub(right)?, p * q),
        Mul => return ratio(a * b, p * q),
        TrueDiv => {
            (b != 0).then_some(())?;
            Number::Float(left as f64 / right as f64)
        }
        // Python's: rounded towards minus infinity.
        FloorDiv | CleanDiv | CeilDiv | Mod if integral && b != 0 => {
            let euclid = a.div_euclid(b);
            let floor = if b < 0 && a.rem_euclid(b) != 0 { euclid - 1 } else { euclid };
            let rest = a - floor * b;
            let result = match f {
                Mod => rest,
                CleanDiv if rest != 0 => return None,
                CeilDiv if rest != 0 => floor + 1,
                _ => floor,
            };
            Number::Int(i64::try_from(result).ok()?)
        }
        Pow if q == 1 => return power(x, i64::try_from(b).ok()?),
        Min => return Some(if left <= right { x } else { y }),
        Max => return Some(if left >= right { x } else { y }),
        LeftShift if integral => {
            let factor = 1i64.checked_shl(u32::try_from(b).ok()?).filter(|f| *f > 0)?;
            return binary(Mul, x, Number::Int(factor));
        }
        RightShift if integral && b >= 0 => Number::Int(i64::try_from(a >> b.min(127)).ok()?),
        BitAnd | BitOr if integral => {
            let bits = if f == BitAnd { a & b } else { a | b };
            match (x, y) {
                (Number::Bool(_), Number::Bool(_)) => Number::Bool(bits != 0),
                _ => Number::Int(i64::try_from(bits).ok()?),
            }
        }
        Eq => Number::Bool(left == right),
        Ne => Number::Bool(left != right),
        Lt => Number::Bool(left < right),
        Le => Number::Bool(left <= right),
        Gt => Number::Bool(left > right),
        Ge => Number::Bool(left >= right),
        _ => return None,
    })
}

fn float_binary(f: Function, a: f64, b: f64) -> Option<Number> {
    use Function::*;
    Some(match f {
        Add => Number::Float(a + b),
        Sub => Number::Float(a - b),
        Mul => Number::Float(a * b),
        TrueDiv if b != 0.0 => Number::Float(a / b),
        FloorDiv if b != 0.0 => Number::Float((a / b).floor()),
        Mod if b != 0.0 => Number::Float(a - (a / b).floor() * b),
        Pow => Number::Float(a.powf(b)),
        Min => Number::Float(if b < a { b } else { a }),
        Max => Number::Float(if b > a { b } else { a }),
        Eq => Number::Bool(a == b),
        Ne => Number::Bool(a != b),
        Lt => Number::Bool(a < b),
        Le => Number::Bool(a <= b),
        Gt => Number::Bool(a > b),
        Ge => Number::Bool(a >= b),
        _ => return None,
    })
}

/// An exact power with an integer exponent.
fn power(x: Number, e: i64) -> Option<Number> {
    let (a, b) = x.exact()?;
    let (a, b) = if e < 0 { (b, a) } else { (a, b) };
    // With a base other than 0 and ±1, an exponent above 63 overflows anyway.
    let e = match (a, b) {
        (-1..=1, 1) => (e.unsigned_abs() % 2 + 2 * (e != 0) as u64) as u32,
        _ => u32::try_from(e.unsigned_abs()).ok().filter(|e| *e < 64)?,
    };
    let fits = |n: i128| i64::try_from(n).ok().map(i128::from);
    let (mut top, mut bottom) = (1i128, 1i128);
    for _ in 0..e {
        (top, bottom) = (fits(top * a)?, fits(bottom * b)?);
    }
    ratio(top, bottom)
}
