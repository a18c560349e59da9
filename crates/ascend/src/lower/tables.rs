//! Rows of a table by number, read and replaced: an optimizer's update of the rows that a sparse gradient has.

use super::indexing::{gathered, index_type, push, words};
use super::launch::{Lowered, LoweredArg, Refusal};
use super::product::input;
use super::sequence::{Sequence, Tensor};
use crate::chip::Chip;
use crate::kernel::Source;
use crate::kernels::{CheckIndex, GatherRows, check_index, scatter_rows};
use headwater_core::plan::TensorView;

/// Numbers of a table's rows, proved to be inside or -1.
fn numbers(s: &mut Sequence, given: &Tensor, rows: usize) -> Result<Tensor, Refusal> {
    let shape = CheckIndex {
        index: index_type(given.dtype())?,
        indices: given.shape().numel() as u64,
        limit: rows as u64,
        wrap: false,
        ignored: Some(-1),
    };
    let program = check_index(s.chip.arch, &shape)?;
    let checked = s.scratch(given.dtype(), given.shape())?;
    let args = vec![given.arg, checked.arg, LoweredArg::Fault { limit: shape.limit }];
    push(s, program, args, shape.reports());
    Ok(checked)
}

/// The launches of a `gather_rows` node: rows of a table by number, zeros for -1. Numbers ascend, as the gradient that they
/// come from has them.
///
/// # Errors
/// Types and shapes that have no kernel.
pub fn rows(
    chip: &Chip,
    reads: &[Option<TensorView>],
    write: &TensorView,
    source: &Source,
) -> Result<Lowered, Refusal> {
    let (table, out) = (input(reads, 0)?, Tensor::write(0, write));
    let [count, width] = out.shape()[..] else { return Err(Refusal::new("a table of another rank")) };
    if count * width == 0 {
        return Ok(Lowered::default());
    }
    let mut s = Sequence::new(chip, source);
    let height = table.shape()[0];
    let at = numbers(&mut s, &input(reads, 1)?, height)?;
    let zeros = s.scratch(table.dtype(), out.shape())?;
    s.fill(&zeros, 0.0)?;
    gathered(&mut s, [count, height, width], &at, &table, Some(&zeros), &out)?;
    Ok(s.lowered)
}

/// The launches of an `update_rows` node, which replaces rows of the table where it lies.
///
/// # Errors
/// Types and shapes that have no kernel.
pub fn update_rows(
    chip: &Chip,
    reads: &[Option<TensorView>],
    write: &TensorView,
    source: &Source,
) -> Result<Lowered, Refusal> {
    let (values, out) = (input(reads, 2)?, Tensor::write(0, write));
    let [height, width] = out.shape()[..] else { return Err(Refusal::new("a table of another rank")) };
    if values.shape().contains(&0) {
        return Ok(Lowered::default());
    }
    let mut s = Sequence::new(chip, source);
    let at = numbers(&mut s, &input(reads, 1)?, height)?;
    let (elem, dim) = words(out.dtype(), width as u64);
    let shape = GatherRows {
        elem,
        index: index_type(at.dtype())?,
        indices: values.shape()[0] as u64,
        rows: height as u64,
        dim,
        merged: false,
    };
    let program = scatter_rows(chip.arch, &shape)?;
    push(&mut s, program, vec![at.arg, values.arg, out.arg], shape.reports());
    Ok(s.lowered)
}
