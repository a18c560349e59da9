//! Values in UB, and vector instructions over them whatever directions they move in.

use super::route::{Extent, len};
use super::space::Tile;
use super::writer::Writer;
use crate::chip::Arch;
use crate::kernel::{
    Binary, BinaryOp, Brcb, Buf, BufferId, Builder, Cast, Compare, CompareOp, CompareScalar, Duplicate, Elem,
    Instr, Over, Round, Scalar, Scaled, ScaledOp, Select, SelectScalar, Unary, UnaryOp, Vector,
};
use std::collections::HashMap;

/// A value in UB. Truth values are bits, lowest first.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Held {
    pub buf: Buf,
    pub extent: Extent,
    pub ty: Ty,
}

/// Type of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ty {
    F32,
    I32,
    Bits,
}

impl Ty {
    const fn elem(self) -> Elem {
        match self {
            Ty::F32 => Elem::F32,
            Ty::I32 => Elem::I32,
            Ty::Bits => Elem::U8,
        }
    }
}

/// The tile that is worked on, and the vector unit.
pub(super) struct VectorUnit {
    pub w: Writer,
    pub tile: Tile,
    /// Rows of the tile in hand.
    pub rows: Scalar,
    /// Elements of the tile in hand, whole repeats.
    pub full: Scalar,
    /// Row values of which each fills a block.
    spread: HashMap<BufferId, Buf>,
    /// Constants, each in 64 lanes.
    constants: Vec<(u32, Buf)>,
    /// Buffers of operands that are dead after the current instruction.
    pub spent: Vec<BufferId>,
    /// Buffer of a result that the current instruction computes and nothing else needs, and its directions.
    pub home: Option<Held>,
    /// True if the function in hand need not be as exact as f32 (see [`super::rewrite::coarse`]).
    pub coarse: bool,
}

impl VectorUnit {
    pub fn new(w: Writer, tile: Tile) -> VectorUnit {
        let rows = (tile.rows() as u64).into();
        let full = len(&tile, Extent::Full).into();
        let (spread, constants) = (HashMap::new(), Vec::new());
        VectorUnit { w, tile, rows, full, spread, constants, spent: Vec::new(), home: None, coarse: false }
    }

    pub fn arch(&self) -> Arch {
        self.w.k.arch()
    }

    pub fn len(&self, extent: Extent) -> u64 {
        len(&self.tile, extent)
    }

    /// A value without contents.
    pub fn take(&mut self, extent: Extent, ty: Ty) -> Held {
        let elements = self.len(extent);
        self.w.bits |= ty == Ty::Bits;
        let elements = if ty == Ty::Bits { elements.div_ceil(8) } else { elements };
        Held { buf: self.w.take(ty.elem(), elements), extent, ty }
    }

    /// The destination of an elementwise instruction: a result's own buffer, that of an operand that is dead,
    /// or a new one.
    fn target(&mut self, operands: &[Held]) -> Held {
        let extent = operands.iter().fold(Extent::One, |extent, x| extent.join(x.extent));
        let ty = operands.first().map_or(Ty::F32, |x| x.ty);
        if let Some(home) = self.home.filter(|home| (home.extent, home.ty) == (extent, ty)) {
            self.w.retain(home.buf);
            return home;
        }
        let spent = |x: &&Held| (x.extent, x.ty) == (extent, ty) && self.spent.contains(&x.buf.id);
        match operands.iter().find(spent).copied() {
            Some(x) => {
                self.unspread(x);
                self.w.retain(x.buf);
                x
            }
            None => self.take(extent, ty),
        }
    }

    /// Computes with buffers in the other half of a row of banks.
    pub fn apart<T>(&mut self, compute: impl FnOnce(&mut VectorUnit) -> T) -> T {
        self.w.half = self.w.half.other();
        let result = compute(self);
        self.w.half = self.w.half.other();
        result
    }

    /// Gives a value up.
    pub fn give(&mut self, x: Held) {
        if self.w.holders(x.buf) == 1 {
            self.unspread(x);
        }
        self.w.release(x.buf);
    }

