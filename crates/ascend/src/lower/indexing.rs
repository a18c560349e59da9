//! Operators that read and write at places given by indices: `gather`, `index`, `index_put` and `scatter`.
//!
//! Indices become places in a tensor, proved to be inside ([`places`]); then rows or elements are gathered,
//! or summed or replaced by one core each, in the order of the indices. No sum is atomic.

use super::launch::{LoweredArg, LoweredLaunch, Refusal};
use super::product::even;
use super::sequence::{Sequence, Tensor, after};
use super::source::attributed;
use crate::chip::Arch;
use crate::kernel::{Elem, Program};
use crate::kernels::{
    EmbeddingGrad, GatherRows, Operand, Places, Rung, Scatter, ScatterSum, Stages, embedding_grad,
    gather_rows, places, scatter_sum,
};
use headwater_core::expr::{Expr, input};
use headwater_core::ops::OpCx;
use headwater_core::ops::index::index_tensor::Indexing;
use headwater_core::ops::index::scatter::{self, Combine};
use headwater_core::ops::pointwise::scalar;
use headwater_core::plan::TensorView;
use headwater_core::row::RowProgram;
use headwater_core::{DType, Layout, Shape};
use std::sync::Arc;

/// Most indices that each core looks through to find its own; more of them are sorted.
const LOOKED_THROUGH: u64 = 16 << 10;

/// Type of indices as kernels read them.
pub(super) fn index_type(dtype: DType) -> Result<Elem, Refusal> {
    let elem = Elem::of(dtype).filter(|e| matches!(e, Elem::I32 | Elem::I64));
    elem.ok_or_else(|| Refusal(format!("indices in {dtype}")))
}

/// Type of the words that rows of `dim` elements are moved in, and words of a row.
pub(super) fn words(dtype: DType, dim: u64) -> (Elem, u64) {
    let bytes = dim.saturating_mul(dtype.size() as u64);
    match bytes % 4 {
        0 => (Elem::U32, bytes / 4),
        2 => (Elem::U16, bytes / 2),
        _ => (Elem::U8, bytes),
    }
}

/// The words of 64-bit integers, each as two of 32: the lower one first.
pub(super) fn words_of(x: &Tensor) -> Result<Tensor, Refusal> {
    let own = &x.view.layout;
    let doubled = own.strides.iter().map(|s| s.checked_mul(2)).collect::<Option<Vec<isize>>>();
    let mut strides = doubled.ok_or_else(|| Refusal::new("strides beyond 64 bits"))?;
    strides.push(1);
    let shape: Shape = own.shape.iter().copied().chain([2]).collect();
    let layout = Layout { shape, strides: strides[..].into(), offset: own.offset * 2 };
    Ok(Tensor { arg: x.arg, view: TensorView { dtype: DType::I32, layout, ..x.view.clone() } })
}

fn product(sizes: &[usize]) -> usize {
    sizes.iter().product()
}

/// Adds a launch with work for so many blocks.
pub(super) fn push(s: &mut Sequence, program: Program, args: Vec<LoweredArg>, blocks: u64) {
    let blocks = blocks.clamp(1, u64::from(s.chip.vector_cores)) as u32;
    s.lowered.launches.push(LoweredLaunch { program: Arc::new(attributed(program, s.source)), args, blocks });
}

/// Buffer for reports of indices that are proved to be inside.
fn reports(s: &mut Sequence, number: u64) -> Result<LoweredArg, Refusal> {
    Ok(s.scratch(DType::I32, &[8 * number as usize])?.arg)
}

/// Indices of a dimension: their tensor, one for each position, the size and what one step is in places.
struct Along {
    index: Tensor,
    limit: usize,
    stride: usize,
}

