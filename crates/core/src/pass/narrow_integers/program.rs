//! A row program with integers in i32.

use super::range::Range;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::expr::{Binary, Unary};
use crate::row::{Instr, Reduce, Reg, RowBuilder, RowProgram};
use crate::{ensure, fail};

/// A register of the program that is replaced.
#[derive(Clone, Copy)]
enum Value {
    /// An integer: a register of 32 bits, and the range of what the program computes in 64. Where that leaves
    /// 32 bits, the register holds the low half of it.
    Int(Reg, Range),
    /// Float or Bool.
    Other(Reg),
    /// A store defines none.
    None,
}

/// The program with each integer operation rounded to i32 by a `Cast`, and the ranges of its integer results;
/// `reads` are those of its operands.
///
/// # Errors
/// `Unsupported` where a result may depend on more than 32 bits of an integer; `Graph` for an ill-formed
/// program.
pub(super) fn narrow(p: &RowProgram, reads: &[Range]) -> Result<(RowProgram, Vec<Range>)> {
    p.classes().map_err(|m| fail!(Graph, "{m}"))?;
    let mut b = RowBuilder::new(&p.outer, &p.inner);
    for o in &p.reads {
        b.operand(o.dtype, o.access.clone());
    }
    let mut narrowing = Narrowing { p, b, values: Vec::with_capacity(p.body.len()) };
    let mut stores = vec![None; p.writes.len()];
    for instr in &p.body {
        let value = match *instr {
            Instr::Store(w, a) => {
                stores[w] = Some((narrowing.values[a], false));
                Value::None
            }
            Instr::Columns(w, a) => {
                stores[w] = Some((narrowing.values[a], true));
                Value::None
            }
            _ => narrowing.instr(instr, reads)?,
        };
        narrowing.values.push(value);
    }
    let mut b = narrowing.b;
    let mut ranges = Vec::with_capacity(p.writes.len());
    for (o, stored) in p.writes.iter().zip(stores) {
        let (value, columns) = stored.ok_or_else(|| fail!(Graph, "a result is not stored"))?;
        let reg = match value {
            Value::Int(reg, range) => {
                ensure!(!columns, Unsupported, "sums of integers over rows in 32 bits");
                ensure!(o.dtype != DType::I64 || range.fits(), Unsupported, "a result of {}", BEYOND);
                ranges.push(if o.dtype == DType::I64 { range } else { Range::of(o.dtype) });
                reg
            }
            Value::Other(reg) => {
                ranges.push(Range::of(o.dtype));
                reg
            }
            Value::None => return Err(fail!(Graph, "a store is stored")),
        };
        match columns {
            true => b.columns(o.dtype, o.access.clone(), reg),
            false => b.store(o.dtype, o.access.clone(), reg),
        }
    }
    Ok((b.finish(), ranges))
}

const BEYOND: &str = "integers that may need more than 32 bits";

struct Narrowing<'a> {
    p: &'a RowProgram,
    b: RowBuilder,
    values: Vec<Value>,
}

