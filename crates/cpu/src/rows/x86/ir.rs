//! The intermediate form of machine code: straight-line instructions on one vector of columns, in SSA form,
//! before registers are assigned.

use super::assembler::{Op as Instruction, Width};
use crate::rows::code::Reg;
use headwater_core::DType;

/// A value: the number of the instruction that makes it.
pub(super) type Value = usize;

/// One instruction on all lanes. Truth values are lanes of ones or zeros; of integers a lane holds the low 32
/// bits, and only what these decide is translated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ins {
    /// Elements of a stream, widened to f32; bools to bytes in lanes of their own.
    Load {
        stream: usize,
        dtype: DType,
    },
    /// A number of the row.
    Slot(usize),
    /// These bits in all lanes.
    Num(u32),
    /// These bits, a lane each, and again in the next eight if there are more.
    Eight([u32; 8]),
    /// Distance of a column, whose number is a row scalar, from the first of the group.
    Prefetch(usize),
    /// The number of each column in its group.
    Column,
    /// Ones in the lanes that are columns; in code for less than a whole group of them.
    Alive,
    /// Lanes of an accumulator.
    Acc(usize),
    /// `a op b`.
    Two(Instruction, Value, Value, Option<u8>),
    /// `a · b + c`, rounded once.
    Fma(Value, Value, Value),
    /// `op a`.
    One(Instruction, Value, Option<u8>),
    /// Bits moved: digit of the opcode, how far.
    Shift(u8, Value, u8),
    /// `b` where the mask is set, else `a`.
    Blend {
        mask: Value,
        a: Value,
        b: Value,
    },
    /// To f16 and back.
    RoundHalf(Value),
    /// To a stream: f32 (or a mask kept for a later phase), and f16 and bf16 rounded here. Numbers of i16,
    /// and of bf16 that are rounded already, are given as i16 bits, bools as masks.
    Store {
        stream: usize,
        dtype: DType,
        from: Value,
    },
    /// Back to an accumulator.
    SetAcc(usize, Value),
    /// A vector of the lanes of an accumulator, after the columns.
    Lanes(usize, usize),
    /// The first lane in all lanes.
    Spread(Value),
    /// A number of the row, from now on.
    SetSlot(usize, Value),
    /// The element of a stream that is the row's, in all lanes; the first lane to it.
    LoadOne(usize),
    StoreOne(usize, Value),
}

impl Ins {
    pub fn args(&self) -> impl Iterator<Item = Value> + use<> {
        let list = match *self {
            Ins::Two(_, a, b, _) => [Some(a), Some(b), None],
            Ins::Fma(a, b, c) => [Some(a), Some(b), Some(c)],
            Ins::One(_, a, _) | Ins::Shift(_, a, _) | Ins::RoundHalf(a) | Ins::Spread(a) => {
                [Some(a), None, None]
            }
            Ins::Blend { mask, a, b } => [Some(mask), Some(a), Some(b)],
            Ins::Store { from, .. }
            | Ins::SetAcc(_, from)
            | Ins::SetSlot(_, from)
            | Ins::StoreOne(_, from) => [Some(from), None, None],
            _ => [None; 3],
        };
        list.into_iter().flatten()
    }

    /// True if it has a value, rather than an effect.
    pub fn makes(&self) -> bool {
        !matches!(self, Ins::Store { .. } | Ins::SetAcc(..) | Ins::SetSlot(..) | Ins::StoreOne(..))
    }

    /// True if it is the same in all vectors of a group.
    pub fn same(&self) -> bool {
        matches!(self, Ins::Num(_) | Ins::Eight(_) | Ins::Slot(_) | Ins::Prefetch(_))
    }
}

/// A sum over one column of a row, at most: the element is looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup {
    pub fold: usize,
    /// The register that holds the column's number.
    pub index: Reg,
    pub from: LookupSource,
}

/// Source of a lookup: an element of a stream, or one number for all.
#[derive(Clone, Copy, Debug)]
pub(super) enum LookupSource {
    Element { stream: usize, dtype: DType },
    Number(f32),
}

/// A sequence of columns that a call reads or writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Source {
    /// An operand.
    Operand(usize),
    /// A register kept for the whole row.
    Kept(Reg),
    /// A column sum.
    Sum(usize),
}

/// A stream, and what the code does with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub source: Source,
    /// Bytes of an element.
    pub width: usize,
    pub read: bool,
    pub written: bool,
    /// May use non-temporal stores: it is a result, and not in the place of what was read.
    pub past: bool,
}

/// The code of a phase, and what it works on.
#[derive(Clone, Debug, Default)]
pub(super) struct Body {
    pub code: Vec<Ins>,
    pub streams: Vec<Stream>,
    /// Slots for row indices; the last holds the first column.
    pub slots: Vec<Reg>,
    /// Reductions, by number of the program's, in the order of their accumulators.
    pub folds: Vec<usize>,
    pub lookups: Vec<Lookup>,
    /// Width of the vectors.
    pub width: Width,
    /// True if the processor has an instruction that rounds to bf16.
    pub rounds: bool,
}

impl Body {
    /// True if it has no effect.
    pub fn idle(&self) -> bool {
        self.code.iter().all(Ins::makes)
    }
}

/// Facts known of a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The lower half of each lane is 0.
    pub bf16: bool,
    pub nans: Nans,
}

/// NaNs that a number may be, as far as its rounding to bf16 must know. Arithmetic makes quiet ones of the
/// payload of an operand's, or one without payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Nans {
    /// Quiet, or of bf16: the lower half is 0, so that it stays a NaN if it is rounded like a number.
    Short,
    /// Quiet: its upper half is a NaN.
    Quiet,
    Any,
}
