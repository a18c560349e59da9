//! The body of a kernel for a row program: its operands, where they come from, and what becomes of the
//! values.

use super::halves::halves;
use super::register::{Register, WORD, limits};
use super::rewrite::coarse;
use super::route::{self, Extent, Route, Staged, Way};
use super::space::{IterationSpace, Tile, words};
use super::table::Shape;
use super::value::{Held, Ty, VectorUnit};
use super::writer::{Half, Writer};
use crate::chip::Arch;
use crate::kernel::{Buf, BufferId, Cast, Compare, Elem, Gather, Gm, Over, Round, Scalar, Scaled, ScaledOp};
use crate::lower::Refusal;
use headwater_core::DType;
use headwater_core::axes::Axis;
use headwater_core::row::{Instr, RowProgram};
use std::collections::HashMap;

/// An operand in memory, or a counter.
pub(super) struct TileOperand {
    pub dtype: DType,
    /// Type of its words.
    pub elem: Elem,
    /// Its beginning; counters have no memory.
    pub gm: Option<Gm>,
    pub extent: Extent,
    pub route: Route,
    pub way: Way,
    /// Offsets of the gather of a staged route, or a counter's values.
    pub table: Option<Buf>,
    /// Offsets of the last block of each run.
    pub tail: Option<Buf>,
    /// True if it is the same in all tiles.
    pub fixed: bool,
}

/// A result that is complete and waits for its copy.
pub(super) struct Outgoing {
    pub operand: usize,
    pub buf: Buf,
    /// The last block of each run, where it is written by itself.
    pub tail: Option<Buf>,
}

/// A kernel's body.
pub(super) struct Body<'a> {
    pub u: VectorUnit,
    pub p: &'a RowProgram,
    pub space: &'a IterationSpace,
    pub operands: Vec<TileOperand>,
    pub regs: Vec<Option<Register>>,
    /// Halves of a row of banks that hold the values.
    pub halves: Vec<Half>,
    /// Functions that need 16 bits alone.
    pub coarse: Vec<bool>,
    /// Values that stay.
    pub kept: Vec<bool>,
    /// Indices of axes outside the tile, and of the first of the tile on the leading axis.
    pub position: Vec<(Scalar, Axis)>,
    /// Indices of the leading axis in the tile in hand.
    pub lead: Scalar,
    /// Columns of the tile in hand, of one row.
    pub count: Scalar,
    /// The first of them.
    pub column: Scalar,
    /// True if column sums stand for whole rows, otherwise for a tile.
    pub long_sums: bool,
    /// Operands that have been read into UB.
    pub landed: Vec<Option<Buf>>,
    pub outgoing: Vec<Outgoing>,
    /// Column sums by result.
    pub accs: Vec<Option<Buf>>,
    /// Buffers of operands that are prefetched and of results that are written back asynchronously: by
    /// operand, set, and whether it is for the last blocks of runs.
    pub boxes: HashMap<(usize, usize, bool), Buf>,
    /// The set that results are written for; none where the vector unit waits for each.
    pub set: Option<usize>,
}

/// Type of the words of an operand; `None` for f64.
pub(super) const fn elem(dtype: DType) -> Option<Elem> {
    if matches!(dtype, DType::I64) { Some(Elem::I32) } else { Elem::of(dtype) }
}

