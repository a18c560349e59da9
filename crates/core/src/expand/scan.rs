//! Running sums and products along a dimension.
//!
//! Short rows of floats are summed for each element anew, which is one step. Longer ones, and products, are
//! combined with the element 1, 2, 4, … places before: Hillis and Steele, "Data parallel algorithms", CACM 29
//! (1986). Integers are summed in parts of 11 bits, whose sums are exact in f32.

use super::sequence::{Sequence, View};
use crate::diagnostic::Result;
use crate::dtype::DType::{F32, I32, I64};
use crate::expr::{Expr, float, input as x};
use crate::fail;
use crate::ops::OpCx;
use crate::row::{Access, Reg, RowBuilder, RowProgram};

/// Longest rows of floats whose elements are summed anew.
const SHORT: usize = 1024;

/// Longest rows of integers: so many parts of 11 bits, and what they carry, sum to less than 2²⁴.
const INTEGERS: usize = (1 << 13) - 1;

/// Index along an iteration dimension, as a float.
fn place(dim: usize) -> Expr {
    Expr::Coord(dim).cast(F32)
}

/// Rows of an operand along a dimension: `[before, after, n]`, contiguous in their elements.
fn rows(s: &mut Sequence, from: &View, [before, n, after]: [usize; 3]) -> Result<View> {
    let turned = from.reshaped(&[before, n, after])?.permuted(&[0, 2, 1]);
    if after > 1 { s.copied(&turned) } else { Ok(turned) }
}

/// The steps of a `cumsum` node.
///
/// # Errors
/// `Unsupported` for other types, and for long rows of integers.
pub fn sums(s: &mut Sequence, cx: &OpCx) -> Result<()> {
    let (from, to) = (s.input(0)?, s.output(0)?);
    if to.shape().contains(&0) {
        return Ok(());
    }
    let dim = cx.dim("dim", from.shape().rank())?;
    let reverse = cx.flag("reverse")?;
    let (before, n, after) = from.shape().around(dim);
    let to = to.reshaped(&[before, n, after])?;
    match (from.dtype.is_float(), to.dtype.is_float()) {
        (_, true) if n > SHORT => {
            let from = from.reshaped(&[before, n, after])?;
            doubled(s, &from, &to, reverse, |a, b| a + b)?;
        }
        (_, true) => {
            let from = rows(s, &from, [before, n, after])?;
            let mut b = RowBuilder::new(&[before, after, n], &[n]);
            let element = b.read(from.dtype, Access::dims(&[Some(0), Some(1), None, Some(2)]));
            let counts = if reverse { place(3).ge(place(2)) } else { place(3).le(place(2)) };
            let term = b.expr(&counts.select(x(0).cast(to.dtype), float(0.0)), &[element]);
            let sum = b.sum(term);
            b.store(to.dtype, Access::dims(&[Some(0), Some(1), Some(2), None]), sum);
            finish(s, b, &[&from], &to)?;
        }
        // Floats count as the words that they are cut to.
        (float, false) if n <= INTEGERS && (to.dtype == I32 || !float && to.dtype == I64) => {
            let from = rows(s, &from, [before, n, after])?;
            integers(s, &from, &to, reverse)?;
        }
        (false, false) if n > INTEGERS => {
            return Err(fail!(Unsupported, "running sums of more than {INTEGERS} integers"));
        }
        _ => return Err(fail!(Unsupported, "running sums of {} in {}", from.dtype, to.dtype)),
    }
    Ok(())
}

/// Runs a program whose one result is `[before, after, n]`, for an operand `[before, n, after]`.
fn finish(s: &mut Sequence, b: RowBuilder, reads: &[&View], to: &View) -> Result<()> {
    let turned = to.permuted(&[0, 2, 1]);
    if to.shape()[2] == 1 {
        return s.rows(b.finish(), reads, &[&turned]);
    }
    let found = s.temporary(to.dtype, turned.shape())?;
    s.rows(b.finish(), reads, &[&found])?;
    s.copy(&found, &turned)
}

/// The steps of a `cumprod` node.
///
/// # Errors
/// `Unsupported` for integers.
pub fn products(s: &mut Sequence, cx: &OpCx) -> Result<()> {
    let (from, to) = (s.input(0)?, s.output(0)?);
    if to.shape().contains(&0) {
        return Ok(());
    }
    if !from.dtype.is_float() || !to.dtype.is_float() {
        return Err(fail!(Unsupported, "running products of {} in {}", from.dtype, to.dtype));
    }
    let (before, n, after) = from.shape().around(cx.dim("dim", from.shape().rank())?);
    let (from, to) = (from.reshaped(&[before, n, after])?, to.reshaped(&[before, n, after])?);
    doubled(s, &from, &to, false, |a, b| a * b)
}

