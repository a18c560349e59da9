//! Sorting, the largest elements, histograms and places in boundaries, by counting comparisons.
//!
//! The rank of an element is the number of those that come before it, of equal ones the earlier. Counts are
//! sums of ones in f32, exact below 2²⁴. Each is a reduction over a row, so that cost grows with the square
//! of a row's length.

use super::indexing::{gathered, words_of};
use super::launch::Refusal;
use super::product::even;
use super::sequence::{Sequence, Tensor};
use headwater_core::DType::{self, F32, I32, I64};
use headwater_core::expr::{Expr, float, input as x};
use headwater_core::ops::OpCx;
use headwater_core::ops::index::{searchsorted, sort};
use headwater_core::row::{Access, RowBuilder};

/// Longest rows that are sorted.
const SORTED: usize = 1 << 17;

/// Numbers up to it are exact in f32.
const EXACT: usize = 1 << 24;

/// Index along an iteration dimension, as a float.
fn place(dim: usize) -> Expr {
    Expr::Coord(dim).cast(F32)
}

/// 1 where a condition holds, else 0.
fn one_if(condition: Expr) -> Expr {
    condition.select(float(1.0), float(0.0))
}

/// True for integers that f32 has exactly.
fn small(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::U8 | DType::I8 | DType::I16)
}

/// The launches of a `sort` node.
///
/// # Errors
/// Rows that are too long, and types without a kernel.
pub fn sort(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    ordered(s, cx, cx.flag("descending")?)
}

/// The launches of a `topk` node.
///
/// # Errors
/// As [`sort`](fn@sort).
pub fn topk(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    ordered(s, cx, cx.attrs.get("largest").is_none() || cx.flag("largest")?)
}

/// The first elements of each row in order, and their places in it.
fn ordered(s: &mut Sequence, cx: &OpCx, descending: bool) -> Result<(), Refusal> {
    let (values, indices) = (s.output(0)?, s.output(1)?);
    if values.shape().contains(&0) {
        return Ok(());
    }
    let from = s.input(0)?;
    let dim = sort::dim(cx)?;
    let (before, n, after) = from.shape().around(dim);
    let k = values.shape().around(dim).1;
    if n > SORTED {
        return Err(Refusal::new(format!("rows of more than {SORTED} elements in order")));
    }
    // Rows to sort are contiguous.
    let mut rows = even(&from, &[before, n, after])?.permuted(&[0, 2, 1]);
    if after > 1 {
        rows = s.copied(&rows)?;
    }
    let rows = even(&rows, &[before, after, n])?;
    let ranks = s.scratch(F32, &[before, after, n])?;
    ranked(s, &rows, &ranks, descending)?;

    // Result r is the element of rank r.
    let turned = |t: &Tensor| Ok::<_, Refusal>(even(t, &[before, k, after])?.permuted(&[0, 2, 1]));
    let (values, indices) = (turned(&values)?, turned(&indices)?);
    let mut b = RowBuilder::new(&[before, after, k], &[n]);
    let along = Access::dims(&[Some(0), Some(1), None, Some(2)]);
    let to = Access::dims(&[Some(0), Some(1), Some(2), None]);
    let rank = b.read(F32, along.clone());
    let own = b.expr(&x(0).eq(place(2)), &[rank]);
    let order = b.expr(&x(0).select(place(3), float(0.0)), &[own]);
    let order = b.sum(order);
    let index = b.expr(&x(0).cast(I32).cast(I64), &[order]);
    if rows.dtype().is_float() {
        // The sum of an element and of zeros is the element; a zero has no sign.
        let element = b.read(rows.dtype(), along);
        let value = b.expr(&x(0).select(x(1), float(0.0)), &[own, element]);
        let value = b.sum(value);
        b.store(rows.dtype(), to.clone(), value);
        b.store(I64, to, index);
        s.rows(&b.finish(), &[&ranks, &rows], &[&values, &indices])?;
        return Ok(());
    }
    // Integers are moved as they are.
    let all = before * after * n;
    if all > i32::MAX as usize {
        return Err(Refusal::new("places beyond 32 bits"));
    }
    let places = s.scratch(I32, &[before, after, k])?;
    let first = (Expr::Coord(0) * Expr::Int(after as i64)).cast(I32) + Expr::Coord(1);
    let at = (first.cast(I32) * Expr::Int(n as i64)).cast(I32) + x(0).cast(I32);
    let at = b.expr(&at.cast(I32), &[order]);
    b.store(I64, to.clone(), index);
    b.store(I32, to, at);
    s.rows(&b.finish(), &[&ranks], &[&indices, &places])?;
    let sizes = [before * after * k, all, 1];
    if after == 1 {
        gathered(s, sizes, &places, &rows, None, &values)?;
    } else {
        let found = s.scratch(rows.dtype(), &[before, after, k])?;
        gathered(s, sizes, &places, &rows, None, &found)?;
        s.copy(&found, &values)?;
    }
    Ok(())
}

