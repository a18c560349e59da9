//! Instructions of row programs as vector instructions.

use super::body::Body;
use super::register::{Done, Register, WORD, compare, float, int, refuse};
use super::route::Extent;
use super::value::{Held, Ty};
use crate::kernel::{Binary as V, Buf, Compare, Elem, Round, Scaled, Unary as U};
use headwater_core::expr::{Binary, Unary};
use headwater_core::reference::scalar;
use headwater_core::row::{Instr, Reduce};

/// The comparison with its operands exchanged.
const fn mirrored(op: Binary) -> Binary {
    match op {
        Binary::Lt => Binary::Gt,
        Binary::Le => Binary::Ge,
        Binary::Gt => Binary::Lt,
        Binary::Ge => Binary::Le,
        other => other,
    }
}

impl Body<'_> {
    /// Computes what an instruction defines.
    pub(super) fn value(&mut self, at: usize) -> Done {
        match &self.p.body[at] {
            Instr::Load(o) => self.arrived(*o),
            Instr::Iota(_) => self.counter(at),
            Instr::Float(x) => Ok(Register::Float(*x)),
            Instr::Int(x) => Ok(Register::Int(*x)),
            Instr::Bool(x) => Ok(Register::Bool(*x)),
            Instr::Unary(op, a) => {
                let a = self.get(*a)?;
                self.unary(*op, a)
            }
            Instr::Binary(op, a, b) => {
                let (a, b) = (self.get(*a)?, self.get(*b)?);
                self.binary(*op, a, b)
            }
            Instr::Select(c, a, b) => {
                let (c, a, b) = (self.get(*c)?, self.get(*a)?, self.get(*b)?);
                self.select(c, a, b)
            }
            Instr::Cast(dtype, a) => {
                let a = self.get(*a)?;
                self.cast(*dtype, a)
            }
            Instr::Reduce(op, a) => {
                let a = self.get(*a)?;
                self.reduce(*op, a)
            }
            Instr::Store(..) | Instr::Columns(..) => refuse("a result that is read"),
        }
    }

    /// The same value once more.
    pub(super) fn alias(&mut self, x: Register) -> Register {
        if let Register::Held(x, _) = x {
            self.u.w.retain(x.buf);
        }
        x
    }

    /// A value in UB: constants in 64 lanes, kept for the rest of the kernel where they are floats.
    pub(super) fn held(&mut self, x: Register) -> Done<Held> {
        Ok(match x {
            Register::Held(x, _) => {
                self.u.w.retain(x.buf);
                x
            }
            Register::Float(x) => {
                let held = self.u.constant(x as f32);
                self.u.w.retain(held.buf);
                held
            }
            Register::Int(x) if !(WORD.0..=WORD.1).contains(&x) => return refuse("constants beyond 32 bits"),
            Register::Int(x) => {
                let dst = self.u.take(Extent::One, Ty::I32);
                self.u.fill(dst, x);
                dst
            }
            Register::Bool(x) => {
                let number = self.u.constant(x as u8 as f32);
                self.u.compared_with(number, 0.0f32, Compare::Ne)
            }
        })
    }

    fn unary(&mut self, op: Unary, a: Register) -> Done {
        let u = &mut self.u;
        Ok(match a {
            Register::Float(x) => match op {
                Unary::IsNan | Unary::IsInf => Register::Bool(scalar::unary_test(op, x)),
                Unary::Bits => Register::Int(scalar::bits(x)),
                _ => Register::Float(scalar::unary_f(op, x)),
            },
            Register::Int(x) if op == Unary::FromBits => Register::Float(scalar::from_bits(x)),
            Register::Int(x) => Register::Int(scalar::unary_i(op, x)),
            Register::Bool(x) => Register::Bool(!x),
            Register::Held(x, _) if x.ty == Ty::Bits => float(u.not(x)),
            Register::Held(x, range) if x.ty == Ty::I32 => return self.unary_int(op, x, range),
            Register::Held(x, _) => float(match op {
                Unary::Neg => u.scaled_over(Scaled::Muls, x, -1.0f32),
                Unary::Abs => u.unary_over(U::Abs, x),
                Unary::Sign => u.sign(x),
                Unary::Exp | Unary::ExpNonpos => u.unary_over(U::Exp, x),
                Unary::Expm1 => u.expm1(x),
                Unary::Log => u.unary_over(U::Ln, x),
                Unary::Log1p => u.log1p(x),
                Unary::Sqrt => u.unary_over(U::Sqrt, x),
                Unary::Rsqrt => u.rsqrt(x),
                Unary::Recip => u.recip(x),
                Unary::Sin => u.sine(x, false),
                Unary::Cos => u.sine(x, true),
                Unary::Tan => {
                    let (sine, cosine) = (u.sine(x, false), u.sine(x, true));
                    u.binary_to(V::Div, sine, sine, cosine);
                    u.give(cosine);
                    sine
                }
                Unary::Tanh => u.tanh(x),
                Unary::Erf => u.erf(x),
                Unary::Ndtr => u.ndtr(x),
                Unary::Floor => u.round(x, Round::Floor),
                Unary::Ceil => u.round(x, Round::Ceil),
                Unary::Trunc => u.round(x, Round::Trunc),
                Unary::Round => u.round(x, Round::Rint),
                Unary::Sigmoid => u.sigmoid(x),
                Unary::IsNan => {
                    let same = u.compared(x, x, Compare::Eq);
                    let not = u.not(same);
                    u.give(same);
                    not
                }
                Unary::IsInf => {
                    let a = u.unary(U::Abs, x);
                    let is = u.compared_with(a, f32::INFINITY, Compare::Eq);
                    u.give(a);
                    is
                }
                Unary::Bits => {
                    u.w.retain(x.buf);
                    let bits = Held { buf: Buf { elem: Elem::I32, ..x.buf }, ty: Ty::I32, ..x };
                    return Ok(Register::Held(bits, Some(WORD)));
                }
                Unary::Atan | Unary::Not | Unary::FromBits => return refuse(format!("{op:?} of floats")),
            }),
        })
    }

    fn binary(&mut self, op: Binary, a: Register, b: Register) -> Done {
        match (a, b) {
            (Register::Float(x), Register::Float(y)) => Ok(match compare(op) {
                Some(_) => Register::Bool(scalar::compare(op, &x, &y)),
                None => Register::Float(scalar::binary_f(op, x, y)),
            }),
            (Register::Int(x), Register::Int(y)) => Ok(match compare(op) {
                Some(_) => Register::Bool(scalar::compare(op, &x, &y)),
                None => Register::Int(scalar::binary_i(op, x, y)),
            }),
            (Register::Bool(x), Register::Bool(y)) => {
                Ok(Register::Bool(scalar::binary_i(op, x.into(), y.into()) != 0))
            }
            (Register::Held(x, _), Register::Float(y)) if x.ty == Ty::F32 => self.with_float(op, x, y),
            (Register::Float(x), Register::Held(y, _)) if y.ty == Ty::F32 => self.float_with(op, x, y),
            (Register::Held(x, _), Register::Held(y, _)) if x.ty == Ty::F32 && y.ty == Ty::F32 => {
                self.floats(op, x, y)
            }
            (Register::Held(x, _), _) | (_, Register::Held(x, _)) if x.ty == Ty::I32 => self.ints(op, a, b),
            _ => {
                let (x, y) = (self.held(a)?, self.held(b)?);
                let result = self.bits(op, x, y);
                self.u.give(x);
                self.u.give(y);
                result
            }
        }
    }

    fn floats(&mut self, op: Binary, x: Held, y: Held) -> Done {
        let u = &mut self.u;
        Ok(float(match op {
            Binary::Add => u.binary_over(V::Add, x, y),
            Binary::Sub => u.binary_over(V::Sub, x, y),
            Binary::Mul => u.binary_over(V::Mul, x, y),
            Binary::Div => u.binary_over(V::Div, x, y),
            Binary::Min => u.binary_over(V::Min, x, y),
            Binary::Max => u.binary_over(V::Max, x, y),
            _ => match compare(op) {
                Some(cmp) => u.compared(x, y, cmp),
                None => return refuse(format!("{op:?} of floats")),
            },
        }))
    }

    fn with_float(&mut self, op: Binary, x: Held, y: f64) -> Done {
        let u = &mut self.u;
        let scalar = y as f32;
        Ok(float(match op {
            Binary::Add => u.scaled_over(Scaled::Adds, x, scalar),
            Binary::Sub => u.scaled_over(Scaled::Adds, x, -scalar),
            Binary::Mul => u.scaled_over(Scaled::Muls, x, scalar),
            Binary::Min => u.scaled_over(Scaled::Mins, x, scalar),
            Binary::Max => u.scaled_over(Scaled::Maxs, x, scalar),
            Binary::Pow => return self.power(x, y),
            _ => match compare(op) {
                Some(cmp) => u.compared_with(x, scalar, cmp),
                None => {
                    let y = u.constant(scalar);
                    return self.floats(op, x, y);
                }
            },
        }))
    }

    fn float_with(&mut self, op: Binary, x: f64, y: Held) -> Done {
        match op {
            Binary::Add | Binary::Mul | Binary::Min | Binary::Max => self.with_float(op, y, x),
            Binary::Sub => {
                let minus = self.u.scaled_over(Scaled::Muls, y, -1.0f32);
                self.u.scaled_to(Scaled::Adds, minus, minus, x as f32);
                Ok(float(minus))
            }
            _ if compare(op).is_some() => self.with_float(mirrored(op), y, x),
            _ => {
                let x = self.u.constant(x as f32);
                self.floats(op, x, y)
            }
        }
    }

    /// Powers with a small whole exponent or half of one, by products and a root.
    fn power(&mut self, x: Held, y: f64) -> Done {
        let twice = y * 2.0;
        if twice.fract() != 0.0 || twice.abs() > 16.0 {
            return refuse("powers but those of small exponents");
        }
        let u = &mut self.u;
        let whole = y.abs().trunc() as u32;
        let p = u.filled(x.extent, 1.0);
        for _ in 0..whole {
            u.binary_to(V::Mul, p, p, x);
        }
        if y.fract() != 0.0 {
            let root = u.unary(U::Sqrt, x);
            u.binary_to(V::Mul, p, p, root);
            u.give(root);
        }
        if y < 0.0 {
            let one = u.constant(1.0);
            u.binary_to(V::Div, p, one, p);
        }
        Ok(float(p))
    }

    fn bits(&mut self, op: Binary, x: Held, y: Held) -> Done {
        let u = &mut self.u;
        let differ = |u: &mut super::value::VectorUnit| {
            let (any, both) = (u.logic(V::Or, x, y), u.logic(V::And, x, y));
            let not = u.not(both);
            let differ = u.logic(V::And, any, not);
            [any, both, not].into_iter().for_each(|t| u.give(t));
            differ
        };
        Ok(float(match op {
            Binary::And | Binary::Mul | Binary::Min => u.logic(V::And, x, y),
            Binary::Or | Binary::Max => u.logic(V::Or, x, y),
            Binary::Xor | Binary::Ne => differ(u),
            Binary::Eq => {
                let differ = differ(u);
                let same = u.not(differ);
                u.give(differ);
                same
            }
            _ => return refuse(format!("{op:?} of truth values")),
        }))
    }

    fn select(&mut self, c: Register, a: Register, b: Register) -> Done {
        let mask = match c {
            Register::Bool(true) => return Ok(self.alias(a)),
            Register::Bool(false) => return Ok(self.alias(b)),
            Register::Held(mask, _) => mask,
            _ => return refuse("a choice by a number"),
        };
        let u = &mut self.u;
        match (a, b) {
            (Register::Held(a, _), Register::Float(b)) => Ok(float(u.selected_or(mask, a, b as f32))),
            (Register::Float(a), Register::Held(b, _)) => {
                let not = u.not(mask);
                let x = u.selected_or(not, b, a as f32);
                u.give(not);
                Ok(float(x))
            }
            (Register::Float(a), Register::Float(b)) => {
                let x = u.filled(mask.extent, a as f32);
                u.select_or_to(x, mask, x, b as f32);
                Ok(float(x))
            }
            _ => {
                let range = |x: &Register| match *x {
                    Register::Int(x) => Some((x, x)),
                    Register::Held(_, range) => range,
                    _ => None,
                };
                let union = range(&a).zip(range(&b)).map(|((a, b), (c, d))| (a.min(c), b.max(d)));
                let (x, y) = (self.held(a)?, self.held(b)?);
                let u = &mut self.u;
                let result = if x.ty == Ty::Bits {
                    let not = u.not(mask);
                    let (first, second) = (u.logic(V::And, mask, x), u.logic(V::And, not, y));
                    let result = u.logic(V::Or, first, second);
                    [not, first, second].into_iter().for_each(|t| u.give(t));
                    result
                } else {
                    u.selected(mask, x, y)
                };
                u.give(x);
                u.give(y);
                Ok(Register::Held(result, union))
            }
        }
    }

    fn reduce(&mut self, op: Reduce, a: Register) -> Done {
        let cols = headwater_core::axes::count(&self.space.cols);
        if cols == 0 {
            return refuse("a reduction of nothing");
        }
        if cols == 1 {
            return Ok(self.alias(a));
        }
        if op == Reduce::Prod {
            return refuse("a product over rows");
        }
        let x = self.held(a)?;
        let (number, back) = match x.ty {
            Ty::F32 => (x, None),
            Ty::Bits if op != Reduce::Sum => {
                let number = self.u.number(x);
                self.u.give(x);
                (number, Some((0, 1)))
            }
            Ty::I32 => {
                let range = if let Register::Held(_, range) = a { range } else { None };
                let times = if op == Reduce::Sum { cols as i64 } else { 1 };
                let exact = |x: i64| x.checked_mul(times).is_some_and(|x| x.abs() < 1 << 24);
                let Some((low, high)) = range.filter(|r| exact(r.0) && exact(r.1)) else {
                    return refuse("a reduction of large integers");
                };
                let number = self.u.cast(x, Ty::F32, Round::None);
                self.u.give(x);
                (number, Some((low * times, high * times)))
            }
            Ty::Bits => return refuse("a sum of truth values"),
        };
        let full = self.u.widened(number, Extent::Full);
        self.u.give(number);
        let result = self.fold(op, full);
        self.u.give(full);
        let Some(result) = result else { return refuse("this reduction") };
        match (back, x.ty) {
            (None, _) => Ok(float(result)),
            (Some(_), Ty::Bits) => {
                let bits = self.u.compared_with(result, 0.0f32, Compare::Ne);
                self.u.give(result);
                Ok(float(bits))
            }
            (Some((low, high)), _) => {
                let whole = self.u.cast(result, Ty::I32, Round::Rint);
                self.u.give(result);
                Ok(int(whole, low.into(), high.into()))
            }
        }
    }

    /// Reduces a full value of which the tile has whole rows.
    fn fold(&mut self, op: Reduce, full: Held) -> Option<Held> {
        if self.u.tile.grid {
            return self.u.reduce_rows(op, full);
        }
        let acc = self.u.reduction(op)?;
        let count = self.count.clone();
        self.u.reduce_tile(op, full, &count, acc);
        Some(self.u.first_lane(acc))
    }
}
