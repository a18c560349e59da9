//! Rounding to bf16, nearest, ties to even, in as few instructions as the facts known of a value allow
//! ([`Known`]). Values that are bf16 already are not rounded; NaNs are handled only where one could become a
//! number.

use super::assembler::op;
use super::ir::{Ins, Known, Nans, Source, Value};
use super::select::Builder;
use headwater_core::DType;
use headwater_core::expr::elementary::Ops;

/// The predicate of a comparison that a NaN fulfils, and the digit of the opcode that shifts left.
const UNORDERED: u8 = 3;
const LEFT: u8 = 6;

impl Builder<'_> {
    /// The bits of the nearest bf16 in the upper half of each lane. Worked out once for each value: blends of
    /// blends may use one many times.
    pub(super) fn bf16(&mut self, x: Value) -> Value {
        if let Some(&done) = self.rounded.get(&x) {
            return done;
        }
        let y = self.nearest(x);
        self.rounded.insert(x, y);
        y
    }

    fn nearest(&mut self, x: Value) -> Value {
        if self.is_bf16(x) {
            return x;
        }
        let x = if self.nans(x) == Nans::Any { self.quiet(x) } else { x };
        if let Ins::Blend { mask, a, b } = self.body.code[x] {
            // The upper half of a NaN that is handled separately anyway is kept.
            let told = self.body.code[mask] == Ins::Two(op::CMP, b, b, Some(UNORDERED));
            if self.is_bf16(a) && told {
                return x;
            }
            if self.is_bf16(a) || self.is_bf16(b) {
                let (a, b) = (self.bf16(a), self.bf16(b));
                return self.push(Ins::Blend { mask, a, b });
            }
        }
        let high = self.push(Ins::Shift(2, x, 16));
        let one = self.bits(1);
        let odd = self.two(op::AND, high, one);
        let half = self.bits(0x7FFF);
        let mut add = self.two(op::ADD_INT, odd, half);
        if self.nans(x) != Nans::Short {
            // Nothing is added to a NaN: the sum could run over.
            let number = self.compare(7, x, x);
            add = self.two(op::AND, add, number);
        }
        self.two(op::ADD_INT, x, add)
    }

    /// The same numbers, NaNs quiet. Worked out once for each value.
    fn quiet(&mut self, x: Value) -> Value {
        if let Some(&done) = self.quieted.get(&x) {
            return done;
        }
        let y = match self.body.code[x] {
            Ins::Blend { mask, a, b } => {
                let [a, b] = [a, b].map(|v| if self.nans(v) == Nans::Any { self.quiet(v) } else { v });
                self.push(Ins::Blend { mask, a, b })
            }
            _ => {
                let one = self.num(1.0);
                self.mul(x, one)
            }
        };
        self.quieted.insert(x, y);
        y
    }

    /// True if the lower half of each lane is 0.
    pub(super) fn is_bf16(&self, x: Value) -> bool {
        self.known[x].bf16
    }

    /// Which NaNs a number may be.
    fn nans(&self, x: Value) -> Nans {
        self.known[x].nans
    }

    /// Knowledge of the value of an instruction.
    pub(super) fn know(&self, ins: Ins) -> Known {
        Known { bf16: self.has_bf16(ins), nans: self.has_nans(ins) }
    }

    fn has_bf16(&self, ins: Ins) -> bool {
        match ins {
            Ins::Load { dtype, .. } => dtype == DType::BF16,
            Ins::Num(bits) => bits as u16 == 0,
            Ins::Shift(LEFT, _, n) => n >= 16,
            Ins::Two(op::AND, a, b, _) => self.is_bf16(a) || self.is_bf16(b),
            Ins::Two(op::OR | op::XOR | op::MIN | op::MAX | op::ADD_INT | op::SUB_INT, a, b, _)
            | Ins::Blend { a, b, .. } => self.is_bf16(a) && self.is_bf16(b),
            _ => false,
        }
    }

    fn has_nans(&self, ins: Ins) -> Nans {
        let any = |list: &[Value]| list.iter().map(|&v| self.nans(v)).max().unwrap_or(Nans::Short);
        let made = |list: &[Value]| any(list).min(Nans::Quiet);
        match ins {
            _ if self.has_bf16(ins) => Nans::Short,
            Ins::Load { dtype: DType::F16, .. } => Nans::Quiet,
            Ins::Load { stream, .. } => match self.body.streams[stream].source {
                Source::Kept(r) => self.kept[r],
                _ => Nans::Any,
            },
            // Bits of a power of 2 (`math`): they scale what is a NaN itself where they are none of a number.
            Ins::Two(op::SUB_INT, _, b, _) if matches!(self.body.code[b], Ins::Two(op::PICK, ..)) => {
                Nans::Short
            }
            // Numbers of the row have but one NaN.
            Ins::Slot(_) => Nans::Short,
            Ins::Num(bits) if !f32::from_bits(bits).is_nan() => Nans::Short,
            Ins::Two(op::ADD | op::SUB | op::MUL | op::DIV, a, b, _) => made(&[a, b]),
            Ins::Two(op::MIN | op::MAX, a, b, _) | Ins::Blend { a, b, .. } => any(&[a, b]),
            // A magnitude, and a number of the other sign.
            Ins::Two(op::AND, a, b, _) if self.body.code[b] == Ins::Num(0x7FFF_FFFF) => self.nans(a),
            Ins::Two(op::XOR, a, b, _) if self.body.code[b] == Ins::Num(0x8000_0000) => self.nans(a),
            Ins::Fma(a, b, c) => made(&[a, b, c]),
            Ins::One(op::SQRT | op::ROUND, a, _) | Ins::RoundHalf(a) => made(&[a]),
            Ins::One(op::FROM_INT, ..) => Nans::Short,
            _ => Nans::Any,
        }
    }
}