/// The rank of each element of rows, f32; NaN counts as largest.
fn ranked(s: &mut Sequence, rows: &Tensor, ranks: &Tensor, descending: bool) -> Result<(), Refusal> {
    let shape = rows.shape().to_vec();
    let n = shape[2];
    let dtype = rows.dtype();
    let mut b = RowBuilder::new(&shape, &[n]);
    let own = Access::dims(&[Some(0), Some(1), Some(2), None]);
    let other = Access::dims(&[Some(0), Some(1), None, Some(2)]);
    // Position of an element among those that are equal.
    let earlier = || place(3).lt(place(2));
    let before = |a: Expr, b: Expr| if descending { a.gt(b) } else { a.lt(b) };
    let mut reads = vec![];
    let comes_before = if dtype.is_float() || small(dtype) {
        let mut keys = Vec::new();
        for (access, dim) in [(other, 3), (own.clone(), 2)] {
            let element = b.read(dtype, access);
            let element = b.expr(&x(0).cast(F32), &[element]);
            // NaN sorts next to the largest value, after or before all of them.
            let nan = x(0).is_nan();
            let key = nan.clone().select(float(f64::INFINITY), x(0));
            let later = if descending {
                nan.select(float(0.0), float(n as f64))
            } else {
                nan.select(float(n as f64), float(0.0))
            };
            keys.push(b.expr(&key, &[element]));
            keys.push(match dtype.is_float() {
                true => b.expr(&(later + place(dim)), &[element]),
                false => b.expr(&place(dim), &[]),
            });
            reads.push(rows.clone());
        }
        let equal = x(0).eq(x(2)).and(x(1).lt(x(3)));
        b.expr(&before(x(0), x(2)).or(equal), &keys)
    } else if dtype == I32 {
        let keys = [b.read(I32, other), b.read(I32, own.clone())];
        reads.extend([rows.clone(), rows.clone()]);
        b.expr(&before(x(0), x(1)).or(x(0).eq(x(1)).and(earlier())), &keys)
    } else if dtype == I64 {
        // The upper words decide, and the lower ones without their sign.
        let mut keys = Vec::new();
        for access in [other, own.clone()] {
            for word in [1, 0] {
                let element = b.read(I32, access.clone());
                keys.push(match word {
                    0 => b.expr(&x(0).xor(Expr::Int(i32::MIN.into())).cast(I32), &[element]),
                    _ => element,
                });
                reads.push(words_of(rows)?.part(3, word, 1)?);
            }
        }
        let low = before(x(1), x(3)).or(x(1).eq(x(3)).and(earlier()));
        b.expr(&before(x(0), x(2)).or(x(0).eq(x(2)).and(low)), &keys)
    } else {
        return Err(Refusal(format!("an order of {dtype}")));
    };
    let count = b.expr(&one_if(x(0)), &[comes_before]);
    let count = b.sum(count);
    b.store(F32, own, count);
    s.rows(&b.finish(), &reads.iter().collect::<Vec<_>>(), &[ranks])
}

