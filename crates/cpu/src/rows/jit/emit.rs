//! Machine code of a phase, or of all phases: gives values registers, and writes loops over groups of columns
//! and over rows.
//!
//! A function takes a context and a number of columns, a multiple of the group. The context holds how many
//! rows there are and the pointers of the streams at the first; for a phase alone also the numbers of all
//! rows, what accumulators begin with, where they go row by row and, for what is less than a group, which
//! lanes are columns.

use super::super::loops::LANES;
use super::asm::*;
use super::avx512;
use super::body::{Body, Ins, Value};
use super::row::{FREE, Frame, POINTERS, Row, often, same_at};
use headwater_core::DType;
use std::ops::Range;

/// How a function is to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner<'a> {
    pub group: usize,
    /// Results pass by the caches; their pointers are then aligned to a vector.
    pub stream: bool,
    /// For each stream, how many bytes ahead it is asked for; 0 is never.
    pub ahead: &'a [usize],
    /// For each stream, bytes from row to row.
    pub steps: &'a [i32],
}

/// Writes a function; gives its place in the code.
pub(super) fn function(asm: &mut Asm, body: &Body, frame: Frame, manner: Manner) -> usize {
    framed(asm, body, |asm| {
        let mut top = 0;
        columns(asm, body, frame, manner, |asm, row, after| {
            if after {
                return row.end(asm, manner.steps, top);
            }
            row.fix(asm, false);
            top = asm.here();
            row.begin(asm);
        })
    })
}

/// What is done to each row: the phases, each after what is computed of numbers of the row before, and last
/// what is computed after them.
pub(super) struct Whole<'a> {
    pub between: &'a [Body],
    pub phases: &'a [Body],
    pub frame: Frame,
    /// Of each phase.
    pub manners: Vec<Manner<'a>>,
    /// What each phase's accumulators begin with.
    pub begin: &'a [Vec<f32>],
    /// For each stream, bytes from row to row.
    pub steps: &'a [i32],
}

/// Writes a function that does all phases of a row before it goes on with the next; gives its place in the
/// code.
pub(super) fn rows(asm: &mut Asm, whole: &Whole) -> usize {
    let frame = whole.frame;
    let last = &whole.between[whole.phases.len()];
    framed(asm, last, |asm| {
        let top = asm.here();
        Row::pointers(asm, last.streams.len().min(POINTERS.len()));
        let mut spills = 0;
        // Accumulators of the phase before, which have their registers still.
        let (mut lanes, mut pins) = (0, 0);
        for (q, between) in whole.between.iter().enumerate() {
            let held = between.streams.len().min(POINTERS.len());
            let row = Row { body: between, frame, held, lanes, pins, fixed: &[] };
            let manner = Manner { group: between.width.lanes(), stream: false, ahead: &[], steps: &[] };
            let mut e = Emitter::new(asm, manner, 0..1, &row);
            (0..e.order.len()).for_each(|at| e.ins(at));
            spills = spills.max(e.spills);
            let Some(body) = whole.phases.get(q) else { break };
            let used = columns(asm, body, frame, whole.manners[q], |asm, row, after| {
                (lanes, pins) = (row.lanes, row.pins);
                if !after {
                    row.fix(asm, true);
                    row.start(asm, &whole.begin[q]);
                }
            });
            spills = spills.max(used);
        }
        let done = asm.count_down(frame.left as i32);
        Row::step(asm, whole.steps);
        asm.jump(top);
        asm.arrive(done);
        spills
    })
}

/// A function around its inside, which says how many vectors it puts on the stack; gives its place in the
/// code.
fn framed(asm: &mut Asm, body: &Body, inside: impl FnOnce(&mut Asm) -> i32) -> usize {
    let start = asm.here();
    let held = body.streams.len().min(POINTERS.len());
    let saved = &POINTERS[FREE.min(held)..held];
    saved.iter().for_each(|&r| asm.push(r));
    let below = asm.move_stack(0);
    let spills = inside(asm);
    let bytes = body.width.bytes() as i32 * spills;
    asm.set(below, -bytes);
    asm.move_stack(bytes);
    saved.iter().rev().for_each(|&r| asm.pop(r));
    asm.finish_function();
    start
}

