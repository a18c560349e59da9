//! The scheduled program: operations on tiles, and registers with the memory that holds them.

use super::types::{Dot, Fold, Map, Move, Ty};
use headwater_core::DType;
use headwater_core::expr::{Binary, Unary};
use headwater_core::row::Reduce;

/// Number of a register of the compiled code.
pub(super) type Reg = usize;

/// The work of a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    Unary(Unary),
    Binary(Binary),
    Select,
    Cast(DType),
}

/// One operation on a tile, or, in scalar code, on one number for each row of a tile.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "machine code alone asks which function it is")
)]
pub(super) enum Op {
    /// Reads an operand. `alias`: its memory may stand for the register where it is laid out like one.
    Load { operand: usize, f: Move, out: Reg, alias: bool },
    /// The offsets of a counter.
    Count { operand: usize, out: Reg },
    /// Computes. `direct`: in the memory of this operand, where the result is stored anyway, if it is laid
    /// out like a tile.
    Map { f: Map, what: What, args: [Reg; 3], out: Reg, direct: Option<usize> },
    /// Computes from a vector and, as argument number `one`, a number for each row.
    Spread { f: Map, op: Binary, args: [Reg; 2], one: usize, out: Reg, direct: Option<usize> },
    /// One of two registers for each row, by a truth value.
    Choose { cond: Reg, args: [Reg; 2], out: Reg },
    /// A copy of a register in which the column `index` of each row, if there is one, becomes `f` of itself
    /// and `with`.
    Patch { f: Map, op: Binary, from: Reg, with: Reg, index: Reg, out: Reg },
    /// Spreads a row scalar over the tile.
    Expand { from: Reg, out: Reg },
    /// Folds a register into the accumulators of a reduction.
    Fold { fold: usize, from: Reg },
    /// Adds the products of two registers to the accumulators of a sum.
    Dot { fold: usize, f: Dot, args: [Reg; 2] },
    /// Adds the element of a register in column `index` of each row, if there is one, to the accumulators of
    /// a sum.
    Lookup { fold: usize, from: Reg, index: Reg },
    /// Adds a register to a column sum.
    Sum { sum: usize, from: Reg },
    /// Writes a register.
    Store { operand: usize, f: Move, from: Reg },
}

impl Op {
    pub fn args(&self) -> impl Iterator<Item = Reg> {
        const NONE: Reg = Reg::MAX;
        let list = match *self {
            Op::Load { .. } | Op::Count { .. } => [NONE; 3],
            Op::Map { args, .. } => args,
            Op::Spread { args: [a, b], .. } | Op::Dot { args: [a, b], .. } => [a, b, NONE],
            Op::Choose { cond, args: [a, b], .. } => [cond, a, b],
            Op::Patch { from, with, index, .. } => [from, with, index],
            Op::Lookup { from, index, .. } => [from, index, NONE],
            Op::Expand { from, .. }
            | Op::Fold { from, .. }
            | Op::Sum { from, .. }
            | Op::Store { from, .. } => [from, NONE, NONE],
        };
        list.into_iter().filter(|&r| r != NONE)
    }

    pub fn out(&self) -> Option<Reg> {
        match *self {
            Op::Load { out, .. }
            | Op::Count { out, .. }
            | Op::Map { out, .. }
            | Op::Spread { out, .. }
            | Op::Choose { out, .. }
            | Op::Patch { out, .. }
            | Op::Expand { out, .. } => Some(out),
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

/// The content of a register, and its slot among those of its kind and size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// A number for each row.
    Scalar,
    /// A number for each element of a tile; slots are used again.
    Vector(usize),
    /// A number for each element of a tile's whole rows, for later phases.
    Kept,
    /// One number everywhere: for each element of a tile if `wide`, else for each row.
    Constant { bytes: [u8; 8], wide: bool },
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

/// A sum over the rows, of those of a block in its own type.
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
        let wide = |r: &&Register| matches!(r.kind, Kind::Constant { wide: true, .. });
        let constants = self.regs.iter().filter(wide).map(|r| r.ty.size()).sum::<usize>();
        self.slots[0] + 4 * self.slots[1] + 8 * self.slots[2] + constants
    }

    /// Bytes for each element of a tile's whole rows.
    pub fn kept(&self) -> usize {
        self.regs.iter().filter(|r| r.kind == Kind::Kept).map(|r| r.ty.size()).sum()
    }
}