/// The launches of a `histc` node.
///
/// # Errors
/// A range of the data's own, and more elements than f32 counts.
pub fn histogram(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let (from, to) = (s.input(0)?, s.output(0)?);
    let (bins, n) = (to.shape().numel(), from.shape().numel());
    let [low, high] = ["min", "max"].map(|name| cx.float(name));
    let (low, high) = (low?, high?);
    if low >= high || !(high - low).is_finite() {
        return Err(Refusal::new("a histogram over the range of its data"));
    }
    if n >= EXACT || bins >= EXACT {
        return Err(Refusal::new(format!("histograms of {EXACT} elements and more")));
    }
    if n == 0 {
        s.fill(&to, 0.0)?;
        return Ok(());
    }
    let from = even(&from, &[n])?;
    let places = s.scratch(F32, &[n])?;
    // The last bin contains its upper end.
    let bin = ((x(0) - low) / float(high - low) * bins as f64).floor().min(float(bins as f64 - 1.0));
    let inside = x(0).ge(float(low)).and(x(0).le(float(high)));
    let mut b = RowBuilder::new(&[], &[n]);
    let element = b.read(from.dtype(), Access::identity(1));
    let bin = b.expr(&inside.select(bin, float(-1.0)), &[element]);
    b.store(F32, Access::identity(1), bin);
    s.rows(&b.finish(), &[&from], &[&places])?;
    let mut b = RowBuilder::new(&[bins], &[n]);
    let bin = b.read(F32, Access::dims(&[None, Some(0)]));
    let count = b.expr(&one_if(x(0).eq(place(0))), &[bin]);
    let count = b.sum(count);
    b.store(to.dtype(), Access::dims(&[Some(0), None]), count);
    s.rows(&b.finish(), &[&places], &[&to])?;
    Ok(())
}

/// The launches of a `searchsorted` node.
///
/// # Errors
/// Numbers of both classes, and integers of 64 bits.
pub fn searched(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let (edges, values, to) = (s.input(0)?, s.input(1)?, s.output(0)?);
    if to.shape().contains(&0) {
        return Ok(());
    }
    let right = searchsorted::right(cx)?;
    let floats = |t: &Tensor| t.dtype().is_float() || small(t.dtype());
    let words = [&edges, &values].iter().all(|t| t.dtype() == I32);
    let alike = words || floats(&edges) && floats(&values);
    if !alike {
        return Err(Refusal(format!("places of {} among {}", values.dtype(), edges.dtype())));
    }
    let (rank, n) = (edges.shape().rank(), edges.shape()[edges.shape().rank() - 1]);
    if n >= EXACT {
        return Err(Refusal::new(format!("{EXACT} boundaries and more")));
    }
    // Rows of values; a vector of boundaries serves them all.
    let columns = if rank == 1 { values.shape().numel() } else { values.shape()[rank - 1] };
    let lanes = values.shape().numel() / columns;
    if n == 0 {
        return Err(Refusal::new("places among no boundaries"));
    }
    let (edges, values) = (even(&edges, &[lanes, n])?, even(&values, &[lanes, columns])?);
    let to = even(&to, &[lanes, columns])?;
    let mut b = RowBuilder::new(&[lanes, columns], &[n]);
    let own = Access::dims(&[Some(0), Some(1), None]);
    let edge = b.read(edges.dtype(), Access::dims(&[Some(0), None, Some(1)]));
    let value = b.read(values.dtype(), own.clone());
    let compared = |a: Expr, b: Expr| if right { a.le(b) } else { a.lt(b) };
    let comes_before = match words {
        true => b.expr(&compared(x(0), x(1)), &[edge, value]),
        // NaN belongs after everything.
        false => {
            let [e, v] = [edge, value].map(|r| b.expr(&x(0).cast(F32), &[r]));
            b.expr(&compared(x(0), x(1)).or(x(1).is_nan()), &[e, v])
        }
    };
    let count = b.expr(&one_if(x(0)), &[comes_before]);
    let count = b.sum(count);
    let count = b.expr(&x(0).cast(I32).cast(to.dtype()), &[count]);
    b.store(to.dtype(), own, count);
    s.rows(&b.finish(), &[&edges, &values], &[&to])?;
    Ok(())
}
