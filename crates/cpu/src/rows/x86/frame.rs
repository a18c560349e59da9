//! The frame of a function: the layout of its context, the registers with fixed roles, and the step from row
//! to row.

use super::assembler::*;
use super::ir::{Body, Ins, Value};

/// Options of the loops of a function.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopOptions<'a> {
    pub group: usize,
    /// Results pass by the caches; their pointers are then aligned to a vector.
    pub stream: bool,
    /// For each stream, the prefetch distance in bytes; 0 is never.
    pub ahead: &'a [usize],
    /// For each stream, bytes from row to row.
    pub steps: &'a [i32],
}

/// General registers that hold streams' pointers; further streams are fetched from the context at each use.
pub(super) const POINTERS: [Gpr; 11] = [RDX, 8, 9, 10, 11, RBX, RBP, 12, 13, 14, 15];
/// The number of these that a function may use freely.
pub(super) const FREE: usize = 5;

/// Places of the parts of a context, in bytes from its beginning, where the pointers of the streams are.
/// There are two for each: its place, and its place before less than a group of it was copied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    /// Bytes of a vector.
    pub vector: usize,
    /// The number of rows that are left.
    pub left: usize,
    /// Pointer to the numbers of the row, four bytes each.
    pub table: usize,
    /// Pointer to where the row's accumulators go.
    pub lanes: usize,
    /// A vector for each number of the row, and the number of the first column in four bytes.
    pub slots: usize,
    /// The numbers that accumulators begin with.
    pub init: usize,
    /// Accumulators that have no registers.
    pub accs: usize,
    pub alive: usize,
    pub size: usize,
}

impl Frame {
    /// For a body that works on groups of so many columns.
    pub fn new(body: &Body, group: usize) -> Frame {
        Frame::of(body, body.folds.len(), group)
    }

    /// For bodies with the streams and numbers of this one, and so many reductions each.
    pub fn of(body: &Body, folds: usize, group: usize) -> Frame {
        let (left, vector) = (2 * 8 * body.streams.len(), body.width.bytes());
        let slots = (left + 24).next_multiple_of(vector);
        let init = slots + vector * (body.slots.len() + 1);
        let accs = init + 4 * group * folds;
        let alive = accs + 4 * group * folds;
        let size = alive + 4 * group;
        Frame { vector, left, table: left + 8, lanes: left + 16, slots, init, accs, alive, size }
    }

    /// The place of a number of the row.
    pub fn slot(&self, i: usize) -> usize {
        self.slots + self.vector * i
    }

    /// The place of the number of the first column.
    pub fn first(&self, body_slots: usize) -> usize {
        self.slot(body_slots)
    }
}

/// The code around the columns of a row, and the registers that it takes.
pub(super) struct Row<'a> {
    pub body: &'a Body,
    pub frame: Frame,
    /// Streams whose pointers registers hold.
    pub held: usize,
    /// Vectors of accumulators; those that have registers, the last ones, which are all or none: they must
    /// leave enough.
    pub lanes: usize,
    pub pins: usize,
    /// Values that are the same for all columns and have registers, before those.
    pub fixed: &'a [Value],
}

