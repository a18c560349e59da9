//! Machine code of a phase: gives values registers, and writes a loop over groups of columns.
//!
//! A function takes a context and a number of columns, a multiple of the group. The context holds the pointers of the
//! streams, the numbers of the row, the accumulators and, for what is less than a group, which lanes are columns.

use super::asm::*;
use super::body::{Body, Ins, Value};
use headwater_core::DType;

/// Columns of a vector.
pub(super) const WIDE: usize = 8;
/// General registers that hold streams' pointers; further streams are fetched from the context at each use.
const POINTERS: [Gpr; 11] = [RDX, 8, 9, 10, 11, RBX, RBP, 12, 13, 14, 15];
/// How many of these a function may use freely.
const FREE: usize = 5;

/// Bytes of the parts of a context.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    pub slots: usize,
    pub accs: usize,
    pub alive: usize,
    pub size: usize,
}

impl Frame {
    /// For bodies that work on groups of so many columns.
    pub fn new(body: &Body, group: usize) -> Frame {
        let slots = 8 * body.streams.len();
        let accs = (slots + 4 * (body.slots.len() + 1)).next_multiple_of(32);
        let alive = accs + 4 * group * body.folds.len();
        Frame { slots, accs, alive, size: alive + 4 * group }
    }
}

/// How a function is to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner<'a> {
    pub group: usize,
    /// Results pass by the caches; their pointers are then aligned to a vector.
    pub stream: bool,
    /// For each stream, how many bytes ahead it is asked for; 0 is never.
    pub ahead: &'a [usize],
}

/// Writes a function; gives its place in the code.
pub(super) fn function(asm: &mut Asm, body: &Body, frame: Frame, manner: Manner) -> usize {
    let start = asm.here();
    let held = body.streams.len().min(POINTERS.len());
    let saved = &POINTERS[FREE.min(held)..held];
    saved.iter().for_each(|&r| asm.push(r));
    let below = asm.move_stack(0);
    let mut spills = 0;
    (0..held).for_each(|i| asm.load_pointer(POINTERS[i], RDI, 8 * i as i32));
    asm.clear_index();
    let top = asm.here();
    for part in (0..manner.group / WIDE).step_by(TOGETHER) {
        let mut e = Emitter::new(asm, body, frame, manner, part);
        (0..e.order.len()).for_each(|at| e.ins(at));
        spills = spills.max(e.spills);
    }
    for (i, &bytes) in manner.ahead.iter().enumerate().filter(|(_, b)| **b > 0) {
        let width = body.streams[i].width;
        for line in (0..manner.group * width).step_by(64) {
            let base = if i < held { POINTERS[i] } else { continue };
            asm.prefetch(base, width as u8, (bytes + line) as i32);
        }
    }
    asm.advance(manner.group as u8, top);
    asm.set(below, -(VECTOR * spills));
    asm.move_stack(VECTOR * spills);
    saved.iter().rev().for_each(|&r| asm.pop(r));
    asm.finish_function();
    start
}

/// Vectors whose instructions are written in turns: while those of one wait for each other, those of the other run.
pub(super) const TOGETHER: usize = 2;
/// Bytes of a vector on the stack.
const VECTOR: i32 = 32;
const REGISTERS: usize = 16;

/// Gives the values of some vectors registers, and writes their code.
struct Emitter<'a> {
    asm: &'a mut Asm,
    body: &'a Body,
    frame: Frame,
    manner: Manner<'a>,
    /// The instructions in order: number in the body, which vector of the group.
    order: Vec<(usize, usize)>,
    /// First vector.
    first: usize,
    held: [Option<Value>; REGISTERS],
    place: Vec<Option<u8>>,
    /// Where a value lies on the stack, and how many do.
    spilled: Vec<Option<i32>>,
    spills: i32,
    /// Uses of each value, in order, and how many have passed.
    uses: Vec<Vec<usize>>,
    passed: Vec<usize>,
}