impl Narrowing<'_> {
    /// The register of a float or Bool; of an integer that fits.
    fn whole(&self, r: Reg, what: &dyn std::fmt::Debug) -> Result<Reg> {
        match self.values[r] {
            Value::Other(reg) => Ok(reg),
            Value::Int(reg, range) if range.fits() => Ok(reg),
            Value::Int(..) => Err(fail!(Unsupported, "{what:?} of {BEYOND}")),
            Value::None => Err(fail!(Graph, "a store is read")),
        }
    }

    /// The low half of what an instruction computes.
    fn word(&mut self, instr: Instr, range: Range) -> Value {
        let raw = self.b.push(instr);
        Value::Int(self.b.push(Instr::Cast(DType::I32, raw)), range)
    }

    fn instr(&mut self, instr: &Instr, reads: &[Range]) -> Result<Value> {
        let p = self.p;
        Ok(match *instr {
            Instr::Load(o) => match p.reads[o].dtype {
                DType::I64 => self.word(instr.clone(), reads[o]),
                dtype if dtype.class() == Class::Int => Value::Int(self.b.push(instr.clone()), reads[o]),
                _ => Value::Other(self.b.push(instr.clone())),
            },
            Instr::Iota(ref c) => {
                let sizes = p.outer.iter().chain(&p.inner);
                let ends = c.iter().zip(sizes).map(|(&c, &n)| c as i128 * n.saturating_sub(1) as i128);
                let range =
                    ends.fold(Range::new(0, 0), |r, end| Range::new(r.low + end.min(0), r.high + end.max(0)));
                ensure!(range.fits(), Unsupported, "an index of {BEYOND}");
                Value::Int(self.b.push(instr.clone()), range)
            }
            Instr::Int(x) => {
                Value::Int(self.b.push(Instr::Int(x as i32 as i64)), Range::new(x as i128, x as i128))
            }
            Instr::Float(_) | Instr::Bool(_) => Value::Other(self.b.push(instr.clone())),
            Instr::Unary(op, a) => match self.values[a] {
                Value::Int(reg, _) if op == Unary::FromBits => {
                    Value::Other(self.b.push(Instr::Unary(op, reg)))
                }
                Value::Int(reg, range) => {
                    // Negation and complement of a low half are the low half of the result.
                    let reg = if matches!(op, Unary::Neg | Unary::Not) { reg } else { self.whole(a, &op)? };
                    match op.class(Class::Int) {
                        Class::Int => self.word(Instr::Unary(op, reg), range.unary(op)),
                        _ => Value::Other(self.b.push(Instr::Unary(op, reg))),
                    }
                }
                _ => {
                    let a = self.whole(a, &op)?;
                    let reg = self.b.push(Instr::Unary(op, a));
                    if op == Unary::Bits { Value::Int(reg, Range::WORD) } else { Value::Other(reg) }
                }
            },
            Instr::Binary(op, a, c) => match (self.values[a], self.values[c]) {
                (Value::Int(x, x_range), Value::Int(y, y_range)) => {
                    use Binary::{Add, And, Mul, Or, Sub, Xor};
                    let (x, y) = match op {
                        // The low halves of the results are those of the operands'.
                        Add | Sub | Mul | And | Or | Xor => (x, y),
                        _ => (self.whole(a, &op)?, self.whole(c, &op)?),
                    };
                    match op.class(Class::Int) {
                        Class::Int => {
                            let range = match x_range.fits() && y_range.fits() {
                                true => x_range.binary(op, y_range),
                                false => Range::ALL,
                            };
                            self.word(Instr::Binary(op, x, y), range)
                        }
                        _ => Value::Other(self.b.push(Instr::Binary(op, x, y))),
                    }
                }
                _ => {
                    let (a, c) = (self.whole(a, &op)?, self.whole(c, &op)?);
                    Value::Other(self.b.push(Instr::Binary(op, a, c)))
                }
            },
            Instr::Select(condition, a, c) => {
                let condition = self.whole(condition, &"a condition")?;
                match (self.values[a], self.values[c]) {
                    (Value::Int(x, x_range), Value::Int(y, y_range)) => {
                        Value::Int(self.b.push(Instr::Select(condition, x, y)), x_range.union(y_range))
                    }
                    _ => {
                        let (a, c) = (self.whole(a, &"select")?, self.whole(c, &"select")?);
                        Value::Other(self.b.push(Instr::Select(condition, a, c)))
                    }
                }
            }
            Instr::Cast(dtype, a) => self.cast(dtype, a)?,
            Instr::Reduce(op, a) => match self.values[a] {
                Value::Int(reg, range) => {
                    let columns = p.cols();
                    match op {
                        Reduce::Sum => self.word(Instr::Reduce(op, reg), range.times(columns)),
                        Reduce::Prod => self.word(Instr::Reduce(op, reg), Range::ALL),
                        Reduce::Max | Reduce::Min => {
                            let reg = self.whole(a, &op)?;
                            // The extreme of nothing is the last number of 64 bits.
                            let range = if columns == 0 { Range::ALL } else { range };
                            self.word(Instr::Reduce(op, reg), range)
                        }
                    }
                }
                _ => {
                    let a = self.whole(a, &op)?;
                    Value::Other(self.b.push(Instr::Reduce(op, a)))
                }
            },
            Instr::Store(..) | Instr::Columns(..) => Value::None,
        })
    }

    fn cast(&mut self, dtype: DType, a: Reg) -> Result<Value> {
        let p = self.p;
        let from_float = p.classes().is_ok_and(|classes| classes[a] == Some(Class::Float));
        Ok(match (self.values[a], dtype) {
            (Value::Int(reg, range), DType::I64) => Value::Int(reg, range),
            (Value::Int(reg, range), DType::I32) => {
                Value::Int(reg, if range.fits() { range } else { Range::WORD })
            }
            (Value::Int(reg, range), _) if dtype.class() == Class::Int => {
                let own = Range::of(dtype);
                let kept = range.low >= own.low && range.high <= own.high;
                Value::Int(self.b.push(Instr::Cast(dtype, reg)), if kept { range } else { own })
            }
            (_, DType::I64) => {
                ensure!(!from_float, Unsupported, "conversion of floats to {BEYOND}");
                let a = self.whole(a, &"conversion")?;
                Value::Int(self.b.push(Instr::Cast(DType::I32, a)), Range::new(0, 1))
            }
            _ => {
                let a = self.whole(a, &format_args!("conversion to {dtype}"))?;
                let reg = self.b.push(Instr::Cast(dtype, a));
                match dtype.class() {
                    Class::Int => Value::Int(reg, Range::of(dtype)),
                    _ => Value::Other(reg),
                }
            }
        })
    }
}
