//! A row program in f64 as one on pairs of f32.

use super::pair::{Arithmetic, Pair};
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::expr::{Binary, Unary};
use crate::row::{Instr, Reduce, Reg, RowBuilder, RowProgram};
use crate::{ensure, fail};

/// Most columns of a row that is summed.
pub(super) const COLUMNS: usize = 1024;

/// A register of the program that is replaced.
#[derive(Clone, Copy)]
enum Value {
    Float(Pair),
    /// Bool or Int.
    Other(Reg),
    /// A store defines none.
    None,
}

/// The program with each f64 operand in two of f32, high parts first, and f64 arithmetic on pairs.
///
/// # Errors
/// `Unsupported` for what pairs are not computed in, by name; `Graph` for an ill-formed program.
pub(super) fn split(p: &RowProgram) -> Result<RowProgram> {
    let classes = p.classes().map_err(|m| fail!(Graph, "{m}"))?;
    let mut b = RowBuilder::new(&p.outer, &p.inner);
    let parts = |dtype| if dtype == DType::F64 { 2 } else { 1 };
    let narrow = |dtype| if dtype == DType::F64 { DType::F32 } else { dtype };
    let mut reads = Vec::with_capacity(p.reads.len());
    for o in &p.reads {
        let first = b.operand(narrow(o.dtype), o.access.clone());
        let second = (parts(o.dtype) == 2).then(|| b.operand(DType::F32, o.access.clone()));
        reads.push((first, second));
    }
    let mut values: Vec<Value> = Vec::with_capacity(p.body.len());
    let mut stores: Vec<Option<Value>> = vec![None; p.writes.len()];
    for (at, instr) in p.body.iter().enumerate() {
        let value = match instr {
            Instr::Store(w, a) => {
                stores[*w] = Some(values[*a]);
                Value::None
            }
            Instr::Load(o) if classes[at] == Some(Class::Float) => {
                let (hi, lo) = reads[*o];
                let hi = b.push(Instr::Load(hi));
                Value::Float(Pair { hi, lo: lo.map(|lo| b.push(Instr::Load(lo))) })
            }
            Instr::Load(o) => Value::Other(b.push(Instr::Load(reads[*o].0))),
            Instr::Float(x) => Value::Float(constant(&mut b, *x)?),
            _ => compute(&mut b, instr, &values, p)?,
        };
        values.push(value);
    }
    for (o, stored) in p.writes.iter().zip(stores) {
        let stored = stored.ok_or_else(|| fail!(Unsupported, "sums over rows in pairs of f32"))?;
        match stored {
            Value::Other(r) => b.store(o.dtype, o.access.clone(), r),
            Value::Float(x) => {
                let whole = x.lo.is_none() || matches!(o.dtype, DType::F64 | DType::F32);
                ensure!(whole, Unsupported, "rounding pairs of f32 to {}", o.dtype);
                b.store(narrow(o.dtype), o.access.clone(), x.hi);
                if o.dtype == DType::F64 {
                    let lo = Arithmetic(&mut b).lo(x);
                    b.store(DType::F32, o.access.clone(), lo);
                }
            }
            Value::None => return Err(fail!(Graph, "a store is stored")),
        }
    }
    Ok(b.finish())
}

/// A number as a pair.
fn constant(b: &mut RowBuilder, x: f64) -> Result<Pair> {
    let hi = x as f32 as f64;
    ensure!(hi.is_finite() || !x.is_finite(), Unsupported, "the number {x:e} in pairs of f32");
    let lo = if x.is_finite() { (x - hi) as f32 as f64 } else { 0.0 };
    let mut arithmetic = Arithmetic(b);
    let hi = arithmetic.float(hi);
    Ok(Pair { hi, lo: (lo != 0.0).then(|| arithmetic.float(lo)) })
}

