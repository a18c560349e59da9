//! Compiles a checked program: cuts its body into phases, makes loops over tiles of it, and gives registers their places.
//!
//! The body is cut at its reductions: what depends on a reduction waits for the phase after it. Row scalars are computed
//! before each phase, for all rows of a tile at once. If a tile holds whole rows, vectors stay in their registers from
//! phase to phase (`keep`); otherwise each phase computes what it needs again, from memory.

use super::ops::{Fold, Map, Move, Table, Ty};
use super::source::Source;
use headwater_core::row::{Instr, Reduce};

/// Number of a register of the compiled code.
pub(super) type Reg = usize;

/// One operation on a tile, or, in scalar code, on one number for each row of a tile.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// Reads an operand. `alias`: its memory may stand for the register where it is laid out like one.
    Load { operand: usize, f: Move, out: Reg, alias: bool },
    /// The offsets of a counter.
    Count { operand: usize, out: Reg },
    /// Computes. `direct`: in the memory of this operand, where the result is stored anyway, if it is laid out like a tile.
    Map { f: Map, args: [Reg; 3], out: Reg, direct: Option<usize> },
    /// Spreads a row scalar over the tile.
    Expand { from: Reg, out: Reg },
    /// Folds a register into the accumulators of a reduction.
    Fold { fold: usize, from: Reg },
    /// Adds a register to a column sum.
    Sum { sum: usize, from: Reg },
    /// Writes a register.
    Store { operand: usize, f: Move, from: Reg },
}

impl Op {
    fn args(&self) -> impl Iterator<Item = Reg> {
        let list = match *self {
            Op::Load { .. } | Op::Count { .. } => [usize::MAX; 3],
            Op::Map { args, .. } => args,
            Op::Expand { from, .. }
            | Op::Fold { from, .. }
            | Op::Sum { from, .. }
            | Op::Store { from, .. } => [from, usize::MAX, usize::MAX],
        };
        list.into_iter().filter(|&r| r != usize::MAX)
    }

    fn out(&self) -> Option<Reg> {
        match *self {
            Op::Load { out, .. } | Op::Count { out, .. } | Op::Map { out, .. } | Op::Expand { out, .. } => {
                Some(out)
            }
            _ => None,
        }
    }
}

/// A register: its type and which memory holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Register {
    pub ty: Ty,
    pub kind: Kind,
}

/// What a register holds, and which slot it has among those of its kind and size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// A number for each row.
    Scalar,
    /// A number for each element of a tile; slots are used again.
    Vector(usize),
    /// One number everywhere: filled once, as long as a vector.
    Constant([u8; 8]),
}

/// A reduction over the columns.
#[derive(Clone, Debug)]
pub(super) struct Folding {
    pub op: Reduce,
    pub ty: Ty,
    /// One accumulator for each slow index, and for each fast one.
    pub fast: Fold,
    pub slow: Fold,
    /// From accumulators to the register.
    pub finish: Move,
    pub phase: usize,
    pub out: Reg,
}

/// A sum over the rows.
#[derive(Clone, Debug)]
pub(super) struct Summing {
    pub operand: usize,
    pub ty: Ty,
    pub fold: Fold,
    /// From accumulators to memory.
    pub store: Move,
}

/// A program as code.
#[derive(Debug, Default)]
pub(super) struct Code {
    /// On row scalars: before each phase, and after the last.
    pub scalar: Vec<Vec<Op>>,
    /// On tiles, of each phase.
    pub vector: Vec<Vec<Op>>,
    pub regs: Vec<Register>,
    pub folds: Vec<Folding>,
    pub sums: Vec<Summing>,
    /// Number of vector slots of 1, 4 and 8 bytes an element.
    pub slots: [usize; 3],
}

/// Index into [`Code::slots`].
pub(super) fn slot_class(ty: Ty) -> usize {
    match ty.size() {
        1 => 0,
        4 => 1,
        _ => 2,
    }
}

impl Code {
    /// Bytes of vector registers for each element of a tile.
    pub fn width(&self) -> usize {
        let constants = self.regs.iter().filter(|r| matches!(r.kind, Kind::Constant(_)));
        self.slots[0] + 4 * self.slots[1] + 8 * self.slots[2] + constants.map(|r| r.ty.size()).sum::<usize>()
    }
}

/// Makes code of a program. Without `keep`, no vector lives from one phase to the next.
pub(super) fn compile(s: &Source, table: &Table, keep: bool) -> Code {
    let mut c = Compiler {
        s,
        table,
        keep,
        scalar: s.scalars(),
        level: levels(s),
        regs: vec![None; s.program.body.len()],
        expanded: vec![None; s.program.body.len()],
        code: Code::default(),
    };
    c.run();
    c.code
}