    /// The value's buffer gets other contents.
    pub fn unspread(&mut self, x: Held) {
        if let Some(buf) = self.spread.remove(&x.buf.id) {
            self.w.release(buf);
        }
    }

    fn count(&self, extent: Extent) -> Scalar {
        if extent == Extent::Full { self.full.clone() } else { self.len(extent).into() }
    }

    /// Row values, each filling a block.
    fn spread(&mut self, x: Held) -> Buf {
        if let Some(buf) = self.spread.get(&x.buf.id) {
            return *buf;
        }
        let rows = (self.tile.rows() as u64).next_multiple_of(8);
        let buf = self.w.take(x.buf.elem, rows * 8);
        self.w.vector(Brcb { dst: buf.at(0).into(), src: x.buf.at(0), repeat: (rows / 8).into() });
        self.spread.insert(x.buf.id, buf);
        buf
    }

    /// An elementwise instruction whose result has the directions of `dst`, over operands that have them or
    /// fewer.
    pub fn each(&mut self, dst: Held, srcs: &[Held], make: impl Fn(Vector, &[Vector], Over) -> Instr) {
        let view = |x: &Held| Vector::from(x.buf.at(0));
        if srcs.iter().all(|x| x.extent == dst.extent) {
            let over = Over::Count(self.count(dst.extent));
            return self.w.vector(make(view(&dst), &srcs.iter().map(view).collect::<Vec<_>>(), over));
        }
        if srcs.iter().all(|x| x.extent == dst.extent || x.extent == Extent::One) {
            let operands: Vec<Vector> = (srcs.iter())
                .map(|x| if x.extent == dst.extent { view(x) } else { x.buf.at(0).strided(0, 0) })
                .collect();
            let over = Over::repeats(64, self.count(dst.extent) / 64);
            return self.w.vector(make(view(&dst), &operands, over));
        }
        let lanes: Vec<Option<Buf>> =
            srcs.iter().map(|x| (x.extent == Extent::Lanes).then(|| self.spread(*x))).collect();
        if self.tile.by_rows() {
            return self.each_row(dst, srcs, &lanes, make);
        }
        // Chunks of 64 columns, each of all rows at once.
        // A tile of one row has one repeat, and may be longer than a stride reaches.
        let pitch = if self.tile.grid { (self.tile.pitch / 8) as u32 } else { 8 };
        let rows = self.rows.clone();
        let at = |column: &Scalar, mask: u64| {
            let operands: Vec<Vector> = (srcs.iter().zip(&lanes))
                .map(|(x, lanes)| match (x.extent, lanes) {
                    (Extent::Lanes, Some(buf)) => buf.at(0).strided(0, 1),
                    (Extent::Column, _) => x.buf.at(column).strided(1, 0),
                    (Extent::Full, _) => x.buf.at(column).strided(1, pitch),
                    _ => x.buf.at(0).strided(0, 0),
                })
                .collect();
            let over = Over::repeats(mask, rows.clone());
            make(dst.buf.at(column).strided(1, pitch), &operands, over)
        };
        let (whole, rest) = (self.tile.cols as u64 / 64, self.tile.cols as u64 % 64);
        if whole > 4 {
            self.w.order(&at(&Scalar::Int(0), 64));
            self.w.k.for_each("column", 0, whole * 64, 64, |k, column| k.issue(at(&column, 64)));
        } else {
            for chunk in 0..whole {
                let instr = at(&Scalar::from(chunk * 64), 64);
                if chunk == 0 {
                    self.w.order(&instr);
                }
                self.w.k.issue(instr);
            }
        }
        if rest > 0 {
            let instr = at(&Scalar::from(whole * 64), rest);
            if whole == 0 {
                self.w.order(&instr);
            }
            self.w.k.issue(instr);
        }
    }