/// The steps of a `cumprod_backward` node: products of the elements before each, times `s[i] = g[i] + x[i+1]
/// · s[i+1]`. The recurrence is combined with itself 1, 2, 4, … places on.
///
/// # Errors
/// `Unsupported` for layouts that do not merge.
pub fn products_backward(s: &mut Sequence, cx: &OpCx) -> Result<()> {
    let (g, from, to) = (s.input(0)?, s.input(1)?, s.output(0)?);
    if to.shape().contains(&0) {
        return Ok(());
    }
    let (before, n, after) = from.shape().around(cx.dim("dim", from.shape().rank())?);
    let planar = |t: &View| t.reshaped(&[before, n, after]);
    let (g, from, to) = (planar(&g)?, planar(&from)?, planar(&to)?);
    let room = |s: &mut Sequence| s.temporary(F32, &[before, n, after]);
    // Elements shifted forward by one position, a 1 before them, or back by one, a 0 after them.
    let (on, back) = (room(s)?, room(s)?);
    for (moved, edge, value, [to, from_place]) in [(&on, 0, 1.0, [1, 0]), (&back, n - 1, 0.0, [0, 1])] {
        s.fill(&moved.part(1, edge, 1)?, value)?;
        if n > 1 {
            s.copy(&from.part(1, from_place, n - 1)?, &moved.part(1, to, n - 1)?)?;
        }
    }
    let products = room(s)?;
    doubled(s, &on, &products, false, |a, b| a * b)?;
    let mut factor = back;
    let mut sum = room(s)?;
    s.copy(&g, &sum)?;
    let mut step = 1;
    while step < n {
        let (next_factor, next_sum) = (room(s)?, room(s)?);
        for (have, next) in [(&factor, &next_factor), (&sum, &next_sum)] {
            s.copy(&have.part(1, n - step, step)?, &next.part(1, n - step, step)?)?;
        }
        let near = |t: &View| t.part(1, 0, n - step);
        let far = |t: &View| t.part(1, step, n - step);
        let operands = [near(&factor)?, near(&sum)?, far(&factor)?, far(&sum)?];
        let shape: &[usize] = operands[0].shape();
        let inputs = [(F32, shape); 4];
        let program = RowProgram::pointwise(&inputs, shape, &[F32, F32], &[x(0) * x(2), x(1) + x(0) * x(3)]);
        let reads: Vec<&View> = operands.iter().collect();
        s.rows(program, &reads, &[&near(&next_factor)?, &near(&next_sum)?])?;
        (factor, sum) = (next_factor, next_sum);
        step *= 2;
    }
    let shape: &[usize] = to.shape();
    let program = RowProgram::pointwise(&[(F32, shape); 2], shape, &[to.dtype], &[x(0) * x(1)]);
    s.rows(program, &[&products, &sum], &[&to])?;
    Ok(())
}

/// Combines each element of `[before, n, after]` with those before it, or with `reverse` those after it, in
/// f32.
fn doubled(
    s: &mut Sequence,
    from: &View,
    to: &View,
    reverse: bool,
    both: impl Fn(Expr, Expr) -> Expr,
) -> Result<()> {
    let n = from.shape()[1];
    if n == 1 {
        return s.copy(from, to);
    }
    let mut have = from.clone();
    if have.dtype != to.dtype {
        have = s.temporary(to.dtype, from.shape())?;
        s.copy(from, &have)?;
    }
    let room = [s.temporary(F32, from.shape())?, s.temporary(F32, from.shape())?];
    let mut step = 1;
    for round in 0.. {
        let last = step * 2 >= n;
        let next = if last { to } else { &room[round % 2] };
        // Elements without a partner so far away stay.
        let (alone, joined, partner) = if reverse { (n - step, 0, step) } else { (0, step, 0) };
        s.copy(&have.part(1, alone, step)?, &next.part(1, alone, step)?)?;
        let own = have.part(1, joined, n - step)?;
        let other = have.part(1, partner, n - step)?;
        let shape: &[usize] = own.shape();
        let inputs = [(have.dtype, shape), (have.dtype, shape)];
        let combined = both(x(0).cast(F32), x(1).cast(F32));
        let program = RowProgram::pointwise(&inputs, shape, &[next.dtype], &[combined]);
        s.rows(program, &[&own, &other], &[&next.part(1, joined, n - step)?])?;
        if last {
            return Ok(());
        }
        have = next.clone();
        step *= 2;
    }
    Ok(())
}

/// Sums of three parts of a word.
type Parts = [Reg; 3];

