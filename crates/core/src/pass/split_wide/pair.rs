//! Double-word arithmetic: a number as an unevaluated sum `hi + lo` of two f32 with `hi = RN(hi + lo)`, as
//! instructions of a row program.
//!
//! Dekker 1971 (Numerische Mathematik 18) and Knuth's TwoSum. Bounds are by Joldes, Muller and Popescu 2017,
//! whose names the functions carry (ACM TOMS 44). Those of roots are by Lefèvre, Louvet, Muller, Picot and
//! Rideau 2023 (ACM TOMS 49). With `u = 2⁻²⁴` the relative errors are at most
//!
//! | operation | bound |
//! |---|---|
//! | sum, difference | 3 u² + 13 u³ |
//! | product | 7 u² |
//! | quotient | 15 u² + 56 u³ |
//! | square root | 4 u² |
//!
//! as long as the error terms are normal numbers. Below, an absolute error of a few times the smallest number
//! the device keeps comes in addition. The range is that of f32.
//!
//! No fused multiply-add is assumed, and none may be made of these instructions. Each result is rounded by a
//! `Cast` to f32, so that an evaluator that computes in a wider type gives the same bits.

use crate::DType;
use crate::expr::{Binary, Unary};
use crate::row::{Instr, Reg, RowBuilder};

/// A number in two registers; `lo` is zero where it is absent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pair {
    pub hi: Reg,
    pub lo: Option<Reg>,
}

impl Pair {
    /// An f32.
    pub fn single(hi: Reg) -> Pair {
        Pair { hi, lo: None }
    }
}

/// Writes arithmetic on pairs into a program.
pub(super) struct Arithmetic<'a>(pub &'a mut RowBuilder);

