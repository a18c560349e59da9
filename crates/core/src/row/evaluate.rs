//! Row programs on reference tensors: one row after the other, whole vectors, all in f64 and i64.

use crate::diagnostic::{Code, Error, Result};
use crate::dtype::{Class, DType};
use crate::expr::Unary;
use crate::expr::scalar;
use crate::row::{Access, Instr, Reduce, RowProgram};
use crate::shape::{Layout, Shape};
use crate::tensor::{Data, Tensor, TensorType};

/// Runs a program on its reads and returns its writes.
pub fn run(p: &RowProgram, reads: &[&Tensor], writes: &[TensorType]) -> Result<Vec<Tensor>> {
    let classes = p.classes().map_err(|m| Error::new(Code::Graph, m))?;
    // Rows of no elements may be very many.
    if writes.iter().all(|t| t.shape.numel() == 0) {
        return Ok(writes.iter().map(|t| Tensor::full(t, 0.0)).collect());
    }
    let offsets = |access: &Access, shape: &Shape| -> (Vec<isize>, Vec<isize>) {
        let strides: Vec<isize> = {
            let own = shape.strides();
            access.0.iter().map(|t| t.map_or(0, |(d, m)| own[d] * m as isize)).collect()
        };
        let (outer, inner) = strides.split_at(p.outer.len());
        let walk = |sizes: &[usize], strides: &[isize]| {
            Layout { shape: sizes.into(), strides: strides.into(), offset: 0 }.offsets()
        };
        (walk(&p.outer, outer), walk(&p.inner, inner))
    };
    let read_at: Vec<_> = p.reads.iter().zip(reads).map(|(o, t)| offsets(&o.access, t.shape())).collect();
    let write_at: Vec<_> = p.writes.iter().zip(writes).map(|(o, t)| offsets(&o.access, &t.shape)).collect();
    let mut out: Vec<Data> = writes
        .iter()
        .map(|t| match t.dtype.class() {
            Class::Float => Data::Float(vec![0.0; t.shape.numel()]),
            _ => Data::Int(vec![0; t.shape.numel()]),
        })
        .collect();
    let rows = Layout::contiguous(&Shape::new(&p.outer)).offsets().len();
    let index = |sizes: &[usize], coefs: &[i64]| -> Vec<i64> {
        let strides = coefs.iter().map(|&c| c as isize).collect();
        let l = Layout { shape: sizes.into(), strides, offset: 0 };
        l.offsets().into_iter().map(|o| o as i64).collect()
    };
    // A row scalar has one value, also where there are no columns.
    let scalars = p.scalars();
    let width = |at: usize| if scalars[at] { 1 } else { p.cols() };
    let still = |offsets: &[isize]| if offsets.is_empty() { vec![0] } else { offsets.to_vec() };
    for row in 0..rows {
        let mut regs: Vec<Data> = Vec::with_capacity(p.body.len());
        for (at, instr) in p.body.iter().enumerate() {
            let value = match instr {
                Instr::Load(i) => {
                    let (outer, inner) = &read_at[*i];
                    let inner = still(inner);
                    let at = inner[..width(at)].iter().map(|o| (outer[row] + o) as usize);
                    match &reads[*i].data {
                        Data::Float(v) => Data::Float(at.map(|k| v[k]).collect()),
                        Data::Int(v) => Data::Int(at.map(|k| v[k]).collect()),
                    }
                }
                Instr::Iota(c) => {
                    let (co, ci) = c.split_at(p.outer.len());
                    let base = index(&p.outer, co)[row];
                    let inner = if scalars[at] { vec![0] } else { index(&p.inner, ci) };
                    Data::Int(inner.into_iter().map(|i| base + i).collect())
                }
                Instr::Float(x) => Data::Float(vec![*x]),
                Instr::Int(x) => Data::Int(vec![*x]),
                Instr::Bool(x) => Data::Int(vec![*x as i64]),
                Instr::Unary(op, a) => match (&regs[*a], op.class(Class::Float)) {
                    (Data::Float(v), Class::Int) => Data::Int(v.iter().map(|&x| scalar::bits(x)).collect()),
                    (Data::Int(v), _) if *op == Unary::FromBits => {
                        Data::Float(v.iter().map(|&x| scalar::from_bits(x)).collect())
                    }
                    (Data::Float(v), Class::Bool) => {
                        Data::Int(v.iter().map(|&x| scalar::unary_test(*op, x) as i64).collect())
                    }
                    (Data::Float(v), _) => Data::Float(v.iter().map(|&x| scalar::unary_f(*op, x)).collect()),
                    (Data::Int(v), _) => {
                        let bool_ = classes[*a] == Some(Class::Bool);
                        let f = |x| if bool_ { (x == 0) as i64 } else { scalar::unary_i(*op, x) };
                        Data::Int(v.iter().map(|&x| f(x)).collect())
                    }
                },
                Instr::Binary(op, a, b) => match (&regs[*a], &regs[*b], op.class(Class::Float)) {
                    (Data::Float(a), Data::Float(b), Class::Bool) => {
                        Data::Int(zip(a, b, |a, b| scalar::compare(*op, &a, &b) as i64))
                    }
                    (Data::Float(a), Data::Float(b), _) => {
                        Data::Float(zip(a, b, |a, b| scalar::binary_f(*op, a, b)))
                    }
                    (Data::Int(a), Data::Int(b), _) => {
                        Data::Int(zip(a, b, |a, b| scalar::binary_i(*op, a, b)))
                    }
                    _ => return Err(Error::new(Code::Graph, "operands of two classes")),
                },
                Instr::Select(c, a, b) => {
                    let Data::Int(c) = &regs[*c] else {
                        return Err(Error::new(Code::Graph, "a float condition"));
                    };
                    match (&regs[*a], &regs[*b]) {
                        (Data::Float(a), Data::Float(b)) => Data::Float(select(c, a, b)),
                        (Data::Int(a), Data::Int(b)) => Data::Int(select(c, a, b)),
                        _ => return Err(Error::new(Code::Graph, "operands of two classes")),
                    }
                }
                Instr::Cast(d, a) => cast(&regs[*a], *d),
                Instr::Reduce(op, a) => reduce(*op, &regs[*a], p.cols()),
                Instr::Store(w, a) => {
                    let (outer, inner) = &write_at[*w];
                    // A row scalar is stored even where there are no columns.
                    let still = p.writes[*w].access.0[p.outer.len()..].iter().all(Option::is_none);
                    let inner = if still { &[0][..] } else { inner };
                    let at: Vec<usize> = inner.iter().map(|o| (outer[row] + o) as usize).collect();
                    match (&mut out[*w], &regs[*a]) {
                        (Data::Float(o), Data::Float(v)) => {
                            at.iter().enumerate().for_each(|(i, &k)| o[k] = pick(v, i))
                        }
                        (Data::Int(o), Data::Int(v)) => {
                            at.iter().enumerate().for_each(|(i, &k)| o[k] = pick(v, i))
                        }
                        _ => {
                            return Err(Error::new(
                                Code::Graph,
                                format!("instruction {at:?} stores another class"),
                            ));
                        }
                    }
                    Data::Int(vec![])
                }
                Instr::Columns(w, a) => {
                    let (_, inner) = &write_at[*w];
                    match (&mut out[*w], &regs[*a]) {
                        (Data::Float(o), Data::Float(v)) => {
                            inner.iter().enumerate().for_each(|(i, &k)| o[k as usize] += pick(v, i))
                        }
                        (Data::Int(o), Data::Int(v)) => {
                            inner.iter().enumerate().for_each(|(i, &k)| o[k as usize] += pick(v, i))
                        }
                        _ => {
                            return Err(Error::new(
                                Code::Graph,
                                format!("instruction {at} sums another class"),
                            ));
                        }
                    }
                    Data::Int(vec![])
                }
            };
            regs.push(value);
        }
    }
    let tensor = |(ty, data): (&TensorType, Data)| match data {
        Data::Float(v) => Tensor::float(ty.dtype, ty.shape.clone(), v),
        Data::Int(v) => Tensor::int(ty.dtype, ty.shape.clone(), v),
    };
    Ok(writes.iter().zip(out).map(tensor).collect())
}

