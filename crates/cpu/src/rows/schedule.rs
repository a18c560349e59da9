//! Schedules a checked program: cuts its body into phases, makes operations on tiles, and assigns slots to
//! registers.
//!
//! The body is cut at its reductions: values that depend on one are computed in the phase after it. Row
//! scalars are computed before each phase, for all rows of a tile at once, or row by row where machine code
//! does whole rows. Values that several phases need are recomputed in each if that takes two operations at
//! most. Else they are kept for the whole row (`keep`), unless rows are too long for that.

use super::check::Checked;
use super::code::{Code, Folding, Kind, Op, Reg, Register, Summing, What, slot_class};
use super::interpret::dispatch::Table;
use super::space::count;
use super::types::{Map, Ty};
use headwater_core::Class;
use headwater_core::expr::Binary;
use headwater_core::row::{Instr, Reduce};

/// Fewer columns than this do not pay for a call for each row: row scalars are then spread over the tile.
const SPREAD: usize = 64;

/// Makes code of a program. Without `keep`, no vector lives from one phase to the next; with `stream`,
/// results pass by the caches.
pub(super) fn schedule(s: &Checked, table: &Table, keep: bool, stream: bool) -> Code {
    let scalar = s.scalars();
    let mut c = Compiler {
        s,
        table,
        keep,
        stream,
        rowwise: !s.across() && count(&s.cols) >= SPREAD,
        scalar,
        uses: s.program.uses(),
        level: s.program.levels(),
        regs: vec![None; s.program.body.len()],
        expanded: vec![None; s.program.body.len()],
        kept: vec![false; s.program.body.len()],
        code: Code::default(),
    };
    c.run();
    c.code
}

/// Instructions that make one operation together with what they use.
#[derive(Clone, Copy)]
enum Form {
    Plain,
    /// The sum of a product.
    Dot(usize, usize),
    /// The sum of `select(column == index, from, 0)`.
    Lookup {
        from: usize,
        index: usize,
    },
    /// `select(column == index, op(from, with), from)`.
    Patch {
        op: Binary,
        from: usize,
        with: usize,
        index: usize,
    },
}

struct Compiler<'a> {
    s: &'a Checked<'a>,
    table: &'a Table,
    keep: bool,
    stream: bool,
    /// Rows are consecutive and are long enough for a call for each.
    rowwise: bool,
    scalar: Vec<bool>,
    /// The number of uses of each instruction.
    uses: Vec<usize>,
    level: Vec<usize>,
    /// Register of each instruction in the current phase (vectors), or for good (scalars, kept vectors).
    regs: Vec<Option<Reg>>,
    /// The same, spread over the tile, for scalars.
    expanded: Vec<Option<Reg>>,
    /// Vectors kept from their first phase to later ones.
    kept: Vec<bool>,
    code: Code,
}