impl Arithmetic<'_> {
    pub fn float(&mut self, x: f64) -> Reg {
        self.0.push(Instr::Float(x))
    }

    fn rounded(&mut self, instr: Instr) -> Reg {
        let r = self.0.push(instr);
        self.0.push(Instr::Cast(DType::F32, r))
    }

    pub fn add(&mut self, a: Reg, b: Reg) -> Reg {
        self.rounded(Instr::Binary(Binary::Add, a, b))
    }

    pub fn sub(&mut self, a: Reg, b: Reg) -> Reg {
        self.rounded(Instr::Binary(Binary::Sub, a, b))
    }

    pub fn mul(&mut self, a: Reg, b: Reg) -> Reg {
        self.rounded(Instr::Binary(Binary::Mul, a, b))
    }

    fn div(&mut self, a: Reg, b: Reg) -> Reg {
        self.rounded(Instr::Binary(Binary::Div, a, b))
    }

    pub fn binary(&mut self, op: Binary, a: Reg, b: Reg) -> Reg {
        self.0.push(Instr::Binary(op, a, b))
    }

    pub fn unary(&mut self, op: Unary, a: Reg) -> Reg {
        self.0.push(Instr::Unary(op, a))
    }

    pub fn choose(&mut self, condition: Reg, a: Reg, b: Reg) -> Reg {
        self.0.push(Instr::Select(condition, a, b))
    }

    pub fn finite(&mut self, x: Reg) -> Reg {
        let (size, inf) = (self.unary(Unary::Abs, x), self.float(f64::INFINITY));
        self.binary(Binary::Lt, size, inf)
    }

    /// `lo`, or 0 where `test` is infinite or NaN: an error term has no meaning there.
    fn meaningful(&mut self, test: Reg, lo: Reg) -> Reg {
        let (finite, zero) = (self.finite(test), self.float(0.0));
        self.choose(finite, lo, zero)
    }

    pub fn lo(&mut self, x: Pair) -> Reg {
        x.lo.unwrap_or_else(|| self.float(0.0))
    }

    /// `a + b` and its rounding error, exactly: Knuth's TwoSum.
    fn two_sum(&mut self, a: Reg, b: Reg) -> (Reg, Reg) {
        let s = self.add(a, b);
        let b_part = self.sub(s, a);
        let a_part = self.sub(s, b_part);
        let (a_error, b_error) = (self.sub(a, a_part), self.sub(b, b_part));
        let error = self.add(a_error, b_error);
        (s, self.meaningful(s, error))
    }

    /// The same for `|a| ≥ |b|`: Dekker's Fast2Sum.
    fn fast_two_sum(&mut self, a: Reg, b: Reg) -> (Reg, Reg) {
        let s = self.add(a, b);
        let b_part = self.sub(s, a);
        let error = self.sub(b, b_part);
        (s, self.meaningful(s, error))
    }

    /// `x` as the sum of two numbers of 12 bits: Veltkamp's splitting. What it multiplies would overflow for
    /// large numbers; those are scaled by a power of two before and after.
    fn halves(&mut self, x: Reg) -> (Reg, Reg) {
        let (size, large) = (self.unary(Unary::Abs, x), self.float(f64::exp2(96.0)));
        let far = self.binary(Binary::Gt, size, large);
        let scale = |this: &mut Self, by: f64| {
            let (by, one) = (this.float(by), this.float(1.0));
            this.choose(far, by, one)
        };
        let (down, up) = (scale(self, f64::exp2(-24.0)), scale(self, f64::exp2(24.0)));
        let (x, factor) = (self.mul(x, down), self.float(4097.0));
        let c = self.mul(x, factor);
        let rest = self.sub(c, x);
        let hi = self.sub(c, rest);
        let lo = self.sub(x, hi);
        (self.mul(hi, up), self.mul(lo, up))
    }

    /// `a · b` and its rounding error, exactly: Dekker's product.
    fn two_prod(&mut self, a: Reg, b: Reg) -> (Reg, Reg) {
        let p = self.mul(a, b);
        let ((ah, al), (bh, bl)) = (self.halves(a), self.halves(b));
        let hh = self.mul(ah, bh);
        let mut error = self.sub(hh, p);
        for (x, y) in [(ah, bl), (al, bh), (al, bl)] {
            let part = self.mul(x, y);
            error = self.add(error, part);
        }
        (p, self.meaningful(p, error))
    }

    fn normal(&mut self, hi: Reg, lo: Reg) -> Pair {
        let (hi, lo) = self.fast_two_sum(hi, lo);
        Pair { hi, lo: Some(lo) }
    }

    /// AccurateDWPlusDW.
    pub fn sum(&mut self, x: Pair, y: Pair) -> Pair {
        let (s, e) = self.two_sum(x.hi, y.hi);
        let (t, rest) = match (x.lo, y.lo) {
            (None, None) => return Pair { hi: s, lo: Some(e) },
            (Some(lo), None) | (None, Some(lo)) => (lo, None),
            (Some(a), Some(b)) => {
                let (t, rest) = self.two_sum(a, b);
                (t, Some(rest))
            }
        };
        let c = self.add(e, t);
        let (v, w) = self.fast_two_sum(s, c);
        let w = rest.map_or(w, |rest| self.add(rest, w));
        self.normal(v, w)
    }

    pub fn difference(&mut self, x: Pair, y: Pair) -> Pair {
        let minus = self.negative(y);
        self.sum(x, minus)
    }

    pub fn negative(&mut self, x: Pair) -> Pair {
        let mut minus = |x| self.unary(Unary::Neg, x);
        Pair { hi: minus(x.hi), lo: x.lo.map(minus) }
    }

    pub fn magnitude(&mut self, x: Pair) -> Pair {
        let hi = self.unary(Unary::Abs, x.hi);
        let lo = x.lo.map(|lo| {
            let (minus, zero) = (self.unary(Unary::Neg, lo), self.float(0.0));
            let negative = self.binary(Binary::Lt, x.hi, zero);
            self.choose(negative, minus, lo)
        });
        Pair { hi, lo }
    }

    /// DWTimesDW1.
    pub fn product(&mut self, x: Pair, y: Pair) -> Pair {
        let (c, mut e) = self.two_prod(x.hi, y.hi);
        let parts = [x.lo.map(|lo| (lo, y.hi)), y.lo.map(|lo| (x.hi, lo))];
        let mut cross = None;
        for (a, b) in parts.into_iter().flatten() {
            let part = self.mul(a, b);
            cross = Some(cross.map_or(part, |sum| self.add(sum, part)));
        }
        let Some(cross) = cross else { return Pair { hi: c, lo: Some(e) } };
        let cross = self.meaningful(c, cross);
        e = self.add(e, cross);
        self.normal(c, e)
    }

    /// DWDivDW2, with DWTimesFP1 for the product.
    pub fn quotient(&mut self, x: Pair, y: Pair) -> Pair {
        let t = self.div(x.hi, y.hi);
        let (c, e) = self.two_prod(y.hi, t);
        let (r, s) = match y.lo {
            None => (c, e),
            Some(lo) => {
                let part = self.mul(lo, t);
                let (r, s) = self.fast_two_sum(c, part);
                let s = self.add(s, e);
                self.fast_two_sum(r, s)
            }
        };
        let rest = self.sub(x.hi, r);
        let below = match x.lo {
            None => self.unary(Unary::Neg, s),
            Some(lo) => self.sub(lo, s),
        };
        let rest = self.add(rest, below);
        let correction = self.div(rest, y.hi);
        let correction = self.meaningful(correction, correction);
        self.normal(t, correction)
    }

    /// SQRTDWtoDW.
    pub fn root(&mut self, x: Pair) -> Pair {
        let s = self.rounded(Instr::Unary(Unary::Sqrt, x.hi));
        let (square, e) = self.two_prod(s, s);
        // Both differences are exact.
        let rest = self.sub(x.hi, square);
        let mut rest = self.sub(rest, e);
        if let Some(lo) = x.lo {
            rest = self.add(rest, lo);
        }
        let twice = self.add(s, s);
        let correction = self.div(rest, twice);
        let correction = self.meaningful(correction, correction);
        self.normal(s, correction)
    }

    /// A comparison: of the low parts where the high ones are equal.
    pub fn compare(&mut self, op: Binary, x: Pair, y: Pair) -> Reg {
        if x.lo.is_none() && y.lo.is_none() {
            return self.binary(op, x.hi, y.hi);
        }
        let strict = match op {
            Binary::Le => Binary::Lt,
            Binary::Ge => Binary::Gt,
            other => other,
        };
        let (a, b) = (self.lo(x), self.lo(y));
        let (high, low) = (self.binary(strict, x.hi, y.hi), self.binary(op, a, b));
        match op {
            Binary::Eq => self.binary(Binary::And, high, low),
            Binary::Ne => self.binary(Binary::Or, high, low),
            _ => {
                let tie = self.binary(Binary::Eq, x.hi, y.hi);
                let low = self.binary(Binary::And, tie, low);
                self.binary(Binary::Or, high, low)
            }
        }
    }

    pub fn select(&mut self, condition: Reg, x: Pair, y: Pair) -> Pair {
        let hi = self.choose(condition, x.hi, y.hi);
        if x.lo.is_none() && y.lo.is_none() {
            return Pair::single(hi);
        }
        let (a, b) = (self.lo(x), self.lo(y));
        Pair { hi, lo: Some(self.choose(condition, a, b)) }
    }

    /// The larger (`Max`) or smaller (`Min`) of two; NaN if either is.
    pub fn extreme(&mut self, op: Binary, x: Pair, y: Pair) -> Pair {
        let hi = self.binary(op, x.hi, y.hi);
        if x.lo.is_none() && y.lo.is_none() {
            return Pair::single(hi);
        }
        let first = self.compare(if op == Binary::Max { Binary::Ge } else { Binary::Le }, x, y);
        let (a, b) = (self.lo(x), self.lo(y));
        let lo = self.choose(first, a, b);
        Pair { hi, lo: Some(self.meaningful(hi, lo)) }
    }
}
