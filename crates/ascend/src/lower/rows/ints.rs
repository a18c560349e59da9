//! Integers in 32 bits, and conversions.
//!
//! The chips compute integers in 32 bits, and so do the programs that come here
//! (`RowProgram::computes_in_i64`): what leaves 32 bits, such as sums and products, is cut to its lower word
//! before anything else is made of it. Each value carries the range of its numbers, from the types of
//! operands, the sizes of counters and constants: sums and products that may leave 32 bits are marked
//! (`add_wrapping`); divisions and reductions go through f32 and are exact for small numbers alone.

use super::body::Body;
use super::register::{Done, Register, WORD, compare, float, int, limits, refuse};
use super::value::{Held, Ty, VectorUnit};
use crate::chip::Arch;
use crate::kernel::{
    Binary as V, BinaryOp, Buf, Compare, Elem, Over, Round, Scaled, Unary as U, UnaryOp, Vector,
};
use headwater_core::DType;
use headwater_core::expr::{Binary, Unary};

/// Numbers below it are exact in f32 with a half added.
const SMALL: i128 = 1 << 21;

/// Largest divisor.
const DIVISOR: i128 = 1 << 19;

/// The product by -1 of integers whose largest magnitude is `most`.
fn times(most: i128) -> Scaled {
    if most > WORD.1.into() { Scaled::MulsWrapping } else { Scaled::Muls }
}