impl<'a> Emitter<'a> {
    fn new(asm: &'a mut Asm, body: &'a Body, frame: Frame, manner: Manner<'a>, first: usize) -> Emitter<'a> {
        let parts = first..(first + TOGETHER).min(manner.group / WIDE);
        let n = body.code.len() * parts.len();
        let order = (0..body.code.len()).flat_map(|i| parts.clone().map(move |part| (i, part))).collect();
        let mut e = Emitter {
            asm,
            body,
            frame,
            manner,
            order,
            first,
            held: [None; REGISTERS],
            place: vec![None; n],
            spilled: vec![None; n],
            spills: 0,
            uses: vec![Vec::new(); n],
            passed: vec![0; n],
        };
        for at in 0..e.order.len() {
            e.args(at).for_each(|v| e.uses[v].push(at));
        }
        e
    }

    /// Number of a value of one of the vectors; what is the same for all is one value.
    fn value(&self, ins: usize, part: usize) -> Value {
        let same = matches!(self.body.code[ins], Ins::Num(_) | Ins::Slot(_));
        ins + if same { 0 } else { self.body.code.len() * (part - self.first) }
    }

    fn args(&self, at: usize) -> impl Iterator<Item = Value> + use<> {
        let (ins, part) = self.order[at];
        let args: Vec<Value> = self.body.code[ins].args().map(|a| self.value(a, part)).collect();
        args.into_iter()
    }

    /// The instruction that makes a value.
    fn made(&self, v: Value) -> Ins {
        self.body.code[v % self.body.code.len()]
    }

    /// Elements of a stream at this vector.
    fn at(&mut self, stream: usize, part: usize) -> Rm {
        let width = self.body.streams[stream].width;
        let disp = (part * WIDE * width) as i32;
        let base = if stream < POINTERS.len() {
            POINTERS[stream]
        } else {
            self.asm.load_pointer(RAX, RDI, 8 * stream as i32);
            RAX
        };
        Rm::At { base, scale: width as u8, disp }
    }

    fn context(&self, byte: usize) -> Rm {
        Rm::At { base: RDI, scale: 0, disp: byte as i32 }
    }

    fn next_use(&self, v: Value) -> usize {
        self.uses[v].get(self.passed[v]).copied().unwrap_or(usize::MAX)
    }

    /// A register that holds nothing needed; not one of those locked.
    fn take(&mut self, locked: &[u8]) -> u8 {
        if let Some(r) =
            (0..REGISTERS as u8).find(|r| self.held[*r as usize].is_none() && !locked.contains(r))
        {
            return r;
        }
        let candidates = (0..REGISTERS as u8).filter(|r| !locked.contains(r));
        let r = candidates
            .max_by_key(|&r| self.next_use(self.held[r as usize].expect("all are held")))
            .expect("an instruction locks fewer registers than there are");
        let v = self.held[r as usize].take().expect("held");
        self.place[v] = None;
        let again = matches!(self.made(v), Ins::Num(_) | Ins::Slot(_));
        if !again && self.spilled[v].is_none() && self.next_use(v) != usize::MAX {
            let disp = VECTOR * self.spills;
            self.spills += 1;
            self.spilled[v] = Some(disp);
            self.asm.vex(true, op::STORE, r, 0, Rm::At { base: RSP, scale: 0, disp }, None);
        }
        r
    }

    /// The register of a value, brought there if need be.
    fn get(&mut self, v: Value, locked: &mut Vec<u8>) -> u8 {
        let r = match self.place[v] {
            Some(r) => r,
            None => {
                let r = self.take(locked);
                match self.spilled[v] {
                    Some(disp) => {
                        self.asm.vex(true, op::LOAD, r, 0, Rm::At { base: RSP, scale: 0, disp }, None);
                    }
                    None => self.constant(v, r),
                }
                (self.held[r as usize], self.place[v]) = (Some(v), Some(r));
                r
            }
        };
        locked.push(r);
        r
    }

    /// Brings a constant or a number of the row to a register.
    fn constant(&mut self, v: Value, r: u8) {
        let from = match self.made(v) {
            Ins::Num(bits) => Rm::Pool(self.asm.constant(&bits.to_le_bytes())),
            Ins::Slot(i) => self.context(self.frame.slots + 4 * i),
            _ => unreachable!("other values are made once and spilled"),
        };
        self.asm.vex(true, op::BROADCAST, r, 0, from, None);
    }

    fn ins(&mut self, at: usize) {
        let (number, part) = self.order[at];
        let ins = self.body.code[number];
        // What is brought from memory waits for its first use.
        if matches!(ins, Ins::Num(_) | Ins::Slot(_)) {
            return;
        }
        let mut locked = Vec::with_capacity(4);
        let values: Vec<Value> = self.args(at).collect();
        let args: Vec<u8> = values.iter().map(|&a| self.get(a, &mut locked)).collect();
        let own = self.value(number, part);
        // A result may take the place of an argument that is not needed any more, unless more than one instruction is
        // written.
        let single = matches!(
            ins,
            Ins::Two(..) | Ins::One(..) | Ins::Shift(..) | Ins::Blend { .. } | Ins::RoundHalf(_)
        );
        for &a in &values {
            while self.next_use(a) <= at {
                self.passed[a] += 1;
            }
        }
        let free = |e: &mut Self| {
            for &a in &values {
                if e.next_use(a) == usize::MAX
                    && let Some(r) = e.place[a].take()
                {
                    e.held[r as usize] = None;
                }
            }
        };
        if single {
            free(self);
            locked.clear();
            // Arguments that live on must not be evicted into, but they may be evicted: their registers are read first.
            locked.extend(args.iter().filter(|r| self.held[**r as usize].is_some()));
        }
        let makes = !matches!(ins, Ins::Store { .. } | Ins::SetAcc(..) | Ins::Columns { .. });
        let out = if makes { self.take(&locked) } else { 0 };
        if makes {
            (self.held[out as usize], self.place[own]) = (Some(own), Some(out));
            locked.push(out);
        }
        let step = 4 * WIDE * part;
        match ins {
            Ins::Num(_) | Ins::Slot(_) => unreachable!("left for later above"),
            Ins::Load { stream, dtype } => {
                let from = self.at(stream, part);
                let f = match dtype {
                    DType::F16 => op::FROM_HALF,
                    DType::BF16 => op::WIDEN_16,
                    DType::I16 => op::WIDEN_SIGNED_16,
                    DType::Bool => op::WIDEN_8,
                    _ => op::LOAD,
                };
                self.asm.vex(true, f, out, 0, from, None);
                if dtype == DType::BF16 {
                    self.asm.vex(true, op::SHIFT, 6, out, Rm::Reg(out), Some(16));
                }
            }
            Ins::Column => {
                let iota: Vec<u8> =
                    (0..WIDE).flat_map(|i| ((part * WIDE + i) as u32).to_le_bytes()).collect();
                let iota = Rm::Pool(self.asm.constant(&iota));
                let first = self.context(self.frame.slots + 4 * self.body.slots.len());
                self.asm.vex(false, op::FROM_GPR, out, 0, Rm::Reg(RCX), None);
                self.asm.vex(true, op::BROADCAST_INT, out, 0, Rm::Reg(out), None);
                self.asm.vex(true, op::ADD_INT, out, out, iota, None);
                let other = self.take(&locked);
                self.asm.vex(true, op::BROADCAST, other, 0, first, None);
                self.asm.vex(true, op::ADD_INT, out, out, Rm::Reg(other), None);
            }
            Ins::Alive => {
                let from = self.context(self.frame.alive + step);
                self.asm.vex(true, op::LOAD, out, 0, from, None);
            }
            Ins::Acc(i) => {
                let from = self.context(self.frame.accs + 4 * self.manner.group * i + step);
                self.asm.vex(true, op::LOAD, out, 0, from, None);
            }
            Ins::SetAcc(i, _) => {
                let to = self.context(self.frame.accs + 4 * self.manner.group * i + step);
                self.asm.vex(true, op::STORE, args[0], 0, to, None);
            }
            Ins::Two(f, _, _, imm) => self.asm.vex(true, f, out, args[0], Rm::Reg(args[1]), imm),
            Ins::One(f, _, imm) => self.asm.vex(true, f, out, 0, Rm::Reg(args[0]), imm),
            Ins::Shift(digit, _, n) => self.asm.vex(true, op::SHIFT, digit, out, Rm::Reg(args[0]), Some(n)),
            Ins::Blend { .. } => {
                self.asm.vex(true, op::BLEND, out, args[1], Rm::Reg(args[2]), Some(args[0] << 4));
            }
            Ins::RoundHalf(_) => {
                self.asm.vex(true, op::TO_HALF, args[0], 0, Rm::Reg(out), Some(0));
                self.asm.vex(true, op::FROM_HALF, out, 0, Rm::Reg(out), None);
            }
            Ins::Store { stream, dtype, .. } => self.store(stream, dtype, args[0], part, &locked),
            Ins::Columns { stream, .. } => {
                let low = self.take(&locked);
                locked.push(low);
                let high = self.take(&locked);
                self.asm.vex(true, op::UPPER, args[0], 0, Rm::Reg(high), Some(1));
                self.asm.vex(true, op::TO_F64, low, 0, Rm::Reg(args[0]), None);
                self.asm.vex(true, op::TO_F64, high, 0, Rm::Reg(high), None);
                let Rm::At { base, scale, disp } = self.at(stream, part) else {
                    unreachable!("streams are in memory")
                };
                for (r, disp) in [(low, disp), (high, disp + 32)] {
                    let cell = Rm::At { base, scale, disp };
                    self.asm.vex(true, op::ADD_F64, r, r, cell, None);
                    self.asm.vex(true, op::STORE_F64, r, 0, cell, None);
                }
            }
        }
        if !single {
            free(self);
        }
        if makes && self.uses[own].is_empty() {
            (self.held[out as usize], self.place[own]) = (None, None);
        }
    }

    fn store(&mut self, stream: usize, dtype: DType, from: u8, part: usize, locked: &[u8]) {
        let streams = self.manner.stream && self.body.streams[stream].past;
        let to = self.at(stream, part);
        let halves = if streams { op::STREAM_HALVES } else { op::STORE_HALVES };
        match dtype {
            DType::F16 if !streams => self.asm.vex(true, op::TO_HALF, from, 0, to, Some(0)),
            DType::F16 => {
                let t = self.take(locked);
                self.asm.vex(true, op::TO_HALF, from, 0, Rm::Reg(t), Some(0));
                self.asm.vex(false, halves, t, 0, to, None);
            }
            DType::BF16 | DType::I16 => {
                let t = self.take(locked);
                self.asm.vex(true, op::UPPER, from, 0, Rm::Reg(t), Some(1));
                self.asm.vex(false, op::PACK, t, from, Rm::Reg(t), None);
                self.asm.vex(false, halves, t, 0, to, None);
            }
            DType::Bool => {
                let t = self.take(locked);
                self.asm.vex(true, op::UPPER, from, 0, Rm::Reg(t), Some(1));
                self.asm.vex(false, op::PACK_SIGNED, t, from, Rm::Reg(t), None);
                self.asm.vex(false, op::PACK_BYTES, t, t, Rm::Reg(t), None);
                // Ones are -1: their magnitude is 1.
                self.asm.vex(false, op::ABS_BYTES, t, 0, Rm::Reg(t), None);
                self.asm.vex(false, op::STORE_8, t, 0, to, None);
            }
            _ => self.asm.vex(true, if streams { op::STREAM } else { op::STORE }, from, 0, to, None),
        }
    }
}
