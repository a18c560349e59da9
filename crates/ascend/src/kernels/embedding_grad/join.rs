//! Partial sums of ranges that several tasks share, added in the order of the tasks.

use super::REPORT;
use super::part::Partition;
use super::rows::{Rows, Table, round};
use crate::kernel::finding::Result;
use crate::kernel::{
    Barrier, Binary, Builder, Elem, Over, Pipe, Program, Scalar, ScalarBinary, ScalarType, Unit,
};

/// Adds and writes: a unit is a piece of the range that a task ends and others have begun.
///
/// Parameters: `partials` and `cuts`, as the sums leave them, and `grad_table` \[r, d\].
pub(super) fn program(part: &Partition) -> Result<Program> {
    let elem = part.shape.elem;
    let unit = if part.arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&format!("embedding_grad_join_{elem}"), part.arch, unit);
    let (tiles, pitch, rows, dim) = (part.tiles, part.pitch, part.shape.rows, part.shape.dim);
    k.doc(format!("rows of table {rows} x {dim}, {elem}, that several of {} tasks have summed", part.tasks));
    let partials = k.input("partials", Elem::F32, part.tasks * tiles * part.partial());
    let cuts = k.input("cuts", Elem::I32, part.tasks * REPORT);
    let table = Table::declare(&mut k, part);
    let (piece, pieces) = (part.piece(), part.pieces());
    let sums = k.ub("sums", Elem::F32, piece * pitch);
    let more = k.ub("more", Elem::F32, piece * pitch);
    let narrow = (elem != Elem::F32).then(|| k.ub("narrow", elem, piece * pitch));
    let (from, goes) = (k.var("from_task", ScalarType::Int), k.var("goes", ScalarType::Int));
    k.for_each("unit", Scalar::BLOCK, part.tasks * tiles * pieces, Scalar::BLOCKS, |k, unit| {
        let task = k.let_("task", unit.clone() / (tiles * pieces));
        let begun = k.load("begun", cuts.at(task.clone() * REPORT + 1));
        let ended = k.load("ended", cuts.at(task.clone() * REPORT + 2));
        let range = k.load("range", cuts.at(task.clone() * REPORT));
        let skip = k.let_("skip", unit.clone() % pieces * piece);
        let row = k.let_("row", range.clone() * part.range + skip.clone());
        let here = Scalar::from(piece).min(Scalar::from(part.range) - skip.clone());
        let here = k.let_("here", here.min(Scalar::from(rows) - row.clone()).max(0));
        let joined = begun.min(ended).min(here.clone());
        k.if_(joined.ne(0), |k| {
            // The first task that has a part of the range: later ones begin within the range.
            k.set(from, task.clone() - 1);
            k.set(goes, 1);
            k.while_(goes, |k| {
                let before = k.load("range_before", cuts.at(from * REPORT));
                let within = k.load("within", cuts.at(from * REPORT + 1));
                k.set(goes, before.eq(range).binary(ScalarBinary::And, within));
                k.set(from, from - goes);
            });
            let tile = k.let_("tile", unit / pieces % tiles);
            let size = here.clone() * pitch;
            let partial = |task: Scalar, which: u64| {
                let place = (task * tiles + tile.clone()) * 2 + which;
                partials.at(place * (part.range * pitch) + skip.clone() * pitch)
            };
            k.copy(sums.at(0), partial(from.into(), 1), size.clone());
            let add = |k: &mut Builder, next| {
                k.copy(more.at(0), next, size.clone());
                k.flag(Pipe::Mte2, Pipe::V, 0);
                k.binary(Binary::Add, sums.at(0), sums.at(0), more.at(0), Over::Count(size.clone()));
                k.barrier(Barrier::V);
                k.flag(Pipe::V, Pipe::Mte2, 0);
            };
            k.for_each("other", from + 1, task.clone(), 1, |k, other| add(k, partial(other, 1)));
            add(k, partial(task, 0));
            let result = narrow.map_or(sums, |narrow| {
                round(k, narrow.at(0), sums.at(0), size.clone());
                narrow
            });
            k.flag(Pipe::V, Pipe::Mte3, 0);
            let column = k.let_("column", tile.clone() * part.width);
            let columns = Scalar::from(part.width).min(Scalar::from(dim) - column.clone());
            let columns = k.let_("columns", columns);
            let rows =
                Rows { row: &row, column: &column, rows: &here, columns: &columns, from: result.at(0) };
            table.write(k, part, &rows);
            // Sums and results may be overwritten.
            k.flag(Pipe::Mte3, Pipe::V, 0);
            k.flag(Pipe::V, Pipe::Mte2, 1);
        });
    });
    k.finish()
}