impl Row<'_> {
    /// Registers that are left.
    pub fn free(&self) -> usize {
        self.body.width.registers() - self.pins - self.fixed.len()
    }

    /// The register of an accumulator's vector.
    pub fn pin(&self, i: usize) -> Option<u8> {
        (i < self.pins).then(|| (self.body.width.registers() - 1 - i) as u8)
    }

    /// The register that a value has from beginning to end.
    pub fn fixed(&self, v: Value) -> Option<u8> {
        self.fixed.iter().position(|f| *f == v).map(|i| (self.free() + i) as u8)
    }

    /// Loads values that are the same for all columns: those that are so for all rows, or numbers of the row
    /// as well.
    pub fn fix(&self, asm: &mut Assembler, numbers: bool) {
        let all = |v: &&Value| numbers || !matches!(self.body.code[**v], Ins::Slot(_));
        for &v in self.fixed.iter().filter(all) {
            if let (Some(r), Some(from)) = (self.fixed(v), same_at(asm, self.body, self.frame, v)) {
                asm.vector(op::LOAD, r, 0, from, None);
            }
        }
    }

    /// Takes the pointers of streams.
    pub fn pointers(asm: &mut Assembler, held: usize) {
        (0..held).for_each(|i| asm.load_pointer(POINTERS[i], RDI, 8 * i as i32));
    }

    /// Takes the pointers, spreads the numbers of the row, and lets accumulators begin.
    pub fn begin(&self, asm: &mut Assembler) {
        Self::pointers(asm, self.held);
        if !self.body.slots.is_empty() {
            asm.load_pointer(RAX, RDI, self.frame.table as i32);
        }
        for i in 0..self.body.slots.len() {
            let value = self.fixed.iter().find(|v| self.body.code[**v] == Ins::Slot(i));
            let r = value.and_then(|&v| self.fixed(v)).unwrap_or(0);
            asm.vector(op::BROADCAST, r, 0, at(RAX, 4 * i), None);
            asm.vector(op::STORE, r, 0, at(RDI, self.frame.slot(i)), None);
        }
        (0..self.lanes)
            .for_each(|i| self.let_begin(asm, i, at(RDI, self.frame.init + self.frame.vector * i)));
    }

    /// Lets accumulators begin with these numbers, one for each.
    pub fn start(&self, asm: &mut Assembler, with: &[f32]) {
        for i in 0..self.lanes {
            let number = with[i * with.len() / self.lanes];
            let from = Rm::Pool(asm.constant(&number.to_le_bytes().repeat(asm.width.lanes())));
            self.let_begin(asm, i, from);
        }
    }

    fn let_begin(&self, asm: &mut Assembler, i: usize, from: Rm) {
        let r = self.pin(i).unwrap_or(0);
        asm.vector(op::LOAD, r, 0, from, None);
        if self.pin(i).is_none() {
            asm.vector(op::STORE, r, 0, at(RDI, self.frame.accs + self.frame.vector * i), None);
        }
    }

    /// Prefetches for a group of columns.
    pub fn prefetch(&self, asm: &mut Assembler, options: &LoopOptions) {
        for (i, &bytes) in options.ahead.iter().enumerate().filter(|(i, b)| **b > 0 && *i < self.held) {
            let width = self.body.streams[i].width;
            for line in (0..options.group * width).step_by(64) {
                asm.prefetch(POINTERS[i], width as u8, (bytes + line) as i32);
            }
        }
    }

    /// Stores the accumulators, and goes on with the next row if there is one.
    pub fn end(&self, asm: &mut Assembler, steps: &[i32], top: usize) {
        let Frame { vector, left, table, lanes, accs, .. } = self.frame;
        if self.lanes > 0 {
            asm.load_pointer(RAX, RDI, lanes as i32);
        }
        for i in 0..self.lanes {
            let r = self.pin(i).unwrap_or(0);
            if self.pin(i).is_none() {
                asm.vector(op::LOAD, r, 0, at(RDI, accs + vector * i), None);
            }
            asm.vector(op::STORE, r, 0, at(RAX, vector * i), None);
        }
        let done = asm.count_down(left as i32);
        let numbers = [(table, 4 * self.body.slots.len()), (lanes, vector * self.lanes)];
        numbers.into_iter().filter(|n| n.1 > 0).for_each(|(at, n)| asm.add_to(at as i32, n as i32));
        Self::step(asm, steps);
        asm.jump(top);
        asm.arrive(done);
    }

    /// Moves the pointers of streams on by so many bytes.
    pub fn step(asm: &mut Assembler, steps: &[i32]) {
        for (i, &step) in steps.iter().enumerate().filter(|(_, step)| **step != 0) {
            asm.add_to(8 * i as i32, step);
        }
    }
}

fn at(base: Gpr, byte: usize) -> Rm {
    Rm::At { base, scale: 0, disp: byte as i32 }
}

/// The place of the vector of a value that is the same for all columns, if it may be at any address.
pub(super) fn same_at(asm: &mut Assembler, body: &Body, frame: Frame, v: Value) -> Option<Rm> {
    Some(match body.code[v] {
        Ins::Num(bits) => Rm::Pool(asm.constant(&bits.to_le_bytes().repeat(asm.width.lanes()))),
        Ins::Eight(table) => {
            let bytes = table.map(u32::to_le_bytes).concat();
            Rm::Pool(asm.constant(&bytes.repeat(asm.width.lanes() / table.len())))
        }
        Ins::Slot(i) => at(RDI, frame.slot(i)),
        _ => return None,
    })
}

/// These values, those first that are read most often.
pub(super) fn often(body: &Body) -> Vec<Value> {
    let mut uses = vec![0; body.code.len()];
    body.code.iter().flat_map(Ins::args).for_each(|v| uses[v] += 1);
    let lies = |v: &Value| matches!(body.code[*v], Ins::Num(_) | Ins::Eight(_) | Ins::Slot(_));
    let mut values: Vec<Value> = (0..body.code.len()).filter(|v| uses[*v] > 0).filter(lies).collect();
    values.sort_by_key(|&v| std::cmp::Reverse(uses[v]));
    values
}