/// Places in a tensor, i32, one for each position: what positions add by themselves (a size and a stride for
/// each dimension of them), and indices.
fn addressed(
    s: &mut Sequence,
    positions: &[(usize, usize)],
    along: &[Along],
    wrap: bool,
) -> Result<Tensor, Refusal> {
    let indices = positions.iter().map(|p| p.0).product::<usize>() as u64;
    let mut walks: Vec<[u64; 3]> = Vec::new();
    let mut divisor = 1;
    for &(size, stride) in positions.iter().rev() {
        let (size, stride) = (size as u64, stride as u64);
        if size > 1 && stride > 0 {
            // Dimensions that follow each other in memory are walked as one.
            match walks.last_mut() {
                Some([d, m, step]) if *d * *m == divisor && *step * *m == stride => *m *= size,
                _ => walks.push([divisor, size, stride]),
            }
        }
        divisor *= size;
    }
    let mut sum: Option<Tensor> = None;
    for Along { index, limit, stride } in along {
        let shape = Places {
            index: index_type(index.dtype())?,
            indices,
            limit: *limit as u64,
            wrap,
            stride: *stride as u64,
            walks: std::mem::take(&mut walks),
            onto: sum.is_some(),
        };
        let program = places(s.chip.arch, &shape)?;
        let out = s.scratch(DType::I32, &[shape.room() as usize])?;
        let mut args = vec![index.arg];
        args.extend(sum.map(|t| t.arg));
        args.extend([out.arg, LoweredArg::Fault { limit: shape.limit }]);
        push(s, program, args, shape.reports());
        sum = Some(out);
    }
    sum.ok_or_else(|| Refusal::new("no index at all"))
}

/// Rows of `dim` elements of a table of `rows` rows, at places; of `base` where a place is negative.
pub(super) fn gathered(
    s: &mut Sequence,
    [indices, rows, dim]: [usize; 3],
    at: &Tensor,
    table: &Tensor,
    base: Option<&Tensor>,
    out: &Tensor,
) -> Result<(), Refusal> {
    let (elem, width) = words(table.dtype(), dim as u64);
    if s.chip.arch == Arch::P310 && elem == Elem::U8 && table.dtype() == DType::Bool && base.is_none() {
        // The chip moves no single bytes: truths are moved as numbers.
        let [wide, found] = [rows, indices].map(|n| s.scratch(DType::F32, &[n * dim]));
        let (wide, found) = (wide?, found?);
        s.copy(&even(table, wide.shape())?, &wide)?;
        gathered(s, [indices, rows, dim], at, &wide, None, &found)?;
        return s.copy(&found, &even(out, found.shape())?);
    }
    let shape = GatherRows {
        elem,
        index: index_type(at.dtype())?,
        indices: indices as u64,
        rows: rows as u64,
        dim: width,
        merged: base.is_some(),
    };
    let program = gather_rows(s.chip.arch, &shape)?;
    let mut args = vec![at.arg, table.arg];
    args.extend(base.map(|t| t.arg));
    args.extend([out.arg, reports(s, shape.reports())?]);
    push(s, program, args, shape.reports());
    Ok(())
}

/// Elements summed or written at indices of planes. `fault` is given where indices are not proved to be
/// inside.
fn scattered(
    s: &mut Sequence,
    shape: &ScatterSum,
    operands: [Option<&Tensor>; 3],
    out: &Tensor,
    fault: bool,
) -> Result<(), Refusal> {
    let program = scatter_sum(s.chip.arch, shape)?;
    let mut args: Vec<LoweredArg> = operands.into_iter().flatten().map(|t| t.arg).collect();
    let report = match fault {
        true => LoweredArg::Fault { limit: shape.to },
        false => reports(s, shape.reports())?,
    };
    args.extend([out.arg, report]);
    push(s, program, args, shape.reports());
    Ok(())
}

/// ATen's `gather`.
///
/// # Errors
/// Types and shapes that have no kernel.
pub fn gather(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let (x, index) = (s.input(0)?, s.input(1)?);
    if index.shape().contains(&0) {
        return Ok(());
    }
    let at = along(s, cx, &x, &index)?;
    let sizes = [index.shape().numel(), x.shape().numel(), 1];
    let out = s.output(0)?;
    gathered(s, sizes, &at, &x, None, &out)
}

/// Places in `x` of the elements that an index of as many dimensions addresses along the attribute `dim`.
fn along(s: &mut Sequence, cx: &OpCx, x: &Tensor, index: &Tensor) -> Result<Tensor, Refusal> {
    let dim = cx.dim("dim", x.shape().rank())?;
    let strides = x.shape().strides();
    let stride = |d: usize| strides.get(d).map_or(1, |&s| s as usize);
    let positions: Vec<(usize, usize)> = (index.shape().iter().enumerate())
        .map(|(d, &size)| (size, if d == dim { 0 } else { stride(d) }))
        .collect();
    let limit = x.shape().get(dim).copied().unwrap_or(1);
    let index = Along { index: index.clone(), limit, stride: stride(dim) };
    addressed(s, &positions, &[index], false)
}