/// How many reductions each register waits for, one after the other.
fn levels(s: &Source) -> Vec<usize> {
    let mut level: Vec<usize> = Vec::with_capacity(s.program.body.len());
    for instr in &s.program.body {
        let args = args(instr).map(|r| level[r]).max().unwrap_or(0);
        level.push(args + matches!(instr, Instr::Reduce(..)) as usize);
    }
    level
}

fn args(instr: &Instr) -> impl Iterator<Item = usize> {
    let list = match *instr {
        Instr::Unary(_, a)
        | Instr::Cast(_, a)
        | Instr::Reduce(_, a)
        | Instr::Store(_, a)
        | Instr::Columns(_, a) => [Some(a), None, None],
        Instr::Binary(_, a, b) => [Some(a), Some(b), None],
        Instr::Select(c, a, b) => [Some(c), Some(a), Some(b)],
        _ => [None; 3],
    };
    list.into_iter().flatten()
}

struct Compiler<'a> {
    s: &'a Source<'a>,
    table: &'a Table,
    keep: bool,
    scalar: Vec<bool>,
    level: Vec<usize>,
    /// Register of each instruction in the current phase (vectors), or for good (scalars).
    regs: Vec<Option<Reg>>,
    /// The same, spread over the tile, for scalars.
    expanded: Vec<Option<Reg>>,
    code: Code,
}

