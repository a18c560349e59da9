//! What a phase does to one vector of columns, as straight-line code without registers yet.

use super::super::code::{Code, Kind, Op, Reg, Register, What};
use super::super::ops::Ty;
use super::asm::{Op as Instruction, Width, op};
use super::reduction;
use super::round::{Known, Nans};
use crate::math::{self, Ops};
use headwater_core::DType;
use headwater_core::expr::{Binary, Unary};
use headwater_core::row::Reduce;
use std::collections::HashMap;

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
    /// How far a column, whose number is a number of the row, lies ahead of the first of the group.
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
    /// To a stream: f32 (or a mask kept for a later phase), f16 and bf16 rounded here, i16 and bf16 that is
    /// rounded already given as i16 bits, bools given as masks.
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

    /// Whether it has a value, rather than an effect.
    pub fn makes(&self) -> bool {
        !matches!(self, Ins::Store { .. } | Ins::SetAcc(..) | Ins::SetSlot(..) | Ins::StoreOne(..))
    }

    /// Whether it is the same in all vectors of a group.
    pub fn same(&self) -> bool {
        matches!(self, Ins::Num(_) | Ins::Eight(_) | Ins::Slot(_) | Ins::Prefetch(_))
    }
}

/// A sum of one column of a row, at most: it is looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick {
    pub fold: usize,
    /// The register that holds the column's number.
    pub index: Reg,
    pub from: Picked,
}

/// What is looked up: an element of a stream, or one number for all.
#[derive(Clone, Copy, Debug)]
pub(super) enum Picked {
    Element { stream: usize, dtype: DType },
    Number(f32),
}

/// What a call walks along the columns.
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
    /// May be written past the caches: it is a result, and not in the place of what was read.
    pub past: bool,
}

/// The code of a phase, and what it works on.
#[derive(Clone, Debug, Default)]
pub(super) struct Body {
    pub code: Vec<Ins>,
    pub streams: Vec<Stream>,
    /// Registers whose number of the row is wanted; after them stands the number of the first column.
    pub slots: Vec<Reg>,
    /// Reductions, by number of the program's, in the order of their accumulators.
    pub folds: Vec<usize>,
    pub picks: Vec<Pick>,
    /// Of the vectors.
    pub width: Width,
    /// Whether the processor itself rounds to bf16.
    pub rounds: bool,
}

impl Body {
    /// Whether it does nothing.
    pub fn idle(&self) -> bool {
        self.code.iter().all(Ins::makes)
    }
}

pub(super) struct Builder<'a> {
    pub(super) code: &'a Code,
    pub(super) dtypes: &'a [DType],
    pub body: Body,
    /// Whether only some lanes are columns.
    tail: bool,
    /// Whether it is numbers of the row that are computed, the same in all lanes.
    pub(super) between: bool,
    values: Vec<Option<Value>>,
    /// Of the value of each instruction, and of registers that earlier phases keep.
    pub(super) known: Vec<Known>,
    pub(super) kept: &'a mut Vec<Nans>,
    /// What was rounded to bf16 already, and what was made quiet.
    pub(super) rounded: HashMap<Value, Value>,
    pub(super) quieted: HashMap<Value, Value>,
}

/// Translates a phase; `None` if something in it has no translation. `dtypes` are those of the operands,
/// `kept` which NaNs registers hold that earlier phases keep; `begun` has streams and numbers of the row that
/// are known already.
pub(super) fn body(
    code: &Code,
    dtypes: &[DType],
    phase: usize,
    tail: bool,
    kept: &mut Vec<Nans>,
    begun: &Body,
) -> Option<Body> {
    let mut b = Builder::new(code, dtypes, tail, kept, begun);
    code.vector[phase].iter().try_for_each(|op| b.op(op))?;
    Some(b.body)
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        code: &'a Code,
        dtypes: &'a [DType],
        tail: bool,
        kept: &'a mut Vec<Nans>,
        begun: &Body,
    ) -> Builder<'a> {
        kept.resize(code.regs.len(), Nans::Any);
        let values = vec![None; code.regs.len()];
        let (rounded, quieted, known) = Default::default();
        let (streams, slots) = (begun.streams.clone(), begun.slots.clone());
        let body = Body { streams, slots, width: begun.width, rounds: begun.rounds, ..Body::default() };
        Builder { code, dtypes, body, tail, between: false, values, known, kept, rounded, quieted }
    }
}