/// Rows that an indexing addresses: their places and number, the rows of the tensor, and elements of a row.
fn indexed(s: &mut Sequence, cx: &OpCx, indexing: &Indexing) -> Result<(Tensor, [usize; 3]), Refusal> {
    let x = cx.shape(0)?;
    let Some(&last) = indexing.dims.last() else { return Err(Refusal::new("no index at all")) };
    let (rows, row) = x.split_at(last + 1);
    let dim = product(row);
    if dim == 0 {
        return Err(Refusal::new("no elements"));
    }
    let step = |d: usize| product(&rows[d + 1..]);
    // Positions: dimensions that are not indexed, and among them those of the indices.
    let rest = (0..=last).filter(|d| !indexing.dims.contains(d));
    let mut positions: Vec<(usize, usize)> = rest.map(|d| (x[d], step(d))).collect();
    let given = indexing.index.iter().map(|&size| (size, 0));
    positions.splice(indexing.first..indexing.first, given);
    let shape: Shape = positions.iter().map(|p| p.0).collect();
    let end = indexing.first + indexing.index.rank();
    let mut all = Vec::new();
    for &d in &indexing.dims {
        let index = s.input(d + 1)?;
        // Repeated along the dimensions that it lacks.
        let own = &index.view.layout;
        let mut strides: Vec<isize> = vec![0; shape.rank()];
        for (to, (&size, &stride)) in
            strides[..end].iter_mut().rev().zip(own.shape.iter().zip(&own.strides).rev())
        {
            *to = if size == 1 { 0 } else { stride };
        }
        let layout = Layout { shape: shape.clone(), strides: strides[..].into(), offset: own.offset };
        let repeated = Tensor { arg: index.arg, view: TensorView { layout, ..index.view.clone() } };
        let index = if repeated.view.layout.is_contiguous() { repeated } else { s.copied(&repeated)? };
        all.push(Along { index, limit: x[d], stride: step(d) });
    }
    let at = addressed(s, &positions, &all, indexing.wrap)?;
    Ok((at, [shape.numel(), product(rows), dim]))
}

/// ATen's `index`, by integers.
///
/// # Errors
/// Types and shapes that have no kernel.
pub fn index(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let indexing = Indexing::of(cx, cx.inputs.len())?;
    if indexing.index.contains(&0) {
        return Ok(());
    }
    let (at, sizes) = indexed(s, cx, &indexing)?;
    let (table, out) = (s.input(0)?, s.output(0)?);
    gathered(s, sizes, &at, &table, None, &out)
}

/// ATen's `index_put`, by integers.
///
/// # Errors
/// Types and shapes that have no kernel.
pub fn index_put(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let end = cx.inputs.len().saturating_sub(1);
    let indexing = Indexing::of(cx, end)?;
    let (x, values, out) = (s.input(0)?, s.input(end)?, s.output(0)?);
    if indexing.out.contains(&0) {
        s.copy(&x, &out)?;
        return Ok(());
    }
    let accumulate = cx.flag("accumulate")?;
    let (at, sizes @ [indices, rows, dim]) = indexed(s, cx, &indexing)?;
    let values = repeated(&values, &indexing.out);
    if dim == 1 && (!accumulate || !x.dtype().is_float() || indices as u64 <= LOOKED_THROUGH) {
        let values = contiguous(s, &values)?;
        let scatter = if accumulate { Scatter::SumOnto } else { Scatter::Replace };
        let shape = flat(scatter, x.dtype(), indices, rows)?;
        scattered(s, &shape, [Some(&at), Some(&values), Some(&x)], &out, false)?;
        return Ok(());
    }
    if accumulate {
        summed(s, sizes, &at, &x, &values, &out)?;
        return Ok(());
    }
    // The last position of each row, whose values it gets.
    let values = contiguous(s, &values)?;
    let winners = s.scratch(DType::I32, &[rows])?;
    let shape = flat(Scatter::Position, DType::I32, indices, rows)?;
    scattered(s, &shape, [Some(&at), None, None], &winners, false)?;
    gathered(s, [rows, indices, dim], &winners, &values, Some(&x), &out)?;
    Ok(())
}

