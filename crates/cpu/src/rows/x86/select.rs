//! Instruction selection: the operations of a phase on one vector of columns, as straight-line code in SSA
//! form.

use super::assembler::{Op as Instruction, Width, op};
use super::ir::{Body, Ins, Known, Lookup, LookupSource, Nans, Source, Stream, Value};
use super::reduction;
use crate::rows::code::{Code, Kind, Op, Reg, Register, What};
use crate::rows::types::Ty;
use headwater_core::DType;
use headwater_core::expr::elementary::{self, Ops};
use headwater_core::expr::{Binary, Unary};
use headwater_core::row::Reduce;
use std::collections::HashMap;

/// Selects the instructions of a phase.
pub(super) struct Builder<'a> {
    pub(super) code: &'a Code,
    pub(super) dtypes: &'a [DType],
    pub body: Body,
    /// True if only some lanes are columns.
    tail: bool,
    /// True if it is numbers of the row that are computed, the same in all lanes.
    pub(super) between: bool,
    values: Vec<Option<Value>>,
    /// Knowledge of the value of each instruction, and of registers that earlier phases keep.
    pub(super) known: Vec<Known>,
    pub(super) kept: &'a mut Vec<Nans>,
    /// Values that were rounded to bf16 already, and those made quiet.
    pub(super) rounded: HashMap<Value, Value>,
    pub(super) quieted: HashMap<Value, Value>,
}

/// Translates a phase; `None` if something in it has no translation. `dtypes` are those of the operands,
/// `kept` tells the NaNs in registers that earlier phases keep. `begun` has streams and numbers of the row
/// that are known already.
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
            // A value that is bf16 already keeps its bits.
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
            // The number of a column is the only integer of the row at hand.
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
            Op::Lookup { fold, from, index } => {
                let x = self.get(from)?;
                let from = match self.body.code[x] {
                    Ins::Load { stream, dtype } if dtype != DType::Bool => {
                        Some(LookupSource::Element { stream, dtype })
                    }
                    Ins::Num(bits) => Some(LookupSource::Number(f32::from_bits(bits))),
                    _ => None,
                };
                if let Some(from) = from.filter(|_| self.code.folds[fold].ty == Ty::F32) {
                    self.body.lookups.push(Lookup { fold, index, from });
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

    /// The number of the column is here that of the row.
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
            Unary::Abs => elementary::abs(self, a),
            Unary::Exp
            | Unary::ExpNonpos
            | Unary::Log
            | Unary::Tanh
            | Unary::Erf
            | Unary::Ndtr
            | Unary::Sigmoid => return elementary::unary(self, f, a),
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
                let (size, infinity) = (elementary::abs(self, a), self.num(f32::INFINITY));
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