fn compute(b: &mut RowBuilder, instr: &Instr, values: &[Value], p: &RowProgram) -> Result<Value> {
    let other = |r: Reg| match values[r] {
        Value::Other(r) => Ok(r),
        _ => Err(fail!(Graph, "register {r} is of another class")),
    };
    let refused = |what: String| Err(fail!(Unsupported, "{what} in pairs of f32"));
    Ok(match *instr {
        Instr::Unary(op, a) => match values[a] {
            Value::Float(x) => match op {
                Unary::IsNan | Unary::IsInf => Value::Other(b.push(Instr::Unary(op, x.hi))),
                Unary::Sign => Value::Float(Pair::single(b.push(Instr::Unary(op, x.hi)))),
                Unary::Neg => Value::Float(Arithmetic(b).negative(x)),
                Unary::Abs => Value::Float(Arithmetic(b).magnitude(x)),
                Unary::Sqrt => Value::Float(Arithmetic(b).root(x)),
                Unary::Recip => {
                    let one = constant(b, 1.0)?;
                    Value::Float(Arithmetic(b).quotient(one, x))
                }
                _ => return refused(format!("{op:?}")),
            },
            _ if op == Unary::FromBits => return refused(format!("{op:?}")),
            _ => Value::Other(b.push(Instr::Unary(op, other(a)?))),
        },
        Instr::Binary(op, a, c) => match (values[a], values[c]) {
            (Value::Float(x), Value::Float(y)) => {
                let mut pairs = Arithmetic(b);
                match op {
                    Binary::Add => Value::Float(pairs.sum(x, y)),
                    Binary::Sub => Value::Float(pairs.difference(x, y)),
                    Binary::Mul => Value::Float(pairs.product(x, y)),
                    Binary::Div => Value::Float(pairs.quotient(x, y)),
                    Binary::Min | Binary::Max => Value::Float(pairs.extreme(op, x, y)),
                    _ if op.class(Class::Float) == Class::Bool => Value::Other(pairs.compare(op, x, y)),
                    _ => return refused(format!("{op:?}")),
                }
            }
            _ => Value::Other(b.push(Instr::Binary(op, other(a)?, other(c)?))),
        },
        Instr::Select(condition, a, c) => {
            let condition = other(condition)?;
            match (values[a], values[c]) {
                (Value::Float(x), Value::Float(y)) => Value::Float(Arithmetic(b).select(condition, x, y)),
                _ => Value::Other(b.push(Instr::Select(condition, other(a)?, other(c)?))),
            }
        }
        Instr::Cast(dtype, a) => match values[a] {
            Value::Float(x) => match dtype {
                DType::F64 => Value::Float(x),
                DType::F32 => Value::Float(Pair::single(x.hi)),
                _ if dtype.is_float() && x.lo.is_none() => {
                    Value::Float(Pair::single(b.push(Instr::Cast(dtype, x.hi))))
                }
                _ => return refused(format!("conversion to {dtype}")),
            },
            _ if !dtype.is_float() => Value::Other(b.push(Instr::Cast(dtype, other(a)?))),
            // Truth values are exact in any type; integers of more than 24 bits are not.
            _ if p.classes().is_ok_and(|classes| classes[a] == Some(Class::Bool)) => {
                Value::Float(Pair::single(b.push(Instr::Cast(DType::F32, other(a)?))))
            }
            _ => return refused("conversion of integers".into()),
        },
        Instr::Reduce(op, a) => match values[a] {
            Value::Float(x) => Value::Float(reduce(b, op, x, p.cols())?),
            _ => Value::Other(b.push(Instr::Reduce(op, other(a)?))),
        },
        Instr::Columns(..) => return refused("sums over rows".into()),
        // Constants of no float, indices.
        _ => Value::Other(b.push(instr.clone())),
    })
}

fn reduce(b: &mut RowBuilder, op: Reduce, x: Pair, columns: usize) -> Result<Pair> {
    let op = match op {
        Reduce::Sum => return sum(b, x, columns),
        Reduce::Prod => return Err(fail!(Unsupported, "products of rows in pairs of f32")),
        Reduce::Max | Reduce::Min => op,
    };
    let hi = b.reduce(op, x.hi);
    let Some(lo) = x.lo else { return Ok(Pair::single(hi)) };
    // The extreme low part among equal high parts.
    let mut pairs = Arithmetic(b);
    let equal = pairs.binary(Binary::Eq, x.hi, hi);
    let none = pairs.float(if op == Reduce::Max { f64::NEG_INFINITY } else { f64::INFINITY });
    let candidates = pairs.choose(equal, lo, none);
    let lo = b.reduce(op, candidates);
    let mut pairs = Arithmetic(b);
    let (found, zero) = (pairs.finite(lo), pairs.float(0.0));
    Ok(Pair { hi, lo: Some(pairs.choose(found, lo, zero)) })
}