impl Compiler<'_> {
    fn run(&mut self) {
        let body = &self.s.program.body;
        let live = self.live();
        let shared = |at: usize| matches!(body[at], Instr::Store(w, _) if self.s.sites[self.s.program.reads.len() + w].shared);
        let sinks: Vec<usize> = (0..body.len()).filter(|&at| live[at] && self.is_sink(at)).collect();
        let last = sinks.iter().map(|&at| self.phase(at)).max().unwrap_or(0);
        // A store that overwrites an input waits until nobody reads that any more, and comes last of all.
        let phase: Vec<usize> =
            (0..body.len()).map(|at| if shared(at) { last } else { self.phase(at) }).collect();
        let late: Vec<bool> = (0..body.len()).map(shared).collect();
        let needed = self.needed(&sinks, &phase, last + 1);
        self.code.scalar = vec![Vec::new(); last + 2];
        self.code.vector = vec![Vec::new(); last + 1];
        for p in 0..=last + 1 {
            for at in (0..body.len()).filter(|&at| live[at]) {
                if self.level[at] == p && self.is_scalar_code(at) && !late[at] {
                    self.emit_scalar(at, p);
                }
            }
            let Some(needed) = needed.get(p).filter(|_| p <= last) else { break };
            for at in (0..body.len()).filter(|&at| !self.scalar[at] && !self.kept[at]) {
                self.regs[at] = None;
            }
            self.expanded.iter_mut().for_each(|r| *r = None);
            for at in 0..body.len() {
                let done = self.kept[at] && self.regs[at].is_some();
                if needed[at] && !done && !self.is_sink(at) {
                    self.emit_vector(at, p);
                } else if live[at] && self.is_sink(at) && phase[at] == p && !late[at] {
                    self.emit_sink(at, p);
                }
            }
            for at in sinks.iter().copied().filter(|&at| late[at] && phase[at] == p) {
                self.emit_sink(at, p);
            }
        }
        let numbers: Vec<usize> = (0..body.len()).filter(|&at| late[at] && self.is_scalar_code(at)).collect();
        numbers.into_iter().for_each(|at| self.emit_scalar(at, last + 1));
        self.direct();
        self.place();
    }

    /// Instructions that some result needs.
    fn live(&self) -> Vec<bool> {
        let body = &self.s.program.body;
        let mut live = vec![false; body.len()];
        for at in (0..body.len()).rev() {
            live[at] |= matches!(body[at], Instr::Store(..) | Instr::Columns(..));
            if live[at] {
                body[at].args().for_each(|a| live[a] = true);
            }
        }
        live
    }

    /// Which vectors each phase needs, by phase and instruction; decides which of them are kept.
    fn needed(&mut self, sinks: &[usize], phase: &[usize], phases: usize) -> Vec<Vec<bool>> {
        let body = &self.s.program.body;
        let mut needed = vec![vec![false; body.len()]; phases];
        let mut cost = vec![0usize; body.len()];
        for at in (0..body.len()).filter(|&at| !self.scalar[at]) {
            let own = match body[at] {
                Instr::Load(o) => (self.s.sites[o].dtype != self.ty(at).dtype()) as usize,
                _ if self.nothing(at) => 0,
                Instr::Unary(..) => 2,
                _ => 1,
            };
            // Saturates: the number of paths can be exponential.
            cost[at] = body[at].args().fold(own, |sum, a| sum.saturating_add(cost[a]));
        }
        for at in (0..body.len()).rev() {
            let mut when: Vec<usize> = if sinks.contains(&at) {
                vec![phase[at]]
            } else if self.scalar[at] || self.is_sink(at) {
                continue;
            } else {
                (0..phases).filter(|&p| needed[p][at]).collect()
            };
            if self.keep && when.len() > 1 && cost[at] > 2 && !self.nothing(at) {
                self.kept[at] = true;
                when.truncate(1);
            }
            for a in self.vector_args(at) {
                when.iter().for_each(|&p| needed[p][a] = true);
            }
        }
        needed
    }

    /// Vectors that the operation of an instruction reads.
    fn vector_args(&self, at: usize) -> Vec<usize> {
        let list = match self.form(at) {
            Form::Plain => self.s.program.body[at].args().collect(),
            Form::Dot(a, b) => vec![a, b],
            Form::Lookup { from, .. } | Form::Patch { from, .. } => vec![from],
        };
        list.into_iter().filter(|&a| !self.scalar[a]).collect()
    }

    /// The value that an instruction and those before it compute jointly.
    fn form(&self, at: usize) -> Form {
        let body = &self.s.program.body;
        let float = |at: usize| self.s.classes[at] == Some(Class::Float);
        if self.s.across() {
            return Form::Plain;
        }
        match body[at] {
            Instr::Reduce(Reduce::Sum, a) if float(a) && !self.scalar[a] => match body[a] {
                Instr::Binary(Binary::Mul, x, y)
                    if self.uses[a] == 1 && !self.scalar[x] && !self.scalar[y] =>
                {
                    Form::Dot(x, y)
                }
                Instr::Select(c, from, zero) if body[zero] == Instr::Float(0.0) => match self.one_column(c) {
                    Some(index) => Form::Lookup { from, index },
                    None => Form::Plain,
                },
                _ => Form::Plain,
            },
            Instr::Select(c, a, from) if float(a) && !self.scalar[from] => {
                let Some(index) = self.one_column(c) else { return Form::Plain };
                match body[a] {
                    Instr::Binary(op, x, with) if x == from && self.scalar[with] && self.spreads(op) => {
                        Form::Patch { op, from, with, index }
                    }
                    _ => Form::Plain,
                }
            }
            _ => Form::Plain,
        }
    }

    /// The row scalar that a truth value compares the number of the column with.
    fn one_column(&self, cond: usize) -> Option<usize> {
        let body = &self.s.program.body;
        let Instr::Binary(Binary::Eq, a, b) = body[cond] else { return None };
        let counts = |at: usize| {
            let [col] = &self.s.cols[..] else { return false };
            let still = |o: usize| self.s.rows.iter().all(|r| r.steps[o] == 0);
            self.s.counters[at].is_some_and(|o| col.steps[o] == 1 && still(o))
        };
        match (counts(a), counts(b)) {
            (true, _) if self.scalar[b] => Some(b),
            (_, true) if self.scalar[a] => Some(a),
            _ => None,
        }
    }

    /// True if there is a loop for this function of a vector and one number.
    fn spreads(&self, op: Binary) -> bool {
        (self.table.spread)(self.s.float, op, 1).is_some()
    }

    /// True if an instruction is no operation: a conversion to the type computed in.
    fn nothing(&self, at: usize) -> bool {
        matches!(self.s.program.body[at], Instr::Cast(d, a) if d == self.ty(a).dtype())
    }

    /// The phase an instruction belongs to: a reduction to that of its argument.
    fn phase(&self, at: usize) -> usize {
        self.level[at] - matches!(self.s.program.body[at], Instr::Reduce(..)) as usize
    }

    /// True if an instruction ends in tile code: reductions, column sums, stores of vectors.
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
        let bits = match ty {
            Ty::F32 => (value as f32).to_bits() as i64,
            Ty::F64 => value.to_bits() as i64,
            Ty::I64 | Ty::Bool => int,
        };
        let new = bits.to_ne_bytes();
        let same =
            |r: &Register| r.ty == ty && matches!(r.kind, Kind::Constant { bytes, .. } if bytes == new);
        match self.code.regs.iter().position(same) {
            Some(r) => r,
            None => self.register(ty, Kind::Constant { bytes: new, wide: false }),
        }
    }

    fn own(&self, at: usize) -> Reg {
        self.regs[at].expect("defined before use")
    }

    /// A register as an argument of tile code.
    fn vector(&mut self, at: usize, phase: usize) -> Reg {
        let own = self.own(at);
        if !self.scalar[at] {
            return own;
        }
        if let Kind::Constant { wide, .. } = &mut self.code.regs[own].kind {
            *wide = true;
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
            let from = self.own(a);
            let f = (self.table.store)(self.code.regs[from].ty, self.s.sites[operand].dtype);
            self.code.scalar[p].push(Op::Store { operand, f, from });
            return;
        }
        let (reg, op) = self.emit(at, Kind::Scalar, |c: &mut Self, a: usize| c.own(a));
        self.regs[at] = Some(reg);
        self.code.scalar[p].extend(op);
    }

    fn emit_vector(&mut self, at: usize, p: usize) {
        let kind = if self.kept[at] { Kind::Kept } else { Kind::Vector(0) };
        let (reg, op) = match self.emit_rowwise(at, p, kind) {
            Some((reg, op)) => (reg, Some(op)),
            None => self.emit(at, kind, |c: &mut Self, a: usize| c.vector(a, p)),
        };
        self.regs[at] = Some(reg);
        self.code.vector[p].extend(op);
    }

    /// Register and operation of an instruction that takes a row scalar as it is.
    fn emit_rowwise(&mut self, at: usize, p: usize, kind: Kind) -> Option<(Reg, Op)> {
        let ty = self.ty(at);
        if let Form::Patch { op, from, with, index } = self.form(at) {
            let f = (self.table.spread)(ty, op, 1)?;
            let (from, with, index) = (self.own(from), self.own(with), self.own(index));
            let out = self.register(ty, kind);
            return Some((out, Op::Patch { f, op, from, with, index, out }));
        }
        if !self.rowwise {
            return None;
        }
        match self.s.program.body[at] {
            Instr::Binary(op, a, b) if self.scalar[a] != self.scalar[b] => {
                let one = self.scalar[b] as usize;
                let f = (self.table.spread)(self.ty(a), op, one)?;
                let args = [self.own(a), self.own(b)];
                let out = self.register(ty, kind);
                Some((out, Op::Spread { f, op, args, one, out, direct: None }))
            }
            Instr::Select(c, a, b) if self.scalar[c] => {
                let (cond, args) = (self.own(c), [self.vector(a, p), self.vector(b, p)]);
                let out = self.register(ty, kind);
                Some((out, Op::Choose { cond, args, out }))
            }
            _ => None,
        }
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
        let mut map = |c: &mut Self, f: Map, what: What, args: [Option<usize>; 3]| {
            let args = args.map(|a| a.map_or(NONE, |a| arg(c, a)));
            let out = c.register(ty, kind);
            (out, Some(Op::Map { f, what, args, out, direct: None }))
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
            Instr::Unary(op, a) => {
                map(self, (self.table.unary)(self.ty(a), op, ty), What::Unary(op), [Some(a), None, None])
            }
            Instr::Binary(op, a, b) => {
                map(self, (self.table.binary)(self.ty(a), op), What::Binary(op), [Some(a), Some(b), None])
            }
            Instr::Select(c, a, b) => {
                map(self, (self.table.select)(ty), What::Select, [Some(c), Some(a), Some(b)])
            }
            Instr::Cast(_, a) if self.nothing(at) => (arg(self, a), None),
            Instr::Cast(d, a) => map(
                self,
                (self.table.cast)(self.ty(a), d, self.s.float),
                What::Cast(d),
                [Some(a), None, None],
            ),
            Instr::Reduce(..) | Instr::Store(..) | Instr::Columns(..) => {
                unreachable!("sinks are emitted as such")
            }
        }
    }

    fn emit_sink(&mut self, at: usize, p: usize) {
        match self.s.program.body[at] {
            Instr::Reduce(op, a) => {
                let fold = self.code.folds.len();
                let ty = self.ty(a);
                let emitted = match self.form(at) {
                    Form::Dot(x, y) => {
                        Op::Dot { fold, f: (self.table.dot)(ty), args: [self.own(x), self.own(y)] }
                    }
                    Form::Lookup { from, index } => {
                        Op::Lookup { fold, from: self.own(from), index: self.own(index) }
                    }
                    _ => Op::Fold { fold, from: self.vector(a, p) },
                };
                let out = self.register(ty, Kind::Scalar);
                self.regs[at] = Some(out);
                self.code.vector[p].push(emitted);
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
                    fold: (self.table.sum_slow)(ty),
                    store: (self.table.store)(ty.accumulator(), self.s.sites[operand].dtype),
                });
            }
            Instr::Store(w, a) => {
                let operand = self.s.program.reads.len() + w;
                let from = self.vector(a, p);
                // A result in the place of what was read is in the caches already.
                let past = self.stream && !self.s.sites[operand].shared;
                let store = if past { self.table.stream } else { self.table.store };
                let f = store(self.code.regs[from].ty, self.s.sites[operand].dtype);
                self.code.vector[p].push(Op::Store { operand, f, from });
            }
            _ => unreachable!("not a sink"),
        }
    }

    /// Computes results in place in the destination if the types match and no input aliases it.
    fn direct(&mut self) {
        if self.stream {
            return;
        }
        for ops in &mut self.code.vector {
            let stores: Vec<(usize, Reg)> = ops
                .iter()
                .filter_map(|op| match *op {
                    Op::Store { operand, from, .. } => Some((operand, from)),
                    _ => None,
                })
                .collect();
            for op in ops {
                let (Op::Map { out, direct, .. } | Op::Spread { out, direct, .. }) = op else { continue };
                let Register { ty, kind } = self.code.regs[*out];
                let fits = |o: usize| self.s.sites[o].dtype == ty.dtype() && !self.s.sites[o].shared;
                // One destination alone; another store of the same register copies from there.
                *direct = stores.iter().find(|(o, r)| r == out && fits(*o)).map(|(o, _)| *o);
                let again = |o: usize| stores.iter().filter(|(p, _)| *p == o).count() > 1;
                if kind == Kind::Kept || direct.is_some_and(again) {
                    *direct = None;
                }
            }
        }
    }

    /// Gives vectors their slots; a slot is free again after the last use of its register.
    fn place(&mut self) {
        let Code { vector, regs, slots, .. } = &mut self.code;
        for ops in vector {
            let mut last_use = vec![0; regs.len()];
            for (i, op) in ops.iter().enumerate() {
                op.args().chain(op.out()).for_each(|r| last_use[r] = i);
            }
            let mut free: [Vec<usize>; 3] = Default::default();
            let mut made = [0; 3];
            for (i, op) in ops.iter().enumerate() {
                // The result's slot is taken before those of the arguments are given back: no loop works in
                // place.
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
        }
    }
}