/// Writes a loop over the columns, and what `around` writes before and, told so, after it; gives how many
/// vectors are put on the stack. Tries ways to use the registers, so that `around` is called for more than
/// what is written in the end.
fn columns(
    asm: &mut Asm,
    body: &Body,
    frame: Frame,
    manner: Manner,
    mut around: impl FnMut(&mut Asm, &Row, bool),
) -> i32 {
    let held = body.streams.len().min(POINTERS.len());
    let (vectors, registers) = (manner.group / body.width.lanes(), body.width.registers());
    let lanes = body.folds.len() * vectors;
    let pins = if lanes <= registers / 2 { lanes } else { 0 };
    // As many of the values that are the same for all columns in registers as leave enough to do without the
    // stack: most of them are operands of instructions, and there are but two loads a cycle.
    let same = often(body);
    let most = same.len().min(registers - pins - FEWEST);
    let start = asm.mark();
    let mut write = |fixed: usize| {
        asm.back(&start);
        let row = Row { body, frame, held, lanes, pins, fixed: &same[..fixed] };
        around(asm, &row, false);
        asm.clear_index();
        let next = asm.here();
        let mut spills = 0;
        for part in (0..vectors).step_by(TOGETHER) {
            let parts = part..(part + TOGETHER).min(vectors);
            let mut e = Emitter::new(asm, manner, parts, &row);
            (0..e.order.len()).for_each(|at| e.ins(at));
            spills = spills.max(e.spills);
        }
        row.prefetch_l1(asm, &manner);
        asm.advance(manner.group as u8, next);
        around(asm, &row, true);
        spills
    };
    let (mut fixed, mut most) = (0, most);
    while fixed < most {
        let more = (fixed + most).div_ceil(2);
        if write(more) == 0 {
            fixed = more;
        } else {
            most = more - 1;
        }
    }
    write(fixed)
}

/// Vectors whose instructions are written in turns: while those of one wait for each other, those of the
/// other run. With more of them no registers were left for values that are the same for all.
pub(super) const TOGETHER: usize = 2;
const _: () = assert!(TOGETHER.is_multiple_of(2), "AVX2 writes halves two vectors at a time");
/// Fewest registers that what a loop computes is left with: for as many operands as an instruction has, and
/// its result.
const FEWEST: usize = 5;

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
    pub(super) asm: &'a mut Asm,
    pub(super) body: &'a Body,
    frame: Frame,
    pub(super) manner: Manner<'a>,
    row: &'a Row<'a>,
    /// The instructions in order: number in the body, which vector of the group.
    order: Vec<(usize, usize)>,
    /// The vectors.
    parts: Range<usize>,
    /// Registers to be given away.
    registers: usize,
    held: Vec<Option<Value>>,
    place: Vec<Option<u8>>,
    /// Where a value lies on the stack, and how many do.
    spilled: Vec<Option<i32>>,
    spills: i32,
    /// Uses of each value, in order, and how many have passed.
    uses: Vec<Vec<usize>>,
    passed: Vec<usize>,
    /// Comparisons whose results only decide between others: with AVX-512, which has registers for that.
    decides: Vec<bool>,
}

