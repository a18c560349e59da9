//! Emission: the encoding of each instruction, on the registers and memory that its values have.

use super::assembler::*;
use super::avx512;
use super::ir::{Ins, Value};
use super::regalloc::Emitter;
use headwater_core::DType;

impl Emitter<'_> {
    /// Writes instruction `at` of the order.
    pub(super) fn ins(&mut self, at: usize) {
        let (number, part) = self.order[at];
        let (ins, own) = (self.body.code[number], self.value(number, part));
        let again = ins.same() && part > self.parts.start;
        if ins.makes() && (again || self.uses[own].is_empty() || self.stays(own)) {
            return;
        }
        let values = self.args(at);
        let mut locked = Vec::with_capacity(4);
        match ins {
            Ins::Num(_) | Ins::Eight(_) | Ins::Slot(_) | Ins::Column | Ins::Alive => {
                unreachable!("they stay in memory")
            }
            Ins::Acc(_) | Ins::Lanes(..) => unreachable!("they stay where they are"),
            Ins::LoadOne(stream) => {
                let out = self.make(own, &[]);
                let from = self.one(stream);
                self.asm.vector(op::BROADCAST, out, 0, from, None);
            }
            Ins::StoreOne(stream, _) => {
                let from = self.get(values[0], &mut locked);
                let to = self.one(stream);
                self.asm.low(op::STORE_ONE, from, 0, to, None);
            }
            Ins::SetSlot(i, _) => {
                let from = self.get(values[0], &mut locked);
                self.asm.vector(op::STORE, from, 0, self.context(self.frame.slot(i)), None);
            }
            Ins::Spread(_) => {
                let a = self.get(values[0], &mut locked);
                let out = self.result(at, own, &values, &locked);
                self.asm.vector(op::BROADCAST, out, 0, Rm::Reg(a), None);
            }
            Ins::Load { stream, dtype } => {
                let out = self.make(own, &[]);
                let from = self.at(stream, part);
                let f = match dtype {
                    DType::F16 => op::FROM_HALF,
                    DType::BF16 => op::WIDEN_16,
                    DType::I16 => op::WIDEN_SIGNED_16,
                    DType::Bool => op::WIDEN_8,
                    _ => op::LOAD,
                };
                self.asm.vector(f, out, 0, from, None);
                if dtype == DType::BF16 {
                    self.asm.vector(op::SHIFT, 6, out, Rm::Reg(out), Some(16));
                }
            }
            Ins::Prefetch(i) => {
                let out = self.make(own, &[]);
                let other = self.take(&[out]);
                let first = self.context(self.frame.first(self.body.slots.len()));
                let number = self.context(self.frame.slot(i));
                self.asm.low(op::FROM_GPR, out, 0, Rm::Reg(RCX), None);
                self.asm.low(op::ADD_INT, out, out, first, None);
                self.asm.vector(op::BROADCAST_INT, out, 0, Rm::Reg(out), None);
                self.asm.vector(op::LOAD, other, 0, number, None);
                self.asm.vector(op::SUB_INT, out, other, Rm::Reg(out), None);
            }
            Ins::Two(f @ (op::CMP | op::EQ_INT), _, _, imm) if self.body.width == Width::Sixteen => {
                self.compare(f, imm, &values, &mut locked);
                let out = self.result(at, own, &values, &locked);
                avx512::to_lanes(self.asm, out);
            }
            Ins::Two(f, _, _, imm) => {
                let (mut a, mut b) = (values[0], values[1]);
                let commutes =
                    [op::ADD, op::MUL, op::AND, op::OR, op::XOR, op::ADD_INT, op::EQ_INT, op::MAX_INT];
                if commutes.contains(&f) && self.memory(a).is_some() {
                    (a, b) = (b, a);
                }
                let a = self.get(a, &mut locked);
                let b = self.operand(b, &mut locked);
                let out = self.result(at, own, &values, &locked);
                self.asm.vector(f, out, a, b, imm);
            }
            Ins::Fma(..) => self.fma(at, own, &values),
            Ins::One(f, _, imm) => {
                let a = self.operand(values[0], &mut locked);
                let out = self.result(at, own, &values, &locked);
                self.asm.vector(f, out, 0, a, imm);
            }
            Ins::Shift(digit, _, n) => {
                let a = self.get(values[0], &mut locked);
                let out = self.result(at, own, &values, &locked);
                self.asm.vector(op::SHIFT, digit, out, Rm::Reg(a), Some(n));
            }
            Ins::Blend { mask, .. } if self.body.width == Width::Sixteen => {
                let [by @ .., a, b] = &values[..] else { unreachable!("two values to choose from") };
                match (self.body.code[mask], by) {
                    (Ins::Two(f, _, _, imm), [_, _]) => self.compare(f, imm, by, &mut locked),
                    _ => {
                        let by = self.get(by[0], &mut locked);
                        avx512::by_lanes(self.asm, by);
                    }
                }
                let a = self.get(*a, &mut locked);
                let b = self.operand(*b, &mut locked);
                let out = self.result(at, own, &values, &locked);
                avx512::blend(self.asm, out, a, b);
            }
            Ins::Blend { .. } => {
                let (mask, a) = (self.get(values[0], &mut locked), self.get(values[1], &mut locked));
                let b = self.operand(values[2], &mut locked);
                let out = self.result(at, own, &values, &locked);
                self.asm.vector(op::BLEND, out, a, b, Some(mask << 4));
            }
            Ins::RoundHalf(_) => {
                let a = self.get(values[0], &mut locked);
                let out = self.result(at, own, &values, &locked);
                self.asm.vector(op::TO_HALF, a, 0, Rm::Reg(out), Some(0));
                self.asm.vector(op::FROM_HALF, out, 0, Rm::Reg(out), None);
            }
            Ins::SetAcc(i, _) => {
                let from = self.get(values[0], &mut locked);
                match self.pin(i, part) {
                    Some(r) if r == from => {}
                    Some(r) => self.asm.vector(op::LOAD, r, 0, Rm::Reg(from), None),
                    None => {
                        let to = self.frame.accs + 4 * self.options.group * i + self.frame.vector * part;
                        self.asm.vector(op::STORE, from, 0, self.context(to), None);
                    }
                }
            }
            Ins::Store { stream, dtype, .. } => {
                let from: Vec<u8> = values.iter().map(|&v| self.get(v, &mut locked)).collect();
                self.store(stream, dtype, &from, part);
            }
        }
        if !ins.makes() {
            self.pass(at, &values);
            self.free(&values);
        }
    }

    /// Compares two values, by AVX-512's instructions.
    fn compare(&mut self, f: Op, imm: Option<u8>, values: &[Value], locked: &mut Vec<u8>) {
        let a = self.get(values[0], locked);
        let b = self.operand(values[1], locked);
        avx512::compare(self.asm, f, a, b, imm);
    }

    /// A product and a sum, whose result takes the place of one of the three.
    fn fma(&mut self, at: usize, own: Value, values: &[Value]) {
        let (mut a, mut b, c) = (values[0], values[1], values[2]);
        if self.memory(a).is_some() {
            (a, b) = (b, a);
        }
        let mut locked = Vec::with_capacity(4);
        let (third, second) = (self.memory(c).is_some(), self.memory(b).is_some());
        let ra = self.get(a, &mut locked);
        let rb = if third || !second { Some(self.get(b, &mut locked)) } else { None };
        let rc = if third { None } else { Some(self.get(c, &mut locked)) };
        let last = match (third, second) {
            (true, _) => self.operand(c, &mut locked),
            (_, true) => self.operand(b, &mut locked),
            _ => Rm::Reg(0),
        };
        self.pass(at, values);
        self.free(values);
        // Values that can be read from memory again give their registers up.
        let over = |e: &mut Self, v: Value, r: u8| {
            let over = e.row.fixed(v).is_none() && (e.held[r as usize].is_none() || e.stays(v));
            if over && e.held[r as usize] == Some(v) {
                (e.held[r as usize], e.place[v]) = (None, None);
            }
            over
        };
        let (f, target, other, last) = match (rb, rc) {
            (Some(rb), None) if over(self, a, ra) => (op::FMA_213, Ok(ra), rb, last),
            (Some(rb), None) if over(self, b, rb) => (op::FMA_213, Ok(rb), ra, last),
            (Some(rb), None) => (op::FMA_213, Err(ra), rb, last),
            (None, Some(rc)) if over(self, a, ra) => (op::FMA_132, Ok(ra), rc, last),
            (None, Some(rc)) if over(self, c, rc) => (op::FMA_231, Ok(rc), ra, last),
            (None, Some(rc)) => (op::FMA_231, Err(rc), ra, last),
            (Some(rb), Some(rc)) if over(self, a, ra) => (op::FMA_213, Ok(ra), rb, Rm::Reg(rc)),
            (Some(rb), Some(rc)) if over(self, b, rb) => (op::FMA_213, Ok(rb), ra, Rm::Reg(rc)),
            (Some(rb), Some(rc)) if over(self, c, rc) => (op::FMA_231, Ok(rc), ra, Rm::Reg(rb)),
            (Some(rb), Some(rc)) => (op::FMA_231, Err(rc), ra, Rm::Reg(rb)),
            (None, None) => unreachable!("one is in memory at most"),
        };
        let out = target.unwrap_or_else(|copied| {
            let out = self.take(&locked);
            self.asm.vector(op::LOAD, out, 0, Rm::Reg(copied), None);
            out
        });
        (self.held[out as usize], self.place[own]) = (Some(own), Some(out));
        self.asm.vector(f, out, other, last, None);
    }
}