    /// The same row by row, for few long rows: 64 columns a repeat, and what is left.
    fn each_row(
        &mut self,
        dst: Held,
        srcs: &[Held],
        lanes: &[Option<Buf>],
        make: impl Fn(Vector, &[Vector], Over) -> Instr,
    ) {
        let (pitch, columns) = (self.tile.pitch as u64, self.tile.cols as u64);
        let at = |row: &Scalar, column: u64, mask: u64, repeats: u64| {
            let begin = |row: &Scalar| row.clone() * pitch + column;
            let operands: Vec<Vector> = (srcs.iter().zip(lanes))
                .map(|(x, lanes)| match (x.extent, lanes) {
                    (Extent::Lanes, Some(buf)) => buf.at(row.clone() * 8).strided(0, 0),
                    (Extent::Column, _) => x.buf.at(column).into(),
                    (Extent::Full, _) => x.buf.at(begin(row)).into(),
                    _ => x.buf.at(0).strided(0, 0),
                })
                .collect();
            make(dst.buf.at(begin(row)).into(), &operands, Over::repeats(mask, repeats))
        };
        let (whole, rest) = (columns / 64, columns % 64);
        let parts = [(0, 64, whole), (whole * 64, rest, 1)];
        let parts: Vec<_> = parts.into_iter().filter(|&(_, mask, repeats)| mask * repeats > 0).collect();
        if let Some(&(column, mask, repeats)) = parts.first() {
            self.w.order(&at(&Scalar::Int(0), column, mask, repeats));
        }
        let all = |k: &mut Builder, row: &Scalar| {
            parts.iter().for_each(|&(column, mask, repeats)| k.issue(at(row, column, mask, repeats)));
        };
        match self.tile.rows() {
            1 => all(&mut self.w.k, &Scalar::Int(0)),
            _ => self.w.k.for_each("row", 0, self.rows.clone(), 1, |k, row| all(k, &row)),
        }
    }

    // Instructions with a result that is given.

    pub fn unary_to(&mut self, op: Unary, dst: Held, a: Held) {
        self.each(dst, &[a], |dst, s, over| UnaryOp { op, dst, src: s[0].clone(), over }.into());
    }

    pub fn binary_to(&mut self, op: Binary, dst: Held, a: Held, b: Held) {
        self.each(dst, &[a, b], |dst, s, over| {
            BinaryOp { op, dst, src0: s[0].clone(), src1: s[1].clone(), over }.into()
        });
    }

    pub fn scaled_to(&mut self, op: Scaled, dst: Held, a: Held, by: impl Into<Scalar>) {
        let by = by.into();
        self.each(dst, &[a], |dst, s, over| {
            ScaledOp { op, dst, src: s[0].clone(), scalar: by.clone(), over }.into()
        });
    }

    pub fn fill(&mut self, dst: Held, value: impl Into<Scalar>) {
        let value = value.into();
        self.each(dst, &[], |dst, _, over| Duplicate { dst, value: value.clone(), over }.into());
    }

    pub fn cast_to(&mut self, dst: Held, a: Held, round: Round) {
        self.each(dst, &[a], |dst, s, over| Cast { dst, src: s[0].clone(), round, scale: None, over }.into());
    }

    /// Copies, in more directions if `dst` has them. The bits stay as they are but for those of NaN.
    pub fn copy_to(&mut self, dst: Held, a: Held) {
        match dst.ty {
            Ty::F32 => self.scaled_to(Scaled::Muls, dst, a, 1.0f32),
            _ => self.scaled_to(Scaled::Adds, dst, a, 0),
        }
    }

    // Instructions whose result may take an operand's place.

    pub fn unary_over(&mut self, op: Unary, a: Held) -> Held {
        let dst = self.target(&[a]);
        self.unary_to(op, dst, a);
        dst
    }

    pub fn binary_over(&mut self, op: Binary, a: Held, b: Held) -> Held {
        let dst = self.target(&[a, b]);
        self.binary_to(op, dst, a, b);
        dst
    }

    pub fn scaled_over(&mut self, op: Scaled, a: Held, by: impl Into<Scalar>) -> Held {
        let dst = self.target(&[a]);
        self.scaled_to(op, dst, a, by);
        dst
    }

