//! Operands of a row program that are better copied before. Devices are fastest along contiguous columns. An
//! operand's neighbours in memory may be neighbouring rows instead, as in a norm over strided channels. One
//! transposition then costs less than to reduce rows read so, or to compute functions of them. Little
//! arithmetic does not pay for it.

use crate::row::{Access, Instr, Operand, RowProgram};
use crate::shape::Layout;
use crate::target::TransposeCosts;

/// Elements that are contiguous in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lies {
    Columns,
    Rows,
    Neither,
}

fn lies(p: &RowProgram, access: &Access, layout: &Layout) -> Lies {
    let sizes = || p.outer.iter().chain(&p.inner);
    let step = |d: usize| access.0[d].map_or(0, |(dim, times)| layout.strides[dim] * times as isize);
    let moving = |d: &usize| sizes().nth(*d).is_some_and(|&n| n > 1) && step(*d) != 0;
    let (rows, all) = (p.outer.len(), access.0.len());
    // A copy would hold every repetition of what is repeated.
    let repeated = layout.shape.iter().zip(&layout.strides).any(|(&n, &stride)| n > 1 && stride == 0);
    let mut along = (0..rows).filter(moving).peekable();
    match (rows..all).rev().find(moving) {
        // One column or row, the same for all others, is held in the cache in any layout.
        None => Lies::Neither,
        Some(_) if repeated || along.peek().is_none() => Lies::Neither,
        Some(d) if step(d).abs() == 1 => Lies::Columns,
        Some(_) if along.any(|d| step(d).abs() == 1) => Lies::Rows,
        Some(_) => Lies::Neither,
    }
}

/// The reads whose rows are contiguous, where the columns of other operands are.
pub(super) fn turned(
    p: &RowProgram,
    costs: &TransposeCosts,
    reads: &[Layout],
    writes: &[Layout],
) -> Vec<usize> {
    let pays = |i: &Instr| match i {
        Instr::Reduce(..) | Instr::Columns(..) => costs.reductions,
        Instr::Unary(f, _) => costs.functions.contains(f),
        _ => false,
    };
    if !p.body.iter().any(pays) {
        return Vec::new();
    }
    let each = |(o, layout): (&Operand, &Layout)| lies(p, &o.access, layout);
    let reads: Vec<Lies> = p.reads.iter().zip(reads).map(each).collect();
    let some = reads.iter().copied().chain(p.writes.iter().zip(writes).map(each)).any(|l| l == Lies::Columns);
    (0..reads.len()).filter(|&i| some && reads[i] == Lies::Rows).collect()
}