/// Element `i` of a vector, or the one number of a row scalar.
fn pick<T: Copy>(v: &[T], i: usize) -> T {
    if v.len() == 1 { v[0] } else { v[i] }
}

fn zip<A: Copy, B>(a: &[A], b: &[A], f: impl Fn(A, A) -> B) -> Vec<B> {
    // A row scalar (length 1) meets a vector, which may be empty.
    let n = if a.len() == 1 { b.len() } else { a.len() };
    (0..n).map(|i| f(pick(a, i), pick(b, i))).collect()
}

fn select<T: Copy>(c: &[i64], a: &[T], b: &[T]) -> Vec<T> {
    let lens = [c.len(), a.len(), b.len()];
    let n = lens.into_iter().find(|&n| n != 1).unwrap_or(1);
    (0..n).map(|i| if pick(c, i) != 0 { pick(a, i) } else { pick(b, i) }).collect()
}

fn cast(v: &Data, d: DType) -> Data {
    let (from, n) = match v {
        Data::Float(v) => (DType::F64, v.len()),
        Data::Int(v) => (DType::I64, v.len()),
    };
    Tensor { ty: TensorType::new(from, [n]), data: v.clone() }.cast(d).data
}

fn reduce(op: Reduce, v: &Data, cols: usize) -> Data {
    match v {
        Data::Float(v) => {
            let items = (0..cols).map(|i| pick(v, i));
            Data::Float(vec![match op {
                // Not `sum`, which begins with −0.
                Reduce::Sum => items.fold(0.0, |a, b| a + b),
                Reduce::Prod => items.product(),
                Reduce::Max => {
                    items.fold(f64::NEG_INFINITY, |a, b| scalar::binary_f(crate::expr::Binary::Max, a, b))
                }
                Reduce::Min => {
                    items.fold(f64::INFINITY, |a, b| scalar::binary_f(crate::expr::Binary::Min, a, b))
                }
            }])
        }
        Data::Int(v) => {
            let items = (0..cols).map(|i| pick(v, i));
            Data::Int(vec![match op {
                Reduce::Sum => items.fold(0, i64::wrapping_add),
                Reduce::Prod => items.fold(1, i64::wrapping_mul),
                Reduce::Max => items.fold(i64::MIN, i64::max),
                Reduce::Min => items.fold(i64::MAX, i64::min),
            }])
        }
    }
}