/// The sum of a row by error-free extraction: AccSum of Rump, Ogita and Oishi 2008 (SIAM J. Sci. Comput. 31).
/// Each level takes the leading bits of every element that sums of the row hold exactly. So it has the same
/// bits in any order. Four levels and what is left of them cover pairs. Relative to the sum of the magnitudes
/// the error is below 32 u². This is 3 u² for each of 8 additions of levels, and less than u² for sums of
/// what is left.
fn sum(b: &mut RowBuilder, x: Pair, columns: usize) -> Result<Pair> {
    ensure!(columns <= COLUMNS, Unsupported, "sums of {columns} pairs of f32, more than {COLUMNS}");
    let as_it_is = b.sum(x.hi);
    let size = b.push(Instr::Unary(Unary::Abs, x.hi));
    let largest = b.reduce(Reduce::Max, size);
    let mut pairs = Arithmetic(b);
    // Far from overflow, if need be.
    let limit = pairs.float(f64::exp2(90.0));
    let far = pairs.binary(Binary::Gt, largest, limit);
    let power = |pairs: &mut Arithmetic, exponent: f64| {
        let (scale, one) = (pairs.float(f64::exp2(exponent)), pairs.float(1.0));
        Pair::single(pairs.choose(far, scale, one))
    };
    let (down, up) = (power(&mut pairs, -48.0), power(&mut pairs, 48.0));
    let largest = pairs.mul(largest, down.hi);
    // The power of two at or above it.
    let ulps = pairs.float(f64::exp2(24.0));
    let far_above = pairs.mul(largest, ulps);
    let next = pairs.add(far_above, largest);
    let next = pairs.sub(next, far_above);
    let (none, zero) = (pairs.float(0.0), pairs.float(0.0));
    let itself = pairs.binary(Binary::Eq, next, none);
    let next = pairs.choose(itself, largest, next);
    // 2^11 is at least the number of columns and two.
    let factor = pairs.float(f64::exp2(11.0));
    let mut sigma = pairs.mul(next, factor);
    let finer = pairs.float(f64::exp2(11.0 - 24.0));
    let mut rest: Vec<Reg> = vec![pairs.mul(x.hi, down.hi)];
    let lo = x.lo.map(|lo| pairs.mul(lo, down.hi));
    let mut total: Option<Pair> = None;
    for level in 0..4 {
        if level == 1 {
            // Low parts are at most half a unit of the high ones: smaller than what the first level leaves.
            rest.extend(lo);
        }
        let mut pairs = Arithmetic(b);
        let mut leading = Vec::new();
        for r in &mut rest {
            let above = pairs.add(sigma, *r);
            let lead = pairs.sub(above, sigma);
            *r = pairs.sub(*r, lead);
            leading.push(lead);
        }
        sigma = pairs.mul(sigma, finer);
        add_sums(b, &mut total, leading);
    }
    add_sums(b, &mut total, rest);
    let total = total.unwrap_or(Pair::single(zero));
    let mut pairs = Arithmetic(b);
    let total = pairs.product(total, up);
    let fine = pairs.finite(largest);
    Ok(pairs.select(fine, total, Pair::single(as_it_is)))
}

/// Adds the sum of each register over the row.
fn add_sums(b: &mut RowBuilder, total: &mut Option<Pair>, registers: Vec<Reg>) {
    for r in registers {
        let sum = b.sum(r);
        let sum = Pair::single(b.push(Instr::Cast(DType::F32, sum)));
        *total = Some(total.map_or(sum, |t| Arithmetic(b).sum(t, sum)));
    }
}
