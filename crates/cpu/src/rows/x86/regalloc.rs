//! Register allocation: gives the values of some vectors of columns registers, in one pass over the
//! instructions. The value whose next use is farthest away is spilled first (Belady, 1966). Values that can
//! be read from memory or recomputed are dropped instead of spilled.

use super::assembler::*;
use super::frame::{Frame, LoopOptions, POINTERS, Row, same_at};
use super::ir::{Body, Ins, Value};
use crate::rows::interpret::loops::LANES;
use headwater_core::DType;
use std::ops::Range;

/// Which instructions are comparisons that only decide between others, if there are mask registers.
fn deciding(body: &Body) -> Vec<bool> {
    let compares = |ins: &Ins| matches!(ins, Ins::Two(op::CMP | op::EQ_INT, ..));
    let mut deciding: Vec<bool> =
        body.code.iter().map(|i| body.width == Width::Sixteen && compares(i)).collect();
    for ins in &body.code {
        match *ins {
            Ins::Blend { a, b, .. } => (deciding[a], deciding[b]) = (false, false),
            _ => ins.args().for_each(|v| deciding[v] = false),
        }
    }
    deciding
}

/// Gives the values of some vectors registers, and writes their code.
pub(super) struct Emitter<'a> {
    pub(super) asm: &'a mut Assembler,
    pub(super) body: &'a Body,
    pub(super) frame: Frame,
    pub(super) options: LoopOptions<'a>,
    pub(super) row: &'a Row<'a>,
    /// The instructions in order: number in the body, which vector of the group.
    pub(super) order: Vec<(usize, usize)>,
    /// The vectors.
    pub(super) parts: Range<usize>,
    /// Registers to be given away.
    pub(super) registers: usize,
    pub(super) held: Vec<Option<Value>>,
    pub(super) place: Vec<Option<u8>>,
    /// Stack offset of each spilled value, and how many there are.
    pub(super) spilled: Vec<Option<i32>>,
    pub(super) spills: i32,
    /// Uses of each value, in order, and how many have passed.
    pub(super) uses: Vec<Vec<usize>>,
    pub(super) passed: Vec<usize>,
    /// Comparisons whose results only decide between others: with AVX-512, which has registers for that.
    pub(super) decides: Vec<bool>,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(
        asm: &'a mut Assembler,
        options: LoopOptions<'a>,
        parts: Range<usize>,
        row: &'a Row,
    ) -> Emitter<'a> {
        let body = row.body;
        let n = body.code.len() * parts.len();
        let order = (0..body.code.len()).flat_map(|i| parts.clone().map(move |part| (i, part))).collect();
        let mut e = Emitter {
            asm,
            body,
            frame: row.frame,
            options,
            row,
            order,
            parts,
            registers: row.free(),
            held: vec![None; body.width.registers()],
            place: vec![None; n],
            spilled: vec![None; n],
            spills: 0,
            uses: vec![Vec::new(); n],
            passed: vec![0; n],
            decides: deciding(body),
        };
        for at in 0..e.order.len() {
            e.args(at).into_iter().for_each(|v| e.uses[v].push(at));
        }
        e
    }

    /// Number of a value of one of the vectors; what is the same for all is one value.
    pub(super) fn value(&self, ins: usize, part: usize) -> Value {
        let same = self.body.code[ins].same();
        ins + if same { 0 } else { self.body.code.len() * (part - self.parts.start) }
    }

    pub(super) fn args(&self, at: usize) -> Vec<Value> {
        let (ins, part) = self.order[at];
        match self.body.code[ins] {
            // Two vectors of halves are written as one, with the second.
            Ins::Store { dtype: DType::BF16 | DType::I16, from, .. } if self.body.width == Width::Eight => {
                match part % 2 {
                    0 => Vec::new(),
                    _ => vec![self.value(from, part - 1), self.value(from, part)],
                }
            }
            // Comparisons for blends alone are done where they are needed.
            Ins::Two(..) if self.decides[ins] => Vec::new(),
            Ins::Blend { mask, a, b } if self.decides[mask] => {
                let compared = self.body.code[mask].args();
                compared.chain([a, b]).map(|v| self.value(v, part)).collect()
            }
            ins => ins.args().map(|a| self.value(a, part)).collect(),
        }
    }

    /// The instruction that makes a value, and of which vector.
    pub(super) fn made(&self, v: Value) -> (Ins, usize) {
        (self.body.code[v % self.body.code.len()], self.parts.start + v / self.body.code.len())
    }

    /// Elements of a stream at this vector.
    pub(super) fn at(&mut self, stream: usize, part: usize) -> Rm {
        let width = self.body.streams[stream].width;
        let disp = (part * self.body.width.lanes() * width) as i32;
        let base = if stream < POINTERS.len() {
            POINTERS[stream]
        } else {
            self.asm.load_pointer(RAX, RDI, 8 * stream as i32);
            RAX
        };
        Rm::At { base, scale: width as u8, disp }
    }

    /// The row's element of a stream.
    pub(super) fn one(&mut self, stream: usize) -> Rm {
        match self.at(stream, 0) {
            Rm::At { base, disp, .. } => Rm::At { base, scale: 0, disp },
            rm => rm,
        }
    }

    pub(super) fn context(&self, byte: usize) -> Rm {
        Rm::At { base: RDI, scale: 0, disp: byte as i32 }
    }

    pub(super) fn next_use(&self, v: Value) -> usize {
        self.uses[v].get(self.passed[v]).copied().unwrap_or(usize::MAX)
    }

    /// The register of an accumulator, if it has one.
    pub(super) fn pin(&self, acc: usize, part: usize) -> Option<u8> {
        self.row.pin(acc * (self.options.group / self.body.width.lanes()) + part)
    }

    /// True if a value is left in memory for its one use, or for all of them.
    pub(super) fn stays(&self, v: Value) -> bool {
        match self.made(v).0 {
            Ins::Num(_) | Ins::Eight(_) | Ins::Slot(_) | Ins::Column | Ins::Alive => true,
            Ins::Acc(_) | Ins::Lanes(..) => true,
            Ins::Load { dtype: DType::F32, .. } => {
                // Elements read after a store, or stored as they were read, are read first: they may be
                // overwritten meanwhile.
                let code = &self.body.code;
                let early = |at: usize| {
                    let between = &code[v % code.len()..self.order[at].0];
                    !between.iter().any(|i| matches!(i, Ins::Store { .. }))
                };
                matches!(self.uses[v][..], [at] if code[self.order[at].0].makes() && early(at))
            }
            _ => false,
        }
    }

    /// Memory or fixed register of a value that is in no register of its own.
    pub(super) fn memory(&mut self, v: Value) -> Option<Rm> {
        if self.place[v].is_some() {
            return None;
        }
        if let Some(disp) = self.spilled[v] {
            return Some(Rm::At { base: RSP, scale: 0, disp });
        }
        if !self.stays(v) {
            return None;
        }
        if let Some(r) = self.row.fixed(v) {
            return Some(Rm::Reg(r));
        }
        let (ins, part) = self.made(v);
        let (wide, step) = (self.body.width.lanes(), self.frame.vector * part);
        Some(match ins {
            Ins::Num(_) | Ins::Eight(_) | Ins::Slot(_) => {
                return same_at(self.asm, self.body, self.frame, v);
            }
            Ins::Column => {
                let numbers: Vec<u8> =
                    (0..wide).flat_map(|i| ((part * wide + i) as u32).to_le_bytes()).collect();
                Rm::Pool(self.asm.constant(&numbers))
            }
            Ins::Alive => self.context(self.frame.alive + step),
            Ins::Acc(i) => match self.pin(i, part) {
                Some(r) => Rm::Reg(r),
                None => self.context(self.frame.accs + 4 * self.options.group * i + step),
            },
            Ins::Lanes(i, part) => match self.row.pin(i * LANES / wide + part) {
                Some(r) => Rm::Reg(r),
                None => self.context(self.frame.accs + 4 * LANES * i + self.frame.vector * part),
            },
            Ins::Load { stream, .. } => self.at(stream, part),
            _ => return None,
        })
    }

    /// A register that holds nothing needed; not one of those locked.
    pub(super) fn take(&mut self, locked: &[u8]) -> u8 {
        let all = 0..self.registers as u8;
        if let Some(r) = all.clone().find(|r| self.held[*r as usize].is_none() && !locked.contains(r)) {
            return r;
        }
        let r = all
            .filter(|r| !locked.contains(r))
            .max_by_key(|&r| self.next_use(self.held[r as usize].expect("all are held")))
            .expect("an instruction locks fewer registers than there are");
        let v = self.held[r as usize].take().expect("held");
        self.place[v] = None;
        if !self.stays(v) && self.spilled[v].is_none() && self.next_use(v) != usize::MAX {
            let disp = self.frame.vector as i32 * self.spills;
            self.spills += 1;
            self.spilled[v] = Some(disp);
            self.asm.vector(op::STORE, r, 0, Rm::At { base: RSP, scale: 0, disp }, None);
        }
        r
    }

    /// The register of a value, brought there if need be.
    pub(super) fn get(&mut self, v: Value, locked: &mut Vec<u8>) -> u8 {
        let r = match (self.place[v].or_else(|| self.row.fixed(v)), self.memory(v)) {
            (Some(r), _) => r,
            (None, from) => {
                let r = self.take(locked);
                let from = from.expect("a value is in a register or in memory");
                self.asm.vector(op::LOAD, r, 0, from, None);
                (self.held[r as usize], self.place[v]) = (Some(v), Some(r));
                r
            }
        };
        locked.push(r);
        r
    }

    /// Notes that an instruction has read its arguments.
    pub(super) fn pass(&mut self, at: usize, values: &[Value]) {
        for &a in values {
            while self.next_use(a) <= at {
                self.passed[a] += 1;
            }
        }
    }

    /// Gives back the registers of arguments that are not needed any more.
    pub(super) fn free(&mut self, values: &[Value]) {
        for &a in values {
            if self.next_use(a) == usize::MAX
                && let Some(r) = self.place[a].take()
            {
                self.held[r as usize] = None;
            }
        }
    }

    /// A register for a value: that of the accumulator it becomes, one that is free, or one that is made so.
    pub(super) fn make(&mut self, v: Value, locked: &[u8]) -> u8 {
        let part = self.made(v).1;
        let becomes = match self.uses[v][..] {
            [at] => match self.body.code[self.order[at].0] {
                Ins::SetAcc(i, _) => self.pin(i, part),
                _ => None,
            },
            _ => None,
        };
        let r = becomes.unwrap_or_else(|| self.take(locked));
        (self.held[r as usize], self.place[v]) = (Some(v), Some(r));
        r
    }

    /// A value as the last operand of an instruction: from memory if it is in no register.
    pub(super) fn operand(&mut self, v: Value, locked: &mut Vec<u8>) -> Rm {
        self.memory(v).unwrap_or_else(|| Rm::Reg(self.get(v, locked)))
    }

    /// The register of an instruction's result: it may be that of an argument that is not needed any more.
    pub(super) fn result(&mut self, at: usize, own: Value, values: &[Value], args: &[u8]) -> u8 {
        self.pass(at, values);
        self.free(values);
        let live: Vec<u8> = args.iter().copied().filter(|&r| self.held[r as usize].is_some()).collect();
        self.make(own, &live)
    }
}