/// Running sums of integers `[before, after, n]`, modulo the range of the result `[before, n, after]`.
fn integers(s: &mut Sequence, from: &View, to: &View, reverse: bool) -> Result<()> {
    let shape = from.shape().to_vec();
    let (along, own) =
        (Access::dims(&[Some(0), Some(1), None, Some(2)]), Access::dims(&[Some(0), Some(1), Some(2), None]));
    let mut b = RowBuilder::new(&shape, &shape[2..]);
    let counts = if reverse { place(3).ge(place(2)) } else { place(3).le(place(2)) };
    let counts = b.expr(&counts, &[]);
    let wide = from.dtype == I64;
    let mut reads = Vec::new();
    let low = match wide {
        false => {
            reads.push(from.clone());
            let element = b.read(from.dtype, along.clone());
            b.expr(&x(0).cast(I32), &[element])
        }
        true => {
            reads.push(from.words()?.part(3, 0, 1)?);
            b.read(I32, along.clone())
        }
    };
    // A negative lower word counts 2³² more.
    let beyond = if to.dtype == I64 { 1024.0 } else { 0.0 };
    let sums = parts(&mut b, low, counts, beyond);
    let none = b.expr(&float(0.0), &[]);
    let (word, carry) = word(&mut b, sums, none);
    if to.dtype == I32 {
        b.store(I32, own, word);
        return finish(s, b, &reads.iter().collect::<Vec<_>>(), to);
    }
    let high = match wide {
        false => b.expr(&x(0).lt(Expr::Int(0)).select(Expr::Int(-1), Expr::Int(0)), &[low]),
        true => {
            reads.push(from.words()?.part(3, 1, 1)?);
            b.read(I32, along)
        }
    };
    let sums = parts(&mut b, high, counts, 0.0);
    let (upper, _) = self::word(&mut b, sums, carry);
    b.store(I32, own.clone(), word);
    b.store(I32, own, upper);
    let words = [s.temporary(I32, &shape)?, s.temporary(I32, &shape)?];
    s.rows(b.finish(), &reads.iter().collect::<Vec<_>>(), &[&words[0], &words[1]])?;
    // Both words of each integer, low words before high words.
    let [before, after, n] = shape[..] else { return Err(fail!(Unsupported, "rows of another rank")) };
    let own = [before, after, n, 1];
    let inputs = [(I32, &own[..]); 2];
    let both = Expr::Coord(3).eq(Expr::Int(0)).select(x(0), x(1));
    let program = RowProgram::pointwise(&inputs, &[before, after, n, 2], &[I32], &[both]);
    s.rows(program, &[&words[0], &words[1]], &[&to.permuted(&[0, 2, 1]).words()?])
}

/// Sums of the parts of words that count: bits 0 to 10, 11 to 21, and the rest with its sign, or with
/// `beyond` without.
fn parts(b: &mut RowBuilder, word: Reg, counts: Reg, beyond: f64) -> Parts {
    let masked = |mask: i64, scale: f64| x(0).and(Expr::Int(mask)).cast(I32).cast(F32) * scale;
    let top = masked(-(1 << 22), f64::exp2(-22.0));
    let top = match beyond == 0.0 {
        true => top,
        false => top + x(0).lt(Expr::Int(0)).select(float(beyond), float(0.0)),
    };
    [masked(0x7FF, 1.0), masked(0x3F_F800, f64::exp2(-11.0)), top].map(|part| {
        let term = b.expr(&x(1).select(part, float(0.0)), &[word, counts]);
        b.sum(term)
    })
}

/// The low 32 bits of a sum of words and a carry from below, and the bits above them.
fn word(b: &mut RowBuilder, [low, middle, high]: Parts, carry: Reg) -> (Reg, Reg) {
    let mut digits = Vec::new();
    let mut carry = carry;
    for (sum, bits) in [(low, 11), (middle, 11), (high, 10)] {
        let size = f64::exp2(f64::from(bits));
        let all = b.expr(&(x(0) + x(1)), &[sum, carry]);
        carry = b.expr(&(x(0) * (1.0 / size)).floor(), &[all]);
        digits.push(b.expr(&(x(0) - x(1) * size), &[all, carry]));
    }
    let whole = |i: usize, by: i64| (x(i).cast(I32) * Expr::Int(by)).cast(I32);
    let sign = x(2).lt(float(512.0)).select(x(2), x(2) - 1024.0);
    digits[2] = b.expr(&sign, &[digits[0], digits[1], digits[2]]);
    let sum = (whole(1, 1 << 11) + x(0).cast(I32)).cast(I32);
    let word = b.expr(&(sum + whole(2, 1 << 22)).cast(I32), &digits);
    (word, carry)
}
