//! Rows of a table replaced at given indices: the update of an embedding of which few rows are read.
//!
//! A task is a range of positions. Their indices are in UB, where the scalar unit checks each before a row is
//! copied.

use super::copies::{read, write};
use super::gather_task::{GatherRows, SHARE};
use super::indices::{Indices, not_inside, read_indices};
use super::refusal;
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{Builder, Elem, Pipe, Program, Scalar, ScalarType, Unit};

/// Rows in flight.
const SLOTS: u64 = 4;
/// Bytes of a slot: a longer row is copied in pieces.
const SLOT: u64 = 16 << 10;

/// `table[index[i], :] = rows[i, :]` for each i below n whose index is in the table.
///
/// Parameters: `index` \[n\], `rows` \[n, d\], `table` \[r, d\]. No two indices within the table are the
/// same. Indices outside of it, such as -1, are skipped. `shape` is that of the gather of these rows.
///
/// # Errors
/// `Unsupported` for other types of indices. `Range` for an empty shape, or one whose rows or positions are
/// no i32. `Alignment` on 310P, which copies whole blocks of 32 bytes, where a row is none.
pub fn scatter_rows(arch: Arch, shape: &GatherRows) -> Result<Program> {
    let GatherRows { elem, index, indices, rows, dim, .. } = *shape;
    let name = format!("scatter_rows_{elem}");
    check(arch, shape, &name)?;
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&name, arch, unit);
    k.doc(format!("table[index[i]] = rows[i]: {indices} indices, table {rows} x {dim}, {elem}"));
    let from = Indices::input(&mut k, index, indices);
    let new = k.input("rows", elem, indices * dim);
    let table = k.output("table", elem, rows * dim);
    let width = dim.min(SLOT / elem.size());
    let pitch = width.next_multiple_of(elem.per_block());
    let pieces = dim.div_ceil(width);
    let near = from.buffer(&mut k, 2 * SHARE);
    let row = k.ub("row", elem, SLOTS * pitch);
    let round = k.var("round", ScalarType::Int);
    k.set(round, 0);
    // A slot may be filled again.
    for slot in 0..SLOTS {
        k.set_flag(Pipe::Mte3, Pipe::Mte2, slot);
    }
    k.for_each("task", Scalar::BLOCK, shape.reports(), Scalar::BLOCKS, |k, task| {
        let (start, len) = shape.task(k, &task);
        k.flag(Pipe::S, Pipe::Mte2, 0);
        read_indices(k, near, from.gm, &start, &len);
        k.for_each("i", 0, len, 1, |k, i| {
            let target = k.load("target", near.at(&i));
            k.if_(not_inside(&target, rows).eq(0), |k| {
                let position = k.let_("position", start.clone() + i);
                k.for_each("piece", 0, pieces, 1, |k, piece| {
                    let column = k.let_("column", piece * width);
                    let columns =
                        k.let_("columns", Scalar::from(width).min(Scalar::from(dim) - column.clone()));
                    let slot = k.let_("slot", round % SLOTS);
                    let near = row.at(slot.clone() * pitch);
                    k.wait_flag(Pipe::Mte3, Pipe::Mte2, slot.clone());
                    read(k, near.clone(), new.at(position * dim + column.clone()), &columns);
                    k.flag(Pipe::Mte2, Pipe::Mte3, slot.clone());
                    write(k, table.at(target * dim + column), near, &columns);
                    k.set_flag(Pipe::Mte3, Pipe::Mte2, slot);
                    k.set(round, round + 1);
                });
            });
        });
    });
    for slot in 0..SLOTS {
        k.wait_flag(Pipe::Mte3, Pipe::Mte2, slot);
    }
    k.finish()
}

fn check(arch: Arch, shape: &GatherRows, name: &str) -> Result<()> {
    let GatherRows { elem, index, indices, rows, dim, .. } = *shape;
    let fail = |rule, message| Err(refusal(name, "update_rows", rule, message));
    if !matches!(index, Elem::I32 | Elem::I64) {
        return fail(Rule::Unsupported, format!("indices are {index}; i32 and i64 are supported"));
    }
    let limit = i32::MAX as u64;
    for (what, size) in [("indices", indices), ("rows", rows), ("elements of a row", dim)] {
        if !(1..=limit).contains(&size) {
            return fail(Rule::Range, format!("there are {size} {what}, outside 1 to {limit}"));
        }
    }
    let block = elem.per_block();
    if arch == Arch::P310 && dim % block != 0 {
        return fail(Rule::Alignment, format!("a row has {dim} {elem}, no multiple of {block} (32 bytes)"));
    }
    Ok(())
}