impl Body<'_> {
    pub(super) fn unary_int(&mut self, op: Unary, x: Held, range: Option<(i64, i64)>) -> Done {
        let u = &mut self.u;
        if op == Unary::FromBits {
            u.w.retain(x.buf);
            return Ok(float(Held { buf: Buf { elem: Elem::F32, ..x.buf }, ty: Ty::F32, ..x }));
        }
        let Some((low, high)) = range else { return refuse("i64 arithmetic") };
        let (low, high) = (i128::from(low), i128::from(high));
        Ok(match op {
            Unary::Neg => int(u.scaled(times(-low), x, -1), -high, -low),
            Unary::Abs => {
                let minus = u.scaled(times(-low), x, -1);
                u.binary_to(V::Max, minus, minus, x);
                int(minus, 0, high.max(-low))
            }
            Unary::Not => {
                let dst = u.take(x.extent, Ty::I32);
                let view = |x: Held| Vector::from(Buf { elem: Elem::U16, ..x.buf }.at(0));
                let over = Over::count(u.len(x.extent) * 2);
                u.w.vector(UnaryOp { op: U::Not, dst: view(dst), src: view(x), over });
                int(dst, -high - 1, -low - 1)
            }
            Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round => self.alias(Register::Held(x, range)),
            _ => return refuse(format!("{op:?} of integers")),
        })
    }

    pub(super) fn ints(&mut self, op: Binary, a: Register, b: Register) -> Done {
        let range = |x: &Register| match *x {
            Register::Int(x) => Some((x, x)),
            Register::Held(_, range) => range,
            _ => None,
        };
        let (Some((al, ah)), Some((bl, bh))) = (range(&a), range(&b)) else {
            return refuse("i64 arithmetic");
        };
        if let Some(cmp) = compare(op) {
            let (x, y) = (self.held(a)?, self.held(b)?);
            let bits = self.compare_ints(cmp, x, y);
            self.u.give(x);
            self.u.give(y);
            return Ok(float(bits));
        }
        let [al, ah, bl, bh] = [al, ah, bl, bh].map(i128::from);
        let products = [al * bl, al * bh, ah * bl, ah * bh];
        let divides = bl == bh && bl != 0 && bl.abs() <= DIVISOR;
        let fraction = |f: fn(i128, i128) -> i128| {
            let (x, y) = (f(al, bl), f(ah, bl));
            (x.min(y), x.max(y))
        };
        let (low, high) = match op {
            Binary::Add => (al + bl, ah + bh),
            Binary::Sub => (al - bh, ah - bl),
            Binary::Mul => (*products.iter().min().unwrap_or(&0), *products.iter().max().unwrap_or(&0)),
            Binary::Min => (al.min(bl), ah.min(bh)),
            Binary::Max => (al.max(bl), ah.max(bh)),
            Binary::FloorDiv if divides => fraction(|x, y| x.div_euclid(y) - i128::from(y < 0 && x % y != 0)),
            Binary::Div if divides => fraction(|x, y| x / y),
            Binary::Rem if divides => ((bl + 1).min(0), (bl - 1).max(0)),
            Binary::Fmod if divides => (1 - bl.abs(), bl.abs() - 1),
            Binary::And | Binary::Or | Binary::Xor => (WORD.0.into(), WORD.1.into()),
            _ => return refuse(format!("{op:?} of integers")),
        };
        let leaves = low < WORD.0.into() || high > WORD.1.into();
        let (x, y) = (self.held(a)?, self.held(b)?);
        let result = match op {
            Binary::Add => self.u.binary(if leaves { V::AddWrapping } else { V::Add }, x, y),
            Binary::Sub => self.u.binary(if leaves { V::SubWrapping } else { V::Sub }, x, y),
            Binary::Mul => self.u.binary(if leaves { V::MulWrapping } else { V::Mul }, x, y),
            Binary::Min => self.u.binary(V::Min, x, y),
            Binary::Max => self.u.binary(V::Max, x, y),
            Binary::And => self.bitwise(V::And, x, y),
            Binary::Or => self.bitwise(V::Or, x, y),
            Binary::Xor => {
                // The bits of either without those of both: nothing is borrowed.
                let (any, both) = (self.bitwise(V::Or, x, y), self.bitwise(V::And, x, y));
                self.u.binary_to(V::Sub, any, any, both);
                self.u.give(both);
                any
            }
            _ => self.divided(op, x, bl as i64, al > -SMALL && ah < SMALL),
        };
        self.u.give(x);
        self.u.give(y);
        Ok(int(result, low, high))
    }

    /// A quotient by a constant, rounded down or towards zero, or its remainder.
    fn divided(&mut self, op: Binary, x: Held, by: i64, small: bool) -> Held {
        let (u, size) = (&mut self.u, by.abs());
        // Near the ends of 32 bits the first quotient times the divisor may overflow; the remainder does not.
        let (times, plus) = match small {
            true => (Scaled::Muls, V::Add),
            false => (Scaled::MulsWrapping, V::AddWrapping),
        };
        // ⌊x / size⌋ and the remainder. f32 is off by 3 · 2⁷ / size and 1 at most, which a second quotient
        // corrects.
        let quotient = |u: &mut VectorUnit, x: Held, half: f32| {
            let t = u.cast(x, Ty::F32, Round::None);
            if half > 0.0 {
                u.scaled_to(Scaled::Adds, t, t, half);
            }
            u.scaled_to(Scaled::Muls, t, t, 1.0 / size as f32);
            let q = u.cast(t, Ty::I32, Round::Floor);
            u.give(t);
            let rest = u.scaled(times, q, -size);
            u.binary_to(plus, rest, rest, x);
            (q, rest)
        };
        // (x + ½) / size is at least 1 / 2 size from a whole number; the roundings of f32 are less.
        let (q, mut rest) = quotient(u, x, if small { 0.5 } else { 0.0 });
        if !small {
            let (more, left) = quotient(u, rest, 0.5);
            u.binary_to(V::Add, q, q, more);
            [more, rest].into_iter().for_each(|t| u.give(t));
            rest = left;
        }
        // Quotients that are not integers round up: for a negative divisor, or towards zero where x is
        // negative.
        let down = matches!(op, Binary::FloorDiv | Binary::Rem);
        if !down || by < 0 {
            let up = u.scaled(Scaled::Mins, rest, 1);
            if !down {
                // 1 where x is negative, else 0; 310P has no shifts.
                let sign = u.scaled(Scaled::Maxs, x, -1);
                u.scaled_to(Scaled::Mins, sign, sign, 0);
                u.scaled_to(Scaled::Muls, sign, sign, -1);
                u.binary_to(V::Mul, up, up, sign);
                u.give(sign);
            }
            u.binary_to(V::Add, q, q, up);
            u.scaled_to(Scaled::Muls, up, up, -size);
            u.binary_to(V::Add, rest, rest, up);
            u.give(up);
        }
        let (kept, other) = match op {
            Binary::FloorDiv | Binary::Div => (q, rest),
            _ => (rest, q),
        };
        u.give(other);
        if by < 0 && matches!(op, Binary::FloorDiv | Binary::Div) {
            u.scaled_to(times, kept, kept, -1);
        }
        kept
    }

    fn bitwise(&mut self, op: V, x: Held, y: Held) -> Held {
        let u = &mut self.u;
        let extent = x.extent.join(y.extent);
        let (wide_x, wide_y) = (u.widened(x, extent), u.widened(y, extent));
        let dst = u.take(extent, Ty::I32);
        let view = |x: Held| Vector::from(Buf { elem: Elem::U16, ..x.buf }.at(0));
        let over = Over::count(u.len(extent) * 2);
        u.w.vector(BinaryOp { op, dst: view(dst), src0: view(wide_x), src1: view(wide_y), over });
        u.give(wide_x);
        u.give(wide_y);
        dst
    }

    /// Integers have one comparison, for equality: `a ≥ b` is `max(a, b) = a`.
    fn compare_ints(&mut self, cmp: Compare, x: Held, y: Held) -> Held {
        let u = &mut self.u;
        let (op, of, negated) = match cmp {
            Compare::Eq => return u.compared(x, y, Compare::Eq),
            Compare::Ne => {
                let same = u.compared(x, y, Compare::Eq);
                let not = u.not(same);
                u.give(same);
                return not;
            }
            Compare::Ge => (V::Max, x, false),
            Compare::Le => (V::Min, x, false),
            Compare::Lt => (V::Max, x, true),
            Compare::Gt => (V::Min, x, true),
        };
        let most = u.binary(op, x, y);
        let is = u.compared(most, of, Compare::Eq);
        u.give(most);
        if !negated {
            return is;
        }
        let not = u.not(is);
        u.give(is);
        not
    }

    pub(super) fn cast(&mut self, dtype: DType, a: Register) -> Done {
        if dtype == DType::F64 {
            return refuse("f64");
        }
        if dtype == DType::BF16 && self.u.arch() == Arch::P310 {
            return refuse("bf16");
        }
        let limits = limits(dtype);
        match a {
            Register::Float(x) if dtype.is_float() => Ok(Register::Float(dtype.round(x))),
            Register::Float(x) if dtype == DType::Bool => Ok(Register::Bool(x != 0.0)),
            Register::Float(x) => Ok(Register::Int(x as i64)),
            Register::Int(x) if dtype.is_float() => Ok(Register::Float(dtype.round(x as f64))),
            Register::Int(x) if dtype == DType::Bool => Ok(Register::Bool(x != 0)),
            Register::Int(x) => Ok(Register::Int(dtype.wrap(x))),
            Register::Bool(x) if dtype.is_float() => Ok(Register::Float(x as u8 as f64)),
            Register::Bool(x) if dtype == DType::Bool => Ok(Register::Bool(x)),
            Register::Bool(x) => Ok(Register::Int(x.into())),
            Register::Held(x, _) if x.ty == Ty::Bits => {
                if dtype == DType::Bool {
                    return Ok(self.alias(a));
                }
                let number = self.u.number(x);
                if dtype.is_float() {
                    return Ok(float(number));
                }
                let whole = self.u.cast(number, Ty::I32, Round::Rint);
                self.u.give(number);
                Ok(int(whole, 0, 1))
            }
            Register::Held(x, _) if x.ty == Ty::F32 => match dtype {
                DType::F32 => Ok(self.alias(a)),
                DType::F16 | DType::BF16 => Ok(float(self.rounded(x, dtype))),
                DType::Bool => Ok(float(self.u.compared_with(x, 0.0f32, Compare::Ne))),
                DType::I32 => Ok(Register::Held(self.u.cast(x, Ty::I32, Round::Trunc), Some(WORD))),
                DType::I16 => {
                    let whole = self.u.cast(x, Ty::I32, Round::Trunc);
                    let low = self.low_half(whole);
                    self.u.give(whole);
                    low
                }
                _ => refuse(format!("{dtype} of floats")),
            },
            Register::Held(x, range) => match dtype {
                DType::Bool => {
                    let zero = self.u.compared_with(x, 0, Compare::Eq);
                    let not = self.u.not(zero);
                    self.u.give(zero);
                    Ok(float(not))
                }
                DType::I64 => Ok(self.alias(a)),
                DType::I32 => {
                    self.u.w.retain(x.buf);
                    Ok(Register::Held(x, range.or(Some(WORD))))
                }
                _ if dtype.is_float() => {
                    let number = self.u.cast(x, Ty::F32, Round::None);
                    if dtype == DType::F32 {
                        return Ok(float(number));
                    }
                    let rounded = self.rounded(number, dtype);
                    self.u.give(number);
                    Ok(float(rounded))
                }
                _ if range.is_some_and(|(low, high)| low >= limits.0 && high <= limits.1) => {
                    Ok(self.alias(a))
                }
                DType::I16 => self.low_half(x),
                _ => refuse(format!("{dtype} of wider integers")),
            },
        }
    }

    /// The lower 16 bits of an i32 with their sign extended: `l − 2 s` of these bits `l` and their highest
    /// `s`.
    fn low_half(&mut self, x: Held) -> Done {
        let masked = |body: &mut Self, bits: i64| -> Done<Held> {
            let mask = body.held(Register::Int(bits))?;
            let masked = body.bitwise(V::And, x, mask);
            body.u.give(mask);
            Ok(masked)
        };
        let (low, sign) = (masked(self, 0xFFFF)?, masked(self, 0x8000)?);
        self.u.scaled_to(Scaled::Muls, sign, sign, -2);
        self.u.binary_to(V::Add, low, low, sign);
        self.u.give(sign);
        Ok(Register::Held(low, Some(limits(DType::I16))))
    }

    /// Rounded to a narrower type, in f32.
    fn rounded(&mut self, x: Held, dtype: DType) -> Held {
        let narrow = self.narrowed(x.buf, self.u.len(x.extent), dtype, None);
        let dst = self.u.take(x.extent, Ty::F32);
        self.widen_to(dst.buf, narrow, self.u.len(x.extent));
        self.u.w.release(narrow);
        dst
    }
}
