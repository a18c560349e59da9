//! Rows of a table by number, read and replaced: an optimizer's update of the rows that a sparse gradient
//! has.

use super::indexing::{gathered, index_type, push, words};
use super::launch::{LoweredArg, Refusal};
use super::sequence::{Sequence, Tensor};
use crate::kernels::{CheckIndex, GatherRows, check_index, scatter_rows};
use headwater_core::ops::OpCx;

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

/// The launches of a `gather_rows` node: rows of a table by number, zeros for -1. Numbers ascend, as the
/// gradient that they come from has them.
///
/// # Errors
/// Types and shapes that have no kernel.
pub fn rows(s: &mut Sequence, _: &OpCx) -> Result<(), Refusal> {
    let (table, out) = (s.input(0)?, s.output(0)?);
    let [count, width] = out.shape()[..] else { return Err(Refusal::new("a table of another rank")) };
    if count * width == 0 {
        return Ok(());
    }
    let height = table.shape()[0];
    let given = s.input(1)?;
    let at = numbers(s, &given, height)?;
    let zeros = s.scratch(table.dtype(), out.shape())?;
    s.fill(&zeros, 0.0)?;
    gathered(s, [count, height, width], &at, &table, Some(&zeros), &out)?;
    Ok(())
}

/// The launches of an `update_rows` node, which replaces rows of the table in place.
///
/// # Errors
/// Types and shapes that have no kernel.
pub fn update_rows(s: &mut Sequence, _: &OpCx) -> Result<(), Refusal> {
    let (values, out) = (s.input(2)?, s.output(0)?);
    let [height, width] = out.shape()[..] else { return Err(Refusal::new("a table of another rank")) };
    if values.shape().contains(&0) {
        return Ok(());
    }
    let given = s.input(1)?;
    let at = numbers(s, &given, height)?;
    let (elem, dim) = words(out.dtype(), width as u64);
    let shape = GatherRows {
        elem,
        index: index_type(at.dtype())?,
        indices: values.shape()[0] as u64,
        rows: height as u64,
        dim,
        merged: false,
    };
    let program = scatter_rows(s.chip.arch, &shape)?;
    push(s, program, vec![at.arg, values.arg, out.arg], shape.reports());
    Ok(())
}