impl<'a> Emitter<'a> {
    fn new(asm: &'a mut Asm, manner: Manner<'a>, parts: Range<usize>, row: &'a Row) -> Emitter<'a> {
        let body = row.body;
        let n = body.code.len() * parts.len();
        let order = (0..body.code.len()).flat_map(|i| parts.clone().map(move |part| (i, part))).collect();
        let mut e = Emitter {
            asm,
            body,
            frame: row.frame,
            manner,
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
    fn value(&self, ins: usize, part: usize) -> Value {
        let same = self.body.code[ins].same();
        ins + if same { 0 } else { self.body.code.len() * (part - self.parts.start) }
    }

    fn args(&self, at: usize) -> Vec<Value> {
        let (ins, part) = self.order[at];
        match self.body.code[ins] {
            // Two vectors of halves are written as one, with the second.
            Ins::Store { dtype: DType::BF16 | DType::I16, from, .. } if self.body.width == Width::Eight => {
                match part % 2 {
                    0 => Vec::new(),
                    _ => vec![self.value(from, part - 1), self.value(from, part)],
                }
            }
            // What is compared for blends alone is compared where it is needed.
            Ins::Two(..) if self.decides[ins] => Vec::new(),
            Ins::Blend { mask, a, b } if self.decides[mask] => {
                let compared = self.body.code[mask].args();
                compared.chain([a, b]).map(|v| self.value(v, part)).collect()
            }
            ins => ins.args().map(|a| self.value(a, part)).collect(),
        }
    }

    /// The instruction that makes a value, and of which vector.
    fn made(&self, v: Value) -> (Ins, usize) {
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
    fn one(&mut self, stream: usize) -> Rm {
        match self.at(stream, 0) {
            Rm::At { base, disp, .. } => Rm::At { base, scale: 0, disp },
            rm => rm,
        }
    }

    fn context(&self, byte: usize) -> Rm {
        Rm::At { base: RDI, scale: 0, disp: byte as i32 }
    }

    fn next_use(&self, v: Value) -> usize {
        self.uses[v].get(self.passed[v]).copied().unwrap_or(usize::MAX)
    }

    /// The register of an accumulator, if it has one.
    fn pin(&self, acc: usize, part: usize) -> Option<u8> {
        self.row.pin(acc * (self.manner.group / self.body.width.lanes()) + part)
    }

    /// Whether a value is left in memory for its one use, or for all of them.
    fn stays(&self, v: Value) -> bool {
        match self.made(v).0 {
            Ins::Num(_) | Ins::Eight(_) | Ins::Slot(_) | Ins::Column | Ins::Alive => true,
            Ins::Acc(_) | Ins::Lanes(..) => true,
            Ins::Load { dtype: DType::F32, .. } => {
                // What is read after a store, or stored as it was read, is read first: it may be overwritten
                // meanwhile.
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

    /// Where a value that is in no register of its own can be read.
    fn memory(&mut self, v: Value) -> Option<Rm> {
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
                None => self.context(self.frame.accs + 4 * self.manner.group * i + step),
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
    fn get(&mut self, v: Value, locked: &mut Vec<u8>) -> u8 {
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
    fn pass(&mut self, at: usize, values: &[Value]) {
        for &a in values {
            while self.next_use(a) <= at {
                self.passed[a] += 1;
            }
        }
    }

    /// Gives back the registers of arguments that are not needed any more.
    fn free(&mut self, values: &[Value]) {
        for &a in values {
            if self.next_use(a) == usize::MAX
                && let Some(r) = self.place[a].take()
            {
                self.held[r as usize] = None;
            }
        }
    }

    /// A register for a value: that of the accumulator it becomes, one that is free, or one that is made so.
    fn make(&mut self, v: Value, locked: &[u8]) -> u8 {
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

    fn ins(&mut self, at: usize) {
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
                        let to = self.frame.accs + 4 * self.manner.group * i + self.frame.vector * part;
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

    /// A value as the last operand of an instruction: from memory if it is in no register.
    fn operand(&mut self, v: Value, locked: &mut Vec<u8>) -> Rm {
        self.memory(v).unwrap_or_else(|| Rm::Reg(self.get(v, locked)))
    }

    /// The register of an instruction's result: it may be that of an argument that is not needed any more.
    fn result(&mut self, at: usize, own: Value, values: &[Value], args: &[u8]) -> u8 {
        self.pass(at, values);
        self.free(values);
        let live: Vec<u8> = args.iter().copied().filter(|&r| self.held[r as usize].is_some()).collect();
        self.make(own, &live)
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
        // What can be read from memory again gives its register up.
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