    // Instructions with a new result.

    pub fn unary(&mut self, op: Unary, a: Held) -> Held {
        let dst = self.take(a.extent, a.ty);
        self.unary_to(op, dst, a);
        dst
    }

    pub fn binary(&mut self, op: Binary, a: Held, b: Held) -> Held {
        let dst = self.take(a.extent.join(b.extent), a.ty);
        self.binary_to(op, dst, a, b);
        dst
    }

    pub fn scaled(&mut self, op: Scaled, a: Held, by: impl Into<Scalar>) -> Held {
        let dst = self.take(a.extent, a.ty);
        self.scaled_to(op, dst, a, by);
        dst
    }

    pub fn filled(&mut self, extent: Extent, value: f32) -> Held {
        let dst = self.take(extent, Ty::F32);
        self.fill(dst, value);
        dst
    }

    pub fn cast(&mut self, a: Held, ty: Ty, round: Round) -> Held {
        let dst = self.take(a.extent, ty);
        self.cast_to(dst, a, round);
        dst
    }

    /// The same value in the directions of `extent`; one holder more where it has them.
    pub fn widened(&mut self, a: Held, extent: Extent) -> Held {
        if a.extent == extent {
            self.w.retain(a.buf);
            return a;
        }
        if a.ty == Ty::Bits {
            let float = self.number(a);
            let wide = self.widened(float, extent);
            self.give(float);
            let bits = self.compared_with(wide, 0.0, Compare::Ne);
            self.give(wide);
            return bits;
        }
        let dst = self.take(extent, a.ty);
        self.copy_to(dst, a);
        dst
    }

    /// Bits of `a ? b`.
    pub fn compared(&mut self, a: Held, b: Held, cmp: Compare) -> Held {
        if self.compares_floats(a) {
            // Wrapped or saturated, it is 0 for equal numbers alone.
            let difference = self.binary(Binary::SubWrapping, a, b);
            let is = self.compared_with(difference, 0, cmp);
            self.give(difference);
            return is;
        }
        let extent = a.extent.join(b.extent);
        let (a, b) = (self.widened(a, extent), self.widened(b, extent));
        let dst = self.take(extent, Ty::Bits);
        let over = Over::Count(self.count(extent));
        let (src0, src1) = (a.buf.at(0).into(), b.buf.at(0).into());
        self.w.vector(CompareOp { dst: dst.buf.at(0), src0, src1, cmp, over });
        self.give(a);
        self.give(b);
        dst
    }

    /// True of integers on 310P, which compares floats alone. In f32 a difference is 0 where that of integers
    /// is.
    fn compares_floats(&self, a: Held) -> bool {
        a.ty == Ty::I32 && self.arch() == Arch::P310
    }

    /// Bits of `a ? by`.
    pub fn compared_with(&mut self, a: Held, by: impl Into<Scalar>, cmp: Compare) -> Held {
        if self.compares_floats(a) {
            let difference = self.scaled(Scaled::Adds, a, Scalar::from(0) - by.into());
            let float = self.cast(difference, Ty::F32, Round::None);
            self.give(difference);
            let is = self.compared_with(float, 0.0f32, cmp);
            self.give(float);
            return is;
        }
        let dst = self.take(a.extent, Ty::Bits);
        let over = Over::Count(self.count(a.extent));
        let instr =
            CompareScalar { dst: dst.buf.at(0), src: a.buf.at(0).into(), scalar: by.into(), cmp, over };
        self.w.vector(instr);
        dst
    }

    /// `mask ? a : b`; of integers the bits are chosen as if of floats.
    pub fn selected(&mut self, mask: Held, a: Held, b: Held) -> Held {
        let extent = mask.extent.join(a.extent).join(b.extent);
        let [mask, a, b] = [mask, a, b].map(|x| self.widened(x, extent));
        let dst = self.take(extent, a.ty);
        self.select_to(dst, mask, a, b);
        [mask, a, b].into_iter().for_each(|x| self.give(x));
        dst
    }