/// `out = x`, plus the values of each row, in f32.
fn summed(
    s: &mut Sequence,
    [indices, rows, dim]: [usize; 3],
    at: &Tensor,
    x: &Tensor,
    values: &Tensor,
    out: &Tensor,
) -> Result<(), Refusal> {
    if !x.dtype().is_float() {
        return Err(Refusal(format!("sums of rows in {}", x.dtype())));
    }
    let mut wide = values.clone();
    if values.dtype() != DType::F32 || !values.view.layout.is_contiguous() {
        wide = s.scratch(DType::F32, values.shape())?;
        s.copy(values, &wide)?;
    }
    // A table of a block or more.
    let padded = rows.max(8usize.div_ceil(dim));
    let table = s.scratch(DType::F32, &[padded, dim])?;
    let shape = EmbeddingGrad {
        elem: Elem::F32,
        index: Elem::I32,
        indices: indices as u64,
        rows: padded as u64,
        dim: dim as u64,
        padding: None,
        by_frequency: false,
        cores: s.chip.vector_cores,
    };
    let Stages { stages, workspace } = embedding_grad(s.chip.arch, &shape, Rung::Pipelined)?;
    let room = s.scratch(DType::I32, &[(workspace as usize).div_ceil(4)])?;
    for stage in stages {
        let report = stage.program.params.iter().zip(&stage.operands);
        let report = report.filter(|(_, o)| **o == Operand::Fault).map(|(p, _)| p.bytes()).sum::<u64>();
        let report = reports(s, report.div_ceil(32))?;
        let arg = |operand: &Operand| match *operand {
            Operand::Index => at.arg,
            Operand::Grad => wide.arg,
            Operand::Table => table.arg,
            Operand::Fault => report,
            Operand::Workspace(bytes) => after(room.arg, bytes),
        };
        let args = stage.operands.iter().map(arg).collect();
        push(s, stage.program, args, u64::from(stage.blocks));
    }
    let shape = x.shape();
    let sums =
        Tensor { view: TensorView { layout: Layout::contiguous(shape), ..table.view.clone() }, ..table };
    let inputs = [(x.dtype(), &shape[..]), (DType::F32, &shape[..])];
    s.rows(
        &RowProgram::pointwise(&inputs, shape, &[out.dtype()], &[input(0) + input(1)]),
        &[x, &sums],
        &[out],
    )
}

/// A tensor repeated to a shape that it broadcasts to.
fn repeated(x: &Tensor, shape: &Shape) -> Tensor {
    let own = &x.view.layout;
    let mut strides: Vec<isize> = vec![0; shape.rank()];
    for (to, (&size, &stride)) in strides.iter_mut().rev().zip(own.shape.iter().zip(&own.strides).rev()) {
        *to = if size == 1 { 0 } else { stride };
    }
    let layout = Layout { shape: shape.clone(), strides: strides[..].into(), offset: own.offset };
    Tensor { arg: x.arg, view: TensorView { layout, ..x.view.clone() } }
}

fn contiguous(s: &mut Sequence, x: &Tensor) -> Result<Tensor, Refusal> {
    if x.view.layout.is_contiguous() { Ok(x.clone()) } else { s.copied(x) }
}

/// A scatter to one plane, by places.
fn flat(scatter: Scatter, dtype: DType, from: usize, to: usize) -> Result<ScatterSum, Refusal> {
    Ok(ScatterSum {
        scatter,
        elem: element(scatter, dtype)?,
        index: Elem::I32,
        planes: 1,
        from: from as u64,
        to: to as u64,
    })
}

/// Type of the elements of a scatter: those that are only moved are words.
fn element(scatter: Scatter, dtype: DType) -> Result<Elem, Refusal> {
    let elem = match (scatter, dtype.size()) {
        (Scatter::Replace, 1) => Some(Elem::U8),
        (Scatter::Replace, 2) => Some(Elem::U16),
        (Scatter::Replace, 4) => Some(Elem::U32),
        (Scatter::Replace, 8) => Some(Elem::I64),
        _ => Elem::of(dtype),
    };
    elem.ok_or_else(|| Refusal(format!("scattered {dtype}")))
}

