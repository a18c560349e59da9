//! Rows of a table at given indices: ATen's `embedding` and `index_select` along the first dimension.
//!
//! A task is a range of positions. Their indices are in UB, where the scalar unit checks each before a row is
//! copied, so no index reaches memory that is not the table's.

use super::copies::{read, write};
use super::gather_packed::{Operands, packed, packs};
use super::gather_task::{GatherRows, Report, SHARE};
use super::indices::{Indices, not_inside, read_indices};
use super::refusal;
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{Builder, Elem, Over, Pipe, Program, Scalar, ScalarType, Unit};

/// Rows in flight.
const SLOTS: u64 = 4;
/// Bytes of a slot: a longer row is copied in pieces.
const SLOT: u64 = 16 << 10;

/// `out[i, :] = table[index[i], :]` for i below n.
///
/// Parameters: `index` \[n\], `table` \[r, d\], `base` \[n, d\] where it is [merged](GatherRows::merged),
/// `out` \[n, d\], `fault` \[reports, 8\] i32. Without `base`, an index outside 0 to r - 1 gives any row.
/// Each report has the number of such indices among a task's positions, the position of the first or -1, and
/// that index as i64, then zeros. The host has to look at them.
///
/// # Errors
/// `Unsupported` for other types of indices. `Range` for an empty shape, or one whose rows or positions are
/// no i32. `Alignment` on 310P, which copies whole blocks of 32 bytes, where a row is none and is longer than
/// 1 KB or of single bytes.
pub fn gather_rows(arch: Arch, shape: &GatherRows) -> Result<Program> {
    let GatherRows { elem, index, indices, rows, dim, merged } = *shape;
    let name = format!("gather_rows_{elem}");
    check(arch, shape, &name)?;
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&name, arch, unit);
    k.doc(format!("out[i] = table[index[i]]: {indices} indices, table {rows} x {dim}, {elem}"));
    let from = Indices::input(&mut k, index, indices);
    let table = k.input("table", elem, rows * dim);
    let base = merged.then(|| k.input("base", elem, indices * dim));
    let out = k.output("out", elem, indices * dim);
    let fault = k.output("fault", Elem::I32, shape.reports() * 8);
    if packs(arch, shape) {
        if arch == Arch::P310 {
            // Rows begin and end within a block.
            for gm in [Some(table), base].into_iter().flatten() {
                k.slack(gm, elem.per_block());
            }
        }
        packed(&mut k, shape, &Operands { from, table, base, out, fault });
        return k.finish();
    }

    let width = dim.min(SLOT / elem.size());
    let pitch = width.next_multiple_of(elem.per_block());
    let pieces = dim.div_ceil(width);
    let near = from.buffer(&mut k, 2 * SHARE);
    let row = k.ub("row", elem, SLOTS * pitch);
    let round = k.var("round", ScalarType::Int);
    k.set(round, 0);

    // Flags: a slot may be filled again; the report may be written again.
    for slot in 0..SLOTS {
        k.set_flag(Pipe::Mte3, Pipe::Mte2, slot);
    }
    let report = Report::declare(&mut k);
    k.for_each("task", Scalar::BLOCK, shape.reports(), Scalar::BLOCKS, |k, task| {
        let (start, len) = shape.task(k, &task);
        report.begin(k);
        k.flag(Pipe::S, Pipe::Mte2, 0);
        read_indices(k, near, from.gm, &start, &len);
        k.for_each("i", 0, len, 1, |k, i| {
            let target = k.load("target", near.at(&i));
            let position = k.let_("position", start.clone() + i);
            let outside = k.let_("outside", not_inside(&target, rows));
            if base.is_none() {
                k.if_(outside.clone(), |k| report.add(k, &position, &target));
            }
            k.for_each("piece", 0, pieces, 1, |k, piece| {
                let column = k.let_("column", piece * width);
                let columns = k.let_("columns", Scalar::from(width).min(Scalar::from(dim) - column.clone()));
                let slot = k.let_("slot", round % SLOTS);
                let near = row.at(slot.clone() * pitch);
                k.wait_flag(Pipe::Mte3, Pipe::Mte2, slot.clone());
                k.if_else(
                    outside.clone(),
                    |k| match base {
                        Some(base) => {
                            let own = base.at(position.clone() * dim + column.clone());
                            read(k, near.clone(), own, &columns);
                            k.flag(Pipe::Mte2, Pipe::Mte3, slot.clone());
                        }
                        // A row of zeros by the vector unit, after the slot's last copy is done.
                        None => {
                            k.flag(Pipe::Mte2, Pipe::V, slot.clone());
                            let words = row.cast(Elem::I16).at(slot.clone() * (pitch * elem.size() / 2));
                            k.duplicate(words, 0, Over::count(pitch * elem.size() / 2));
                            k.flag(Pipe::V, Pipe::Mte3, slot.clone());
                        }
                    },
                    |k| {
                        read(k, near.clone(), table.at(target.clone() * dim + column.clone()), &columns);
                        k.flag(Pipe::Mte2, Pipe::Mte3, slot.clone());
                    },
                );
                write(k, out.at(position.clone() * dim + column), near, &columns);
                k.set_flag(Pipe::Mte3, Pipe::Mte2, slot);
                k.set(round, round + 1);
            });
        });
        report.write(k, fault, &task);
    });
    for slot in 0..SLOTS {
        k.wait_flag(Pipe::Mte3, Pipe::Mte2, slot);
    }
    report.end(&mut k);
    k.finish()
}

fn check(arch: Arch, shape: &GatherRows, name: &str) -> Result<()> {
    let GatherRows { elem, index, indices, rows, dim, .. } = *shape;
    let fail = |rule, message| Err(refusal(name, "embedding", rule, message));
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
    if arch == Arch::P310 && dim % block != 0 && !packs(arch, shape) {
        return fail(
            Rule::Alignment,
            format!(
                "a row has {dim} {elem}, no multiple of {block} (32 bytes), and is too long to be moved together"
            ),
        );
    }
    Ok(())
}