impl<'a> Body<'a> {
    pub fn new(
        w: Writer,
        p: &'a RowProgram,
        space: &'a IterationSpace,
        tile: &Tile,
        operands: Vec<TileOperand>,
    ) -> Body<'a> {
        let u = VectorUnit::new(w, tile.clone());
        let count = ((tile.most * tile.inner) as u64).into();
        Body {
            u,
            p,
            space,
            landed: vec![None; operands.len()],
            operands,
            regs: vec![None; p.body.len()],
            halves: halves(p),
            coarse: coarse(p),
            kept: vec![false; p.body.len()],
            position: Vec::new(),
            lead: (tile.most as u64).into(),
            count,
            column: Scalar::Int(0),
            long_sums: false,
            outgoing: Vec::new(),
            accs: vec![None; p.writes.len()],
            boxes: HashMap::new(),
            set: None,
        }
    }

    /// Tables that operands need, before anything else.
    pub fn tables(&mut self) {
        let mut made: Vec<(Shape, Option<u64>, Buf)> = Vec::new();
        for o in 0..self.operands.len() {
            let operand = &self.operands[o];
            let store = (self.p.reads.len()..self.p.reads.len() + self.p.writes.len()).contains(&o);
            let len = self.u.len(operand.extent);
            let mut wanted: [Option<(Shape, Option<u64>)>; 2] = [None, None];
            if operand.gm.is_none() {
                wanted[0] = Some((self.counted(o), None));
            } else if let Some(Staged { len: room, table }) = &operand.route.staged {
                let words = words(operand.dtype) as u64;
                let bound = if store { len * words } else { *room + 1 - words };
                wanted[0] = Some((table.clone(), Some((bound - 1) * 4)));
            }
            if store && operand.way == Way::Overlapping {
                let block = operand.elem.per_block();
                let rows = operand.route.others.iter().map(|s| (s.size.most, s.local as i64 * 4)).collect();
                wanted[1] = Some((Shape { rows, cols: vec![(block, 4)], pitch: block }, None));
            }
            for (i, wanted) in wanted.into_iter().enumerate() {
                let Some((shape, limit)) = wanted else { continue };
                let known = made.iter().find(|m| m.0 == shape && m.1 == limit).map(|m| m.2);
                let buf = known.unwrap_or_else(|| {
                    let buf = self.u.w.table(&shape, limit);
                    made.push((shape, limit, buf));
                    buf
                });
                let operand = &mut self.operands[o];
                *(if i == 0 { &mut operand.table } else { &mut operand.tail }) = Some(buf);
            }
        }
    }

    /// The part of a counter's values that is the same in all tiles.
    fn counted(&self, o: usize) -> Shape {
        let (rows, cols) = self.operands[o].extent.moves();
        let tile = &self.u.tile;
        let dims = self.space.dims(tile);
        let pick = |row: bool| {
            let own = dims.iter().filter(move |d| d.row == row);
            own.map(|d| (d.most as u64, d.axis.steps[o] as i64)).collect::<Vec<_>>()
        };
        let len = self.u.len(self.operands[o].extent);
        match (rows, cols, tile.grid) {
            (true, true, true) => Shape { rows: pick(true), cols: pick(false), pitch: tile.pitch as u64 },
            (true, false, true) => Shape { rows: Vec::new(), cols: pick(true), pitch: len },
            _ => Shape { rows: Vec::new(), cols: pick(false), pitch: len },
        }
    }

    /// Offset of the tile in hand in an operand, in its words, or the part of a counter that it adds.
    pub fn offset(&mut self, o: usize) -> Scalar {
        let mut sum = Scalar::Int(0);
        for (index, axis) in &self.position {
            if axis.steps[o] != 0 {
                sum = sum + index.clone() * axis.steps[o] as i64;
            }
        }
        match sum {
            Scalar::Int(_) | Scalar::Var(_) => sum,
            sum => self.u.w.k.let_("begin", sum),
        }
    }

    /// A register's value.
    pub fn get(&self, reg: usize) -> Result<Register, Refusal> {
        self.regs[reg].ok_or_else(|| Refusal::new("a value that is not there"))
    }

    /// An operand that has been read, as a value.
    pub fn arrived(&mut self, o: usize) -> Result<Register, Refusal> {
        let Some(buf) = self.landed[o].take() else {
            return Err(Refusal::new("an operand that is not there"));
        };
        let TileOperand { dtype, extent, table, .. } = self.operands[o];
        let room = self.operands[o].route.staged.as_ref().map_or(self.u.len(extent), |s| s.len);
        let wide = match dtype {
            DType::F32 | DType::I32 | DType::I64 => buf,
            _ => {
                let wide = self.u.w.take(Elem::F32, room);
                self.widen_to(wide, buf, room);
                self.u.w.release(buf);
                wide
            }
        };
        let ty = if wide.elem == Elem::F32 { Ty::F32 } else { Ty::I32 };
        let held = match (table, extent) {
            (Some(table), _) => {
                let held = self.gathered(wide, table, extent, ty);
                self.u.w.release(wide);
                held
            }
            (None, Extent::One) => self.u.first_lane(wide),
            (None, _) => Held { buf: wide, extent, ty },
        };
        Ok(match dtype {
            DType::Bool => {
                let bits = self.u.compared_with(held, 0.0f32, Compare::Ne);
                self.u.give(held);
                Register::Held(bits, None)
            }
            DType::U8 | DType::I8 | DType::I16 => {
                let whole = self.u.cast(held, Ty::I32, Round::Rint);
                self.u.give(held);
                Register::Held(whole, Some(limits(dtype)))
            }
            DType::I32 => Register::Held(held, Some(WORD)),
            _ => Register::Held(held, None),
        })
    }

    fn gathered(&mut self, src: Buf, table: Buf, extent: Extent, ty: Ty) -> Held {
        let held = self.u.take(extent, ty);
        let count = self.u.len(extent);
        self.gather(held.buf, src, table, 0.into(), count.into());
        held
    }

    fn gather(&mut self, dst: Buf, src: Buf, table: Buf, base: Scalar, count: Scalar) {
        let offsets = Buf { elem: Elem::U32, ..table }.at(0);
        let src = Buf { elem: dst.elem, ..src }.at(0);
        self.u.w.vector(Gather { dst: dst.at(0), src, offsets, base, count });
    }

    /// A counter's value in the tile in hand.
    pub fn counter(&mut self, at: usize) -> Result<Register, Refusal> {
        let Some(o) = self.space.counters[at] else { return Err(Refusal::new("a counter")) };
        let axes = || self.space.rows.iter().chain(&self.space.cols);
        let reach = |sign: i128| -> i128 {
            axes().map(|a| (a.size as i128 - 1).max(0) * (a.steps[o] as i128 * sign).max(0) * sign).sum()
        };
        let range = (reach(-1), reach(1));
        if range.0 < i32::MIN.into() || range.1 > i32::MAX.into() {
            return Err(Refusal::new("counters beyond 32 bits"));
        }
        let range = Some((range.0 as i64, range.1 as i64));
        let base = self.offset(o);
        let extent = self.operands[o].extent;
        let held = self.u.take(extent, Ty::I32);
        match (extent, self.operands[o].table) {
            (Extent::One, _) | (_, None) => self.u.fill(held, base),
            (_, Some(table)) => {
                self.u.scaled_to(Scaled::Adds, held, Held { buf: table, extent, ty: Ty::I32 }, base)
            }
        }
        Ok(Register::Held(held, range))
    }

    /// Widens `len` elements to f32: 16-bit floats, and bytes by way of f16, which has them exactly.
    pub fn widen_to(&mut self, dst: Buf, src: Buf, len: u64) {
        let cast = |u: &mut VectorUnit, dst: Buf, src: Buf| {
            let src =
                if src.elem.size() < dst.elem.size() { src.at(0).strided(1, 4) } else { src.at(0).into() };
            let over = Over::count(len);
            u.w.vector(Cast { dst: dst.at(0).into(), src, round: Round::None, scale: None, over });
        };
        if src.elem.size() == 1 {
            let half = self.u.w.take(Elem::F16, len);
            cast(&mut self.u, half, src);
            cast(&mut self.u, dst, half);
            self.u.w.release(half);
        } else {
            cast(&mut self.u, dst, src);
        }
    }

    /// `len` elements of f32 as a narrower type in `to`, or in a buffer of its own: to nearest, ties to even.
    pub fn narrowed(&mut self, src: Buf, len: u64, dtype: DType, to: Option<Buf>) -> Buf {
        let (elem, round) = match (dtype, self.u.arch()) {
            (DType::BF16, _) => (Elem::BF16, Round::Rint),
            (DType::I16, _) => (Elem::I16, Round::Rint),
            (_, Arch::A2) => (Elem::F16, Round::Rint),
            // 310P rounds so where no rounding is named.
            (_, Arch::P310) => (Elem::F16, Round::None),
        };
        let cast = |dst: Buf, src: Buf, round| Cast {
            dst: dst.at(0).strided(1, 4),
            src: src.at(0).into(),
            round,
            scale: None,
            over: Over::count(len),
        };
        if dtype == DType::Bool {
            let half = self.u.w.take(elem, len);
            self.u.w.vector(cast(half, src, round));
            let bytes = to.unwrap_or_else(|| self.u.w.take(Elem::U8, len));
            self.u.w.vector(cast(bytes, half, Round::None));
            self.u.w.release(half);
            return bytes;
        }
        let half = to.unwrap_or_else(|| self.u.w.take(elem, len));
        self.u.w.vector(cast(half, src, round));
        half
    }

    /// Completes a result, to be written when the tile is done.
    pub fn store(&mut self, w: usize, value: Register) -> Result<(), Refusal> {
        let o = self.p.reads.len() + w;
        let extent = self.operands[o].extent;
        let TileOperand { dtype, elem, .. } = self.operands[o];
        if dtype != DType::Bool && elem.size() == 1 {
            return Err(Refusal::new(format!("{dtype} results")));
        }
        if let Register::Held(Held { ty: Ty::I32, .. }, range) = value
            && elem == Elem::I16
            && range.is_none_or(|(low, high)| low < limits(dtype).0 || high > limits(dtype).1)
        {
            return Err(Refusal::new("i16 of wider integers"));
        }
        if let Register::Held(Held { ty: Ty::I32, .. }, None) = value
            && self.operands[o].dtype == DType::I64
        {
            return Err(Refusal::new("i64 that are moved beside other values"));
        }
        let held = self.held(value)?;
        let held = if self.u.tile.rows() == 1 {
            // A single row's values are one number, and its elements columns.
            let (_, cols) = held.extent.moves();
            Held { extent: Extent::new(extent.moves().0, cols), ..held }
        } else {
            held
        };
        if held.extent.join(extent) != extent {
            return Err(Refusal::new("a vector that is stored to one element"));
        }
        let held = match held.ty {
            Ty::Bits => {
                let number = self.u.number(held);
                self.u.give(held);
                number
            }
            // No cast from i32 to i16 keeps all of them; f32 has them all.
            Ty::I32 if elem == Elem::I16 => {
                let number = self.u.cast(held, Ty::F32, Round::None);
                self.u.give(held);
                number
            }
            _ => held,
        };
        let wide = self.u.widened(held, extent);
        self.u.give(held);
        self.send(o, wide.buf);
        self.u.give(wide);
        Ok(())
    }

    /// Completes a result of 32-bit elements in the tile's layout.
    pub fn send(&mut self, o: usize, wide: Buf) {
        let TileOperand { dtype, extent, table, tail, elem, .. } = self.operands[o];
        let len = self.u.len(extent);
        let narrow = elem.size() < 4;
        let room = self.operands[o].route.staged.as_ref().map(|s| s.len);
        let to = self.set.map(|set| self.boxed((o, set, false)));
        let (src, len) = match (table, room) {
            (Some(table), Some(room)) => {
                let source = if dtype == DType::I64 { self.words(wide, len) } else { wide };
                let dst = to.filter(|_| !narrow).map(|to| {
                    self.u.w.retain(to);
                    Buf { elem: wide.elem, ..to }
                });
                let dst = dst.unwrap_or_else(|| self.u.w.take(wide.elem, room));
                self.gather(dst, source, table, 0.into(), room.into());
                if dtype == DType::I64 {
                    self.u.w.release(source);
                }
                (dst, room)
            }
            _ => {
                self.u.w.retain(wide);
                (wide, len)
            }
        };
        let buf = match (narrow, to) {
            (true, to) => self.narrowed(src, len, dtype, to),
            (false, Some(to)) => {
                if src.id != to.id {
                    let ty = if wide.elem == Elem::F32 { Ty::F32 } else { Ty::I32 };
                    let held = |buf: Buf| Held { buf: Buf { elem: wide.elem, ..buf }, extent, ty };
                    self.u.copy_to(held(to), held(src));
                }
                to
            }
            (false, None) => {
                self.u.w.retain(src);
                src
            }
        };
        let tail = tail.map(|table| {
            let route = &self.operands[o].route;
            let block = elem.per_block();
            let count: u64 = route.others.iter().map(|s| s.size.most).product::<u64>() * block;
            let base = (route.run.at(&self.lead) - block) * 4u64;
            let to = self.set.map(|set| self.boxed((o, set, true)));
            let last = match to.filter(|_| !narrow) {
                Some(to) => Buf { elem: src.elem, ..to },
                None => self.u.w.take(src.elem, count),
            };
            self.gather(last, src, table, base, count.into());
            if !narrow {
                return last;
            }
            let short = self.narrowed(last, count.next_multiple_of(64), dtype, to);
            self.u.w.release(last);
            short
        });
        self.u.w.release(src);
        self.outgoing.push(Outgoing { operand: o, buf, tail });
    }

    /// Lower words, followed by the upper ones.
    fn words(&mut self, low: Buf, len: u64) -> Buf {
        let both = self.u.w.take(Elem::I32, len * 2);
        // The upper word of a negative number is -1.
        let steps = [
            (0, low.at(0), Scaled::Adds, 0),
            (len, low.at(0), Scaled::Maxs, -1),
            (len, both.at(len), Scaled::Mins, 0),
        ];
        for (at, src, op, by) in steps {
            let (dst, src, over) = (both.at(at).into(), src.into(), Over::count(len));
            self.u.w.vector(ScaledOp { op, dst, src, scalar: by.into(), over });
        }
        both
    }

    /// Computes instructions in order. Values that no later one of them needs are freed, except for those
    /// that are kept.
    pub fn run(&mut self, list: &[usize]) -> Result<(), Refusal> {
        let mut last = vec![usize::MAX; self.p.body.len()];
        let mut users = vec![0usize; self.p.body.len()];
        for &at in list {
            for r in self.p.body[at].args() {
                last[r] = at;
                users[r] += 1;
            }
        }
        for &at in list {
            self.u.w.half = self.halves[at];
            self.u.coarse = self.coarse[at];
            self.u.spent = self.spent(at, &last);
            self.u.home = (users[at] == 1).then(|| self.home(at, last[at])).flatten();
            match self.p.body[at] {
                Instr::Store(w, r) => {
                    let value = self.get(r)?;
                    self.store(w, value)?;
                }
                Instr::Columns(w, r) => self.sum(w, r)?,
                _ => {
                    let value = self.value(at)?;
                    self.regs[at] = Some(value);
                    if last[at] == usize::MAX && !self.kept[at] {
                        self.drop_reg(at);
                    }
                }
            }
            let mut used: Vec<usize> = self.p.body[at].args().collect();
            used.sort_unstable();
            used.dedup();
            for r in used {
                if last[r] == at && !self.kept[r] {
                    self.drop_reg(r);
                }
            }
        }
        Ok(())
    }

    /// Buffers of operands that are dead after an instruction. Operands as they were read are among them: a
    /// set's buffers are overwritten only when its tile is finished.
    fn spent(&self, at: usize, last: &[usize]) -> Vec<BufferId> {
        let mut out = Vec::new();
        for r in self.p.body[at].args() {
            if let Some(Register::Held(x, _)) = self.regs[r]
                && last[r] == at
                && !self.kept[r]
            {
                let own = 1 + u32::from(self.boxes.values().any(|b| b.id == x.buf.id));
                if self.u.w.holders(x.buf) == own {
                    out.push(x.buf.id);
                }
            }
        }
        out
    }

    /// Buffer of a result that is stored as it is computed.
    fn home(&mut self, at: usize, user: usize) -> Option<Held> {
        let Instr::Store(w, _) = self.p.body[user] else { return None };
        let (o, set) = (self.p.reads.len() + w, self.set?);
        let TileOperand { dtype, extent, .. } = self.operands[o];
        let direct = dtype == DType::F32 && self.operands[o].route.staged.is_none() && !self.kept[at];
        let held = |buf: Buf| Held { buf: Buf { elem: Elem::F32, ..buf }, extent, ty: Ty::F32 };
        direct.then(|| held(self.boxed((o, set, false))))
    }

    /// The half of a row of banks for an operand's buffer: that of the value, or where it is converted the
    /// other one.
    fn half(&self, o: usize) -> Half {
        let value = self.p.body.iter().enumerate().find_map(|(at, i)| match *i {
            Instr::Load(read) if read == o => Some(at),
            Instr::Store(w, r) if self.p.reads.len() + w == o => Some(r),
            _ => None,
        });
        let half = value.map_or(Half::Near, |at| self.halves[at]);
        if self.operands[o].elem.size() < 4 { half.other() } else { half }
    }

    /// A buffer reserved for a set. Computations of the other set's tile never use it, because its copies are
    /// in flight meanwhile.
    pub fn boxed(&mut self, key: (usize, usize, bool)) -> Buf {
        if let Some(buf) = self.boxes.get(&key) {
            return *buf;
        }
        let (o, _, tail) = key;
        let TileOperand { elem, extent, ref route, .. } = self.operands[o];
        let len = match tail {
            false => route.staged.as_ref().map_or(self.u.len(extent), |s| s.len).max(elem.per_repeat()),
            true => {
                let runs: u64 = route.others.iter().map(|s| s.size.most).product();
                (runs * elem.per_block()).next_multiple_of(64)
            }
        };
        let half = self.half(o);
        let before = std::mem::replace(&mut self.u.w.half, half);
        let buf = self.u.w.fresh(elem, len);
        self.u.w.half = before;
        self.boxes.insert(key, buf);
        buf
    }

    /// Gives a register's value up.
    pub fn drop_reg(&mut self, r: usize) {
        if let Some(Register::Held(x, _)) = self.regs[r].take() {
            self.u.give(x);
        }
    }

    fn sum(&mut self, w: usize, r: usize) -> Result<(), Refusal> {
        let Some(acc) = self.accs[w] else { return Err(Refusal::new("column sums of this form")) };
        let value = self.get(r)?;
        let x = self.held(value)?;
        if x.ty != Ty::F32 {
            return Err(Refusal::new("column sums of integers"));
        }
        let full = self.u.widened(x, Extent::Full);
        self.u.give(x);
        if self.u.tile.grid {
            self.u.add_columns(full, acc);
        } else {
            let count = self.count.clone();
            let first = if self.long_sums { self.column.clone() } else { Scalar::Int(0) };
            self.u.add_to(acc.at(first), full.buf.at(0), count);
        }
        self.u.give(full);
        Ok(())
    }
}

/// The operand of a step, with its routes through a tile.
pub(super) fn operand(
    space: &IterationSpace,
    tile: &Tile,
    o: usize,
    dtype: DType,
    gm: Option<Gm>,
    store: bool,
    arch: Arch,
) -> Result<TileOperand, Refusal> {
    let Some(elem) = elem(dtype) else { return Err(Refusal::new("f64")) };
    let extent = route::extent(space, tile, o);
    let words = words(dtype) as u64;
    let (route, way) = match store {
        true => route::store(space, tile, o, extent, elem, words, arch),
        false => (route::load(space, tile, o, extent, elem, words), Way::Whole),
    };
    let (rows, cols) = space.outside(tile);
    let lead = if tile.grid { &space.rows[tile.lead] } else { &space.cols[tile.lead] };
    let still = |a: &Axis| a.steps[o] == 0;
    let fixed = rows.iter().chain(cols).all(still) && (tile.tiles == 1 || still(lead));
    Ok(TileOperand { dtype, elem, gm, extent, route, way, table: None, tail: None, fixed })
}