impl Builder<'_> {
    pub(super) fn push(&mut self, ins: Ins) -> Value {
        // Equal instructions have equal results: each is written once.
        if let Some(at) = self.body.code.iter().position(|i| ins.makes() && *i == ins) {
            return at;
        }
        let known = self.know(ins);
        self.known.push(known);
        self.body.code.push(ins);
        self.body.code.len() - 1
    }

    pub(super) fn two(&mut self, op: Instruction, a: Value, b: Value) -> Value {
        self.push(Ins::Two(op, a, b, None))
    }

    /// A comparison by the predicate of its encoding.
    pub(super) fn compare(&mut self, predicate: u8, a: Value, b: Value) -> Value {
        self.push(Ins::Two(op::CMP, a, b, Some(predicate)))
    }

    fn not(&mut self, m: Value) -> Value {
        let ones = self.push(Ins::Num(u32::MAX));
        self.two(op::XOR, m, ones)
    }

    pub(super) fn stream(&mut self, source: Source, width: usize) -> usize {
        let streams = &mut self.body.streams;
        streams.iter().position(|s| s.source == source).unwrap_or_else(|| {
            streams.push(Stream { source, width, read: false, written: false, past: false });
            streams.len() - 1
        })
    }

    fn load(&mut self, source: Source, dtype: DType, width: usize) -> Value {
        let stream = self.stream(source, width);
        self.body.streams[stream].read = true;
        let v = self.push(Ins::Load { stream, dtype });
        if dtype != DType::Bool {
            return v;
        }
        let zero = self.push(Ins::Num(0));
        let none = self.two(op::EQ_INT, v, zero);
        self.not(none)
    }

    fn store(&mut self, source: Source, dtype: DType, width: usize, from: Value) {
        let stream = self.stream(source, width);
        self.body.streams[stream].written = true;
        let (dtype, from) = match dtype {
            // What is bf16 already keeps its bits.
            DType::BF16 if !self.body.rounds || self.is_bf16(from) => {
                let bits = self.bf16(from);
                (DType::I16, self.push(Ins::Shift(2, bits, 16)))
            }
            // Elsewhere the lower halves are cut out.
            DType::I16 if self.body.width == Width::Eight => {
                let low = self.bits(0xFFFF);
                (dtype, self.two(op::AND, from, low))
            }
            _ => (dtype, from),
        };
        self.push(Ins::Store { stream, dtype, from });
    }

    /// Which number of the row a register is.
    pub(super) fn slot(&mut self, r: Reg) -> usize {
        let slots = &mut self.body.slots;
        slots.iter().position(|s| *s == r).unwrap_or_else(|| {
            slots.push(r);
            slots.len() - 1
        })
    }

    /// Value of a register of the program.
    pub(super) fn get(&mut self, r: Reg) -> Option<Value> {
        if let Some(v) = self.values[r] {
            return Some(v);
        }
        let ty = self.code.regs[r].ty;
        match (self.code.regs[r].kind, ty) {
            (_, Ty::F64) => None,
            (Kind::Constant { bytes, .. }, Ty::F32) => Some(self.bits(i64::from_ne_bytes(bytes) as u32)),
            (Kind::Constant { bytes, .. }, Ty::Bool) => {
                Some(self.bits(if i64::from_ne_bytes(bytes) != 0 { u32::MAX } else { 0 }))
            }
            (Kind::Constant { bytes, .. }, Ty::I64) => Some(self.bits(i64::from_ne_bytes(bytes) as u32)),
            // Of an integer of the row only the number of a column is at hand.
            (Kind::Scalar, Ty::F32 | Ty::Bool) => {
                let slot = self.slot(r);
                Some(self.push(Ins::Slot(slot)))
            }
            (Kind::Scalar, _) => None,
            (Kind::Kept, Ty::F32 | Ty::Bool) => Some(self.load(Source::Kept(r), DType::F32, 4)),
            (Kind::Kept | Kind::Vector(_), _) => None,
        }
    }

    pub(super) fn set(&mut self, r: Reg, v: Value) {
        let v = match self.code.regs[r] {
            // Numbers of the row have but one NaN.
            Register { kind: Kind::Scalar, ty: Ty::F32 } => {
                let (nan, one) = (self.is_nan(v), self.num(f32::NAN));
                self.select(nan, one, v)
            }
            _ => v,
        };
        self.values[r] = Some(v);
        if self.between && self.code.regs[r].kind == Kind::Scalar {
            let slot = self.slot(r);
            self.push(Ins::SetSlot(slot, v));
        }
        if self.code.regs[r].kind == Kind::Kept {
            self.kept[r] = self.known[v].nans;
            self.store(Source::Kept(r), DType::F32, 4, v);
        }
    }

    pub(super) fn op(&mut self, o: &Op) -> Option<()> {
        let kept = |r: Reg| (self.code.regs[r].kind, self.code.regs[r].ty) == (Kind::Kept, Ty::I64);
        if o.out().is_some_and(kept) {
            return None;
        }
        match *o {
            Op::Load { operand, out, .. } if self.between => self.load_one(operand, out)?,
            Op::Store { operand, from, .. } if self.between => self.store_one(operand, from)?,
            Op::Load { operand, out, .. } => {
                let dtype = self.dtypes[operand];
                if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Bool | DType::I16) {
                    return None;
                }
                let v = self.load(Source::Operand(operand), dtype, dtype.size());
                self.set(out, v);
            }
            Op::Map { what, args, out, .. } => {
                let ty = self.code.regs[args[0]].ty;
                let a = self.get(args[0])?;
                let v = match what {
                    What::Unary(f) => self.unary(f, ty, a)?,
                    What::Binary(f) => {
                        let b = self.get(args[1])?;
                        self.binary(f, ty, a, b)?
                    }
                    What::Select => {
                        let (x, y) = (self.get(args[1])?, self.get(args[2])?);
                        self.select(a, x, y)
                    }
                    What::Cast(to) => self.cast(ty, to, a)?,
                };
                self.set(out, v);
            }
            Op::Spread { op, args, out, .. } => {
                let (a, b) = (self.get(args[0])?, self.get(args[1])?);
                let v = self.binary(op, Ty::F32, a, b)?;
                self.set(out, v);
            }
            Op::Choose { cond, args, out } => {
                let (m, a, b) = (self.get(cond)?, self.get(args[0])?, self.get(args[1])?);
                let v = self.select(m, a, b);
                self.set(out, v);
            }
            Op::Patch { op, from, with, index, out, .. } => {
                let m = self.column_is(index);
                let (from, with) = (self.get(from)?, self.get(with)?);
                let patched = self.binary(op, Ty::F32, from, with)?;
                let v = self.select(m, patched, from);
                self.set(out, v);
            }
            Op::Expand { from, out } => {
                let v = self.get(from)?;
                self.set(out, v);
            }
            Op::Fold { fold, from } => {
                let v = self.get(from)?;
                self.fold(fold, v)?;
            }
            Op::Dot { fold, args, .. } => {
                let (a, b) = (self.get(args[0])?, self.get(args[1])?);
                let v = self.mul(a, b);
                self.fold(fold, v)?;
            }
            Op::Pick { fold, from, index } => {
                let x = self.get(from)?;
                let from = match self.body.code[x] {
                    Ins::Load { stream, dtype } if dtype != DType::Bool => {
                        Some(Picked::Element { stream, dtype })
                    }
                    Ins::Num(bits) => Some(Picked::Number(f32::from_bits(bits))),
                    _ => None,
                };
                if let Some(from) = from.filter(|_| self.code.folds[fold].ty == Ty::F32) {
                    self.body.picks.push(Pick { fold, index, from });
                } else {
                    let m = self.column_is(index);
                    let v = self.two(op::AND, m, x);
                    self.fold(fold, v)?;
                }
            }
            Op::Sum { sum, from } => {
                let x = self.get(from)?;
                if self.code.regs[from].ty != Ty::F32 {
                    return None;
                }
                let before = self.load(Source::Sum(sum), DType::F32, 4);
                let after = self.two(op::ADD, before, x);
                self.store(Source::Sum(sum), DType::F32, 4, after);
            }
            Op::Store { operand, from, .. } => {
                let (dtype, ty) = (self.dtypes[operand], self.code.regs[from].ty);
                let float = matches!(dtype, DType::F32 | DType::F16 | DType::BF16) && ty == Ty::F32;
                let same = [(DType::Bool, Ty::Bool), (DType::I16, Ty::I64)].contains(&(dtype, ty));
                if !(float || same) {
                    return None;
                }
                let v = self.get(from)?;
                self.store(Source::Operand(operand), dtype, dtype.size(), v);
            }
            Op::Count { .. } => return None,
        }
        Some(())
    }

    /// Where the number of the column is that of the row.
    fn column_is(&mut self, index: Reg) -> Value {
        let slot = self.slot(index);
        let (ahead, column) = (self.push(Ins::Prefetch(slot)), self.push(Ins::Column));
        self.two(op::EQ_INT, ahead, column)
    }

    fn fold(&mut self, fold: usize, v: Value) -> Option<()> {
        let folding = &self.code.folds[fold];
        if folding.ty != Ty::F32 {
            return None;
        }
        if folding.op == Reduce::Prod {
            return None;
        }
        let (f, identity) = reduction(folding.op);
        let at = self.body.folds.len();
        self.body.folds.push(fold);
        let v = if self.tail {
            let (alive, dead) = (self.push(Ins::Alive), self.num(identity));
            self.select(alive, v, dead)
        } else {
            v
        };
        let acc = self.push(Ins::Acc(at));
        // Magnitudes are ordered as their bits are, NaN above all.
        let size = matches!(self.body.code[v], Ins::Two(op::AND, _, m, _) if self.body.code[m] == Ins::Num(0x7FFF_FFFF));
        let v = match f {
            Binary::Max if size => self.two(op::MAX_INT, acc, v),
            _ => self.binary(f, Ty::F32, acc, v)?,
        };
        self.push(Ins::SetAcc(at, v));
        Some(())
    }

    fn unary(&mut self, f: Unary, ty: Ty, a: Value) -> Option<Value> {
        match (f, ty) {
            (Unary::Bits, Ty::F32) | (Unary::FromBits, Ty::I64) => return Some(a),
            (_, Ty::I64 | Ty::F64) => return None,
            _ => {}
        }
        let round = |mode| Ins::One(op::ROUND, a, Some(mode));
        Some(match f {
            Unary::Neg => {
                let sign = self.bits(1 << 31);
                self.two(op::XOR, a, sign)
            }
            Unary::Abs => math::vector::abs(self, a),
            Unary::Exp => math::vector::exp(self, a),
            Unary::ExpNonpos => math::vector::exp_nonpos(self, a),
            Unary::Log => math::vector::log(self, a),
            Unary::Tanh => math::vector::tanh(self, a),
            Unary::Erf => math::vector::erf(self, a),
            Unary::Ndtr => math::vector::ndtr(self, a),
            Unary::Sigmoid => math::vector::sigmoid(self, a),
            Unary::Sqrt => self.push(Ins::One(op::SQRT, a, None)),
            Unary::Rsqrt => {
                let root = self.push(Ins::One(op::SQRT, a, None));
                let one = self.num(1.0);
                self.div(one, root)
            }
            Unary::Recip => {
                let one = self.num(1.0);
                self.div(one, a)
            }
            Unary::Round => self.push(round(8)),
            Unary::Floor => self.push(round(9)),
            Unary::Ceil => self.push(round(10)),
            Unary::Trunc => self.push(round(11)),
            Unary::IsNan => self.is_nan(a),
            Unary::IsInf => {
                let (size, infinity) = (math::vector::abs(self, a), self.num(f32::INFINITY));
                self.eq(size, infinity)
            }
            Unary::Not => self.not(a),
            Unary::Sign
            | Unary::Expm1
            | Unary::Log1p
            | Unary::Sin
            | Unary::Cos
            | Unary::Tan
            | Unary::Atan
            | Unary::Bits
            | Unary::FromBits => {
                return None;
            }
        })
    }

    pub(super) fn binary(&mut self, f: Binary, ty: Ty, a: Value, b: Value) -> Option<Value> {
        if ty == Ty::Bool {
            let f = match f {
                Binary::And | Binary::Mul | Binary::Min => op::AND,
                Binary::Or | Binary::Add | Binary::Max => op::OR,
                Binary::Xor | Binary::Sub | Binary::Ne => op::XOR,
                _ => return None,
            };
            return Some(self.two(f, a, b));
        }
        if ty == Ty::I64 {
            let f = match f {
                Binary::Add => op::ADD_INT,
                Binary::Sub => op::SUB_INT,
                Binary::And => op::AND,
                Binary::Or => op::OR,
                Binary::Xor => op::XOR,
                _ => return None,
            };
            return Some(self.two(f, a, b));
        }
        if ty != Ty::F32 {
            return None;
        }
        Some(match f {
            Binary::Add => self.two(op::ADD, a, b),
            Binary::Sub => self.two(op::SUB, a, b),
            Binary::Mul => self.two(op::MUL, a, b),
            Binary::Div => self.two(op::DIV, a, b),
            // As `Real::binary`: NaN wins.
            Binary::Min | Binary::Max => {
                let better = if f == Binary::Min { self.min(b, a) } else { self.max(b, a) };
                let nan = self.is_nan(b);
                self.select(nan, b, better)
            }
            Binary::Eq => self.compare(0, a, b),
            Binary::Ne => self.compare(4, a, b),
            Binary::Lt => self.compare(17, a, b),
            Binary::Le => self.compare(18, a, b),
            Binary::Gt => self.compare(30, a, b),
            Binary::Ge => self.compare(29, a, b),
            Binary::FloorDiv | Binary::Rem | Binary::Fmod | Binary::Pow | Binary::Atan2 => return None,
            Binary::And | Binary::Or | Binary::Xor => return None,
        })
    }

    fn cast(&mut self, from: Ty, to: DType, a: Value) -> Option<Value> {
        Some(match (from, to) {
            (Ty::F32, DType::F32) => a,
            (Ty::F32, DType::F16) => self.push(Ins::RoundHalf(a)),
            (Ty::F32, DType::BF16) => {
                let (bits, high) = (self.bf16(a), self.bits(0xFFFF_0000));
                self.two(op::AND, bits, high)
            }
            (Ty::F32, DType::Bool) => {
                let zero = self.num(0.0);
                self.compare(4, a, zero)
            }
            (Ty::Bool, DType::F32 | DType::F16 | DType::BF16) => {
                let one = self.num(1.0);
                self.two(op::AND, a, one)
            }
            (Ty::I64, DType::I16) => {
                let high = self.push(Ins::Shift(6, a, 16));
                self.push(Ins::Shift(4, high, 16))
            }
            _ => return None,
        })
    }
}