    /// The same, all in the same directions, into a result that is given.
    pub fn select_to(&mut self, dst: Held, mask: Held, a: Held, b: Held) {
        let view = |x: Held| Vector::from(Buf { elem: Elem::F32, ..x.buf }.at(0));
        let over = Over::Count(self.count(dst.extent));
        let (mask, src0, src1) = (mask.buf.at(0), view(a), view(b));
        self.w.vector(Select { dst: view(dst), mask, src0, src1, over });
    }

    /// `mask ? a : by`, for floats.
    pub fn selected_or(&mut self, mask: Held, a: Held, by: f32) -> Held {
        let extent = mask.extent.join(a.extent);
        let [mask, a] = [mask, a].map(|x| self.widened(x, extent));
        let dst = self.take(extent, Ty::F32);
        self.select_or_to(dst, mask, a, by);
        self.give(mask);
        self.give(a);
        dst
    }

    /// The same, all in the same directions, into a result that is given.
    pub fn select_or_to(&mut self, dst: Held, mask: Held, a: Held, by: f32) {
        let over = Over::Count(self.count(dst.extent));
        let (mask, src) = (mask.buf.at(0), a.buf.at(0).into());
        self.w.vector(SelectScalar { dst: dst.buf.at(0).into(), mask, src, scalar: by.into(), over });
    }

    /// 1 where the bit is set, else 0.
    pub fn number(&mut self, bits: Held) -> Held {
        let ones = self.filled(bits.extent, 1.0);
        self.select_or_to(ones, bits, ones, 0.0);
        ones
    }

    /// Combines bits of the same directions word by word.
    pub fn logic(&mut self, op: Binary, a: Held, b: Held) -> Held {
        let extent = a.extent.join(b.extent);
        let [a, b] = [a, b].map(|x| self.widened(x, extent));
        let dst = self.take(extent, Ty::Bits);
        let words = self.len(extent) / 16;
        let view = |x: Held| Vector::from(Buf { elem: Elem::U16, ..x.buf }.at(0));
        self.w.vector(BinaryOp {
            op,
            dst: view(dst),
            src0: view(a),
            src1: view(b),
            over: Over::count(words),
        });
        self.give(a);
        self.give(b);
        dst
    }

    pub fn not(&mut self, a: Held) -> Held {
        let dst = self.take(a.extent, Ty::Bits);
        let words = self.len(a.extent) / 16;
        let view = |x: Held| Vector::from(Buf { elem: Elem::U16, ..x.buf }.at(0));
        self.w.vector(UnaryOp { op: Unary::Not, dst: view(dst), src: view(a), over: Over::count(words) });
        dst
    }

    /// A constant in 64 lanes; kept for the rest of the kernel.
    pub fn constant(&mut self, value: f32) -> Held {
        let bits = value.to_bits();
        let known = self.constants.iter().find(|c| c.0 == bits).map(|c| c.1);
        let buf = known.unwrap_or_else(|| {
            let held = self.filled(Extent::One, value);
            self.constants.push((bits, held.buf));
            held.buf
        });
        Held { buf, extent: Extent::One, ty: Ty::F32 }
    }

    /// The number in lane 0 in all of 64 lanes; `x` is freed.
    pub fn first_lane(&mut self, x: Buf) -> Held {
        let blocks = self.w.take(x.elem, 64);
        self.w.vector(Brcb { dst: blocks.at(0).into(), src: x.at(0), repeat: 1.into() });
        let (ty, op, by) = match x.elem.is_float() {
            true => (Ty::F32, Scaled::Muls, Scalar::from(1.0f32)),
            false => (Ty::I32, Scaled::Adds, Scalar::from(0)),
        };
        let dst = self.take(Extent::One, ty);
        self.w.vector(ScaledOp {
            op,
            dst: dst.buf.at(0).into(),
            src: blocks.at(0).strided(0, 0),
            scalar: by,
            over: Over::repeats(64, 1),
        });
        self.w.release(blocks);
        self.w.release(x);
        dst
    }
}