/// ATen's `scatter`, replacing or adding.
///
/// # Errors
/// Types, shapes and reductions that have no kernel.
pub fn scatter(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let combine = scatter::combine(cx)?;
    let (how, identity) = match combine {
        Combine::Replace => (Scatter::Replace, 0.0),
        Combine::Sum | Combine::Mean => (Scatter::SumOnto, 0.0),
        Combine::Prod => (Scatter::ProductOnto, 1.0),
        Combine::Max => (Scatter::MaxOnto, f64::NEG_INFINITY),
        Combine::Min => (Scatter::MinOnto, f64::INFINITY),
    };
    let keeps = combine == Combine::Replace || scatter::include_self(cx)?;
    let plain = keeps && combine != Combine::Mean;
    let (x, index, out) = (s.input(0)?, s.input(1)?, s.output(0)?);
    if index.shape().contains(&0) {
        s.copy(&x, &out)?;
        return Ok(());
    }
    let values = match s.optional(2) {
        Some(src) => {
            // The part that the index covers; a scalar counts as one element along one dimension.
            let mut strides = src.view.layout.strides.clone();
            strides.resize(index.shape().rank(), 1);
            let layout = Layout { shape: index.shape().clone(), strides, offset: src.view.layout.offset };
            contiguous(s, &Tensor { arg: src.arg, view: TensorView { layout, ..src.view.clone() } })?
        }
        _ => {
            let values = s.scratch(x.dtype(), index.shape())?;
            let value = scalar(cx, "value", x.dtype())?;
            let program = RowProgram::pointwise(&[], index.shape(), &[x.dtype()], &[value]);
            s.rows(&program, &[], &[&values])?;
            values
        }
    };
    let dim = cx.dim("dim", x.shape().rank())?;
    let rank = x.shape().rank();
    let whole = index.shape().rank() == rank
        && index.shape().iter().zip(x.shape().iter()).take(dim).all(|(a, b)| a == b);
    if plain && whole && dim + 1 == rank {
        let shape = ScatterSum {
            scatter: how,
            elem: element(how, x.dtype())?,
            index: index_type(index.dtype())?,
            planes: product(&x.shape()[..dim]) as u64,
            from: index.shape()[dim] as u64,
            to: x.shape()[dim] as u64,
        };
        scattered(s, &shape, [Some(&index), Some(&values), Some(&x)], &out, true)?;
        return Ok(());
    }
    let at = along(s, cx, &x, &index)?;
    let sizes = [index.shape().numel(), x.shape().numel()];
    let onto = |s: &mut Sequence, values: &Tensor, base: &Tensor, to: &Tensor| {
        let shape = flat(how, base.dtype(), sizes[0], sizes[1])?;
        scattered(s, &shape, [Some(&at), Some(values), Some(base)], to, false)
    };
    if plain {
        onto(s, &values, &x, &out)?;
        return Ok(());
    }
    if !x.dtype().is_float() {
        return Err(Refusal(format!("a scatter of {} without the old values, or of means", x.dtype())));
    }
    let means = combine == Combine::Mean;
    let dtype = if means { DType::F32 } else { x.dtype() };
    let mut base = x.clone();
    if !keeps {
        // Old values at places that are written do not take part.
        let last = s.scratch(DType::I32, x.shape())?;
        let shape = flat(Scatter::Position, DType::I32, sizes[0], sizes[1])?;
        scattered(s, &shape, [Some(&at), None, None], &last, false)?;
        let inputs = [(DType::I32, &x.shape()[..]), (x.dtype(), &x.shape()[..])];
        let fresh = input(0).lt(Expr::Int(0)).select(input(1), Expr::Float(identity));
        base = s.scratch(dtype, x.shape())?;
        s.rows(&RowProgram::pointwise(&inputs, x.shape(), &[dtype], &[fresh]), &[&last, &x], &[&base])?;
    }
    if !means {
        onto(s, &values, &base, &out)?;
        return Ok(());
    }
    let wide = |s: &mut Sequence, t: &Tensor| match t.dtype() {
        DType::F32 => Ok(t.clone()),
        _ => {
            let wide = s.scratch(DType::F32, t.shape())?;
            s.copy(t, &wide)?;
            Ok::<_, Refusal>(wide)
        }
    };
    let (base, values) = (wide(s, &base)?, wide(s, &values)?);
    let [sums, start, counts] = [(); 3].map(|()| s.scratch(DType::F32, x.shape()));
    let (sums, start, counts) = (sums?, start?, counts?);
    let ones = s.scratch(DType::F32, values.shape())?;
    s.fill(&start, if keeps { 1.0 } else { 0.0 })?;
    s.fill(&ones, 1.0)?;
    onto(s, &values, &base, &sums)?;
    onto(s, &ones, &start, &counts)?;
    let inputs = [(DType::F32, &x.shape()[..]); 2];
    let mean = input(0) / input(1).max(Expr::Float(1.0));
    s.rows(&RowProgram::pointwise(&inputs, x.shape(), &[x.dtype()], &[mean]), &[&sums, &counts], &[&out])?;
    Ok(())
}