impl Compiler<'_> {
    fn run(&mut self) {
        let body = &self.s.program.body;
        let live = self.live(|at| matches!(body[at], Instr::Store(..) | Instr::Columns(..)), |_| true);
        let sinks = (0..body.len()).filter(|&at| live[at] && self.is_sink(at));
        let last = sinks.map(|at| self.phase(at)).max().unwrap_or(0);
        // What overwrites an input waits until nobody reads that any more.
        let phase = |c: &Self, at: usize| match body[at] {
            Instr::Store(w, _) if c.s.sites[c.s.program.reads.len() + w].shared => last,
            _ => c.phase(at),
        };
        self.code.scalar = vec![Vec::new(); last + 2];
        self.code.vector = vec![Vec::new(); last + 1];
        for p in 0..=last + 1 {
            for at in (0..body.len()).filter(|&at| live[at]) {
                if self.level[at] == p && self.is_scalar_code(at) {
                    self.emit_scalar(at, p);
                }
            }
            if p > last {
                break;
            }
            let sink = |c: &Self, at: usize| live[at] && c.is_sink(at) && phase(c, at) == p;
            let sinks: Vec<usize> = (0..body.len()).filter(|&at| sink(self, at)).collect();
            let needed: Vec<bool> = if self.keep {
                // Whatever can be computed now and is used at all.
                (0..body.len()).map(|at| live[at] && self.level[at] == p).collect()
            } else {
                (0..body.len()).filter(|&at| !self.scalar[at]).for_each(|at| self.regs[at] = None);
                self.expanded.iter_mut().for_each(|r| *r = None);
                self.live(|at| sinks.contains(&at), |at| !self.scalar[at])
            };
            // Stores over inputs come last of all.
            let late = |at: &usize| matches!(body[*at], Instr::Store(w, _) if self.s.sites[self.s.program.reads.len() + w].shared);
            let (after, within): (Vec<usize>, Vec<usize>) = sinks.into_iter().partition(late);
            for (at, needed) in needed.into_iter().enumerate() {
                if self.is_sink(at) {
                    if within.contains(&at) {
                        self.emit_sink(at, p);
                    }
                } else if needed && !self.is_scalar_code(at) {
                    self.emit_vector(at, p);
                }
            }
            after.into_iter().for_each(|at| self.emit_sink(at, p));
        }
        self.direct();
        self.place();
    }

    /// Instructions that some sink needs, through registers that `through` lets pass.
    fn live(&self, sink: impl Fn(usize) -> bool, through: impl Fn(usize) -> bool) -> Vec<bool> {
        let body = &self.s.program.body;
        let mut live = vec![false; body.len()];
        for at in (0..body.len()).rev() {
            live[at] |= sink(at);
            if live[at] && (sink(at) || through(at)) {
                args(&body[at]).for_each(|a| live[a] = true);
            }
        }
        live
    }

    /// The phase an instruction belongs to: a reduction to that of its argument.
    fn phase(&self, at: usize) -> usize {
        self.level[at] - matches!(self.s.program.body[at], Instr::Reduce(..)) as usize
    }

    /// Whether an instruction ends in tile code: reductions, column sums, stores of vectors.
    fn is_sink(&self, at: usize) -> bool {
        match self.s.program.body[at] {
            Instr::Reduce(..) | Instr::Columns(..) => true,
            Instr::Store(w, _) => self.s.moves[self.s.program.reads.len() + w],
            _ => false,
        }
    }

    fn is_scalar_code(&self, at: usize) -> bool {
        match self.s.program.body[at] {
            Instr::Store(..) => !self.is_sink(at),
            Instr::Reduce(..) | Instr::Columns(..) => false,
            _ => self.scalar[at],
        }
    }

    fn ty(&self, at: usize) -> Ty {
        Ty::of(self.s.classes[at].expect("not a store"), self.s.float)
    }

    fn register(&mut self, ty: Ty, kind: Kind) -> Reg {
        self.code.regs.push(Register { ty, kind });
        self.code.regs.len() - 1
    }

    /// The register of one number everywhere.
    fn constant(&mut self, ty: Ty, value: f64, int: i64) -> Reg {
        let bytes = match ty {
            Ty::F32 => (value as f32).to_bits() as i64,
            Ty::F64 => value.to_bits() as i64,
            Ty::I64 | Ty::Bool => int,
        };
        let register = Register { ty, kind: Kind::Constant(bytes.to_ne_bytes()) };
        match self.code.regs.iter().position(|r| *r == register) {
            Some(r) => r,
            None => self.register(ty, register.kind),
        }
    }

    fn is_constant(&self, r: Reg) -> bool {
        matches!(self.code.regs[r].kind, Kind::Constant(_))
    }

    /// A register as an argument of tile code.
    fn vector(&mut self, at: usize, phase: usize) -> Reg {
        let own = self.regs[at].expect("defined before use");
        if !self.scalar[at] || self.is_constant(own) {
            return own;
        }
        if let Some(r) = self.expanded[at] {
            return r;
        }
        let out = self.register(self.code.regs[own].ty, Kind::Vector(0));
        self.code.vector[phase].push(Op::Expand { from: own, out });
        self.expanded[at] = Some(out);
        out
    }

    fn emit_scalar(&mut self, at: usize, p: usize) {
        if let Instr::Store(w, a) = self.s.program.body[at] {
            let operand = self.s.program.reads.len() + w;
            let from = self.regs[a].expect("defined before use");
            let f = (self.table.store)(self.code.regs[from].ty, self.s.sites[operand].dtype);
            self.code.scalar[p].push(Op::Store { operand, f, from });
            return;
        }
        let arg = |c: &mut Self, a: usize| c.regs[a].expect("defined before use");
        let (reg, op) = self.emit(at, Kind::Scalar, arg);
        self.regs[at] = Some(reg);
        self.code.scalar[p].extend(op);
    }

    fn emit_vector(&mut self, at: usize, p: usize) {
        let arg = |c: &mut Self, a: usize| c.vector(a, p);
        let (reg, op) = self.emit(at, Kind::Vector(0), arg);
        self.regs[at] = Some(reg);
        self.code.vector[p].extend(op);
    }

    /// Register and operation of an instruction; no operation if an existing register serves.
    fn emit(
        &mut self,
        at: usize,
        kind: Kind,
        mut arg: impl FnMut(&mut Self, usize) -> Reg,
    ) -> (Reg, Option<Op>) {
        const NONE: Reg = usize::MAX;
        let ty = self.ty(at);
        let mut map = |c: &mut Self, f: Map, args: [Option<usize>; 3]| {
            let args = args.map(|a| a.map_or(NONE, |a| arg(c, a)));
            let out = c.register(ty, kind);
            (out, Some(Op::Map { f, args, out, direct: None }))
        };
        match self.s.program.body[at] {
            Instr::Load(operand) => {
                let site = self.s.sites[operand];
                let f = (self.table.load)(site.dtype, ty);
                // Bools are normalised to 0 and 1 when loaded; other bits are theirs already.
                let alias = site.dtype == ty.dtype() && ty != Ty::Bool && !site.shared;
                let out = self.register(ty, kind);
                (out, Some(Op::Load { operand, f, out, alias }))
            }
            Instr::Iota(_) => match self.s.counters[at] {
                None => (self.constant(Ty::I64, 0.0, 0), None),
                Some(operand) => {
                    let out = self.register(ty, kind);
                    (out, Some(Op::Count { operand, out }))
                }
            },
            Instr::Float(x) => (self.constant(ty, x, 0), None),
            Instr::Int(x) => (self.constant(ty, 0.0, x), None),
            Instr::Bool(x) => (self.constant(ty, 0.0, x as i64), None),
            Instr::Unary(op, a) => map(self, (self.table.unary)(self.ty(a), op), [Some(a), None, None]),
            Instr::Binary(op, a, b) => {
                map(self, (self.table.binary)(self.ty(a), op), [Some(a), Some(b), None])
            }
            Instr::Select(c, a, b) => map(self, (self.table.select)(ty), [Some(c), Some(a), Some(b)]),
            Instr::Cast(d, a) => {
                let from = self.ty(a);
                // To the very type it is computed in, nothing is to be done.
                if d == from.dtype() {
                    return (arg(self, a), None);
                }
                map(self, (self.table.cast)(from, d, self.s.float), [Some(a), None, None])
            }
            Instr::Reduce(..) | Instr::Store(..) | Instr::Columns(..) => {
                unreachable!("sinks are emitted as such")
            }
        }
    }

    fn emit_sink(&mut self, at: usize, p: usize) {
        match self.s.program.body[at] {
            Instr::Reduce(op, a) => {
                let from = self.vector(a, p);
                let ty = self.code.regs[from].ty;
                let out = self.register(ty, Kind::Scalar);
                self.regs[at] = Some(out);
                self.code.vector[p].push(Op::Fold { fold: self.code.folds.len(), from });
                self.code.folds.push(Folding {
                    op,
                    ty,
                    fast: (self.table.fold_fast)(ty, op),
                    slow: (self.table.fold_slow)(ty, op),
                    finish: (self.table.store)(ty.accumulator(), ty.dtype()),
                    phase: p,
                    out,
                });
            }
            Instr::Columns(w, a) => {
                let from = self.vector(a, p);
                let (ty, operand) = (self.code.regs[from].ty, self.s.program.reads.len() + w);
                self.code.vector[p].push(Op::Sum { sum: self.code.sums.len(), from });
                self.code.sums.push(Summing {
                    operand,
                    ty,
                    fold: (self.table.fold_slow)(ty, Reduce::Sum),
                    store: (self.table.store)(ty.accumulator(), self.s.sites[operand].dtype),
                });
            }
            Instr::Store(w, a) => {
                let operand = self.s.program.reads.len() + w;
                let from = self.vector(a, p);
                let f = (self.table.store)(self.code.regs[from].ty, self.s.sites[operand].dtype);
                self.code.vector[p].push(Op::Store { operand, f, from });
            }
            _ => unreachable!("not a sink"),
        }
    }

    /// Lets results be computed where they are stored, if the forms agree and nothing read lies there.
    fn direct(&mut self) {
        for ops in &mut self.code.vector {
            let stores: Vec<(usize, Reg)> = ops
                .iter()
                .filter_map(|op| match *op {
                    Op::Store { operand, from, .. } => Some((operand, from)),
                    _ => None,
                })
                .collect();
            for op in ops {
                let Op::Map { out, direct, .. } = op else { continue };
                let ty = self.code.regs[*out].ty;
                let fits = |o: usize| self.s.sites[o].dtype == ty.dtype() && !self.s.sites[o].shared;
                // One destination alone; another store of the same register copies from there.
                *direct = stores.iter().find(|(o, r)| r == out && fits(*o)).map(|(o, _)| *o);
                let again = |o: usize| stores.iter().filter(|(p, _)| *p == o).count() > 1;
                if direct.is_some_and(again) {
                    *direct = None;
                }
            }
        }
    }

    /// Gives vectors their slots; a slot is free again after the last use of its register.
    fn place(&mut self) {
        let Code { vector, regs, slots, .. } = &mut self.code;
        let mut place = |ops: &[&Op]| {
            let mut last_use = vec![0; regs.len()];
            for (i, op) in ops.iter().enumerate() {
                op.args().chain(op.out()).for_each(|r| last_use[r] = i);
            }
            let mut free: [Vec<usize>; 3] = Default::default();
            let mut made = [0; 3];
            for (i, op) in ops.iter().enumerate() {
                // The result's slot is taken before those of the arguments are given back: no loop works in place.
                if let Some(r) = op.out()
                    && let Kind::Vector(_) = regs[r].kind
                {
                    let class = slot_class(regs[r].ty);
                    let slot = free[class].pop().unwrap_or_else(|| {
                        made[class] += 1;
                        made[class] - 1
                    });
                    regs[r].kind = Kind::Vector(slot);
                }
                let mut ended: Vec<Reg> = op.args().chain(op.out()).filter(|&r| last_use[r] == i).collect();
                ended.sort_unstable();
                ended.dedup();
                for r in ended {
                    if let Kind::Vector(slot) = regs[r].kind {
                        free[slot_class(regs[r].ty)].push(slot);
                    }
                }
            }
            slots.iter_mut().zip(made).for_each(|(s, m)| *s = (*s).max(m));
        };
        if self.keep {
            place(&vector.iter().flatten().collect::<Vec<_>>());
        } else {
            vector.iter().for_each(|ops| place(&ops.iter().collect::<Vec<_>>()));
        }
    }
}
