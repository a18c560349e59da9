//! The sums: each task adds the gradients of its positions to rows of sums in UB, range by range, and writes
//! them.

use super::super::copies::read;
use super::REPORT;
use super::lists::{Cut, Lists};
use super::part::Partition;
use super::rows::{Rows, Table, add, round};
use super::sort::{place, row};
use crate::kernel::finding::Result;
use crate::kernel::{
    Barrier, Buf, Builder, Elem, Gm, Over, Pipe, Program, Scalar, ScalarBinary, ScalarType, Scaled, Unit,
    VarId, View,
};

/// Flag of partial sums, after those of results.
const PARTIAL: u64 = 2;

/// Rows of sums, and what becomes of them.
struct Sums<'a> {
    part: &'a Partition,
    grad: Gm,
    table: Table,
    /// Partial sums, and where tasks begin and end, if tasks share ranges.
    shared: Option<[Gm; 2]>,
    /// Sums of a range; in f32 tables, as many as there are results in flight.
    sums: Buf,
    /// Rounded, as many as there are results in flight.
    narrow: Option<Buf>,
    /// Gradients in flight, and one widened.
    near: Buf,
    wide: Option<Buf>,
    /// Positions of each row of the range.
    counts: Option<Buf>,
    note: Option<Buf>,
    /// Gradients so far, and the result that is in hand.
    round: VarId,
    result: VarId,
}

/// Sums and writes.
///
/// Parameters: `index` \[n\] and `fault` \[8\] i32, or `lists` and `edges` as the sorting launch leaves them;
/// `grad` \[n, d\], `grad_table` \[r, d\]; where tasks share ranges `partials` \[tasks, tiles, 2, range,
/// pitch\] f32 and `cuts` \[tasks, 8\] i32: the first range, whether another task begins it, the ranges that
/// end, whether it begins another.
pub(super) fn program(part: &Partition) -> Result<Program> {
    let elem = part.shape.elem;
    let unit = if part.arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&format!("embedding_grad_{elem}"), part.arch, unit);
    let (indices, rows, dim) = (part.shape.indices, part.shape.rows, part.shape.dim);
    k.doc(format!("grad_table[index[i]] += grad[i]: {indices} indices, table {rows} x {dim}, {elem}"));
    k.doc(format!("{} tasks of ranges of {} rows, summed in f32, in a fixed order", part.tasks, part.range));
    let mut lists = Lists::declare(&mut k, part);
    let sums = Sums::declare(&mut k, part);
    let all = lists.begin(&mut k);
    let work = k.let_("work", all + part.range * part.ranges);
    sums.begin(&mut k);
    k.for_each("unit", Scalar::BLOCK, part.tasks * part.tiles, Scalar::BLOCKS, |k, unit| {
        let task = k.let_("task", unit.clone() / part.tiles);
        let tile = k.let_("tile", unit.clone() % part.tiles);
        let column = k.let_("column", tile.clone() * part.width);
        let columns = Scalar::from(part.width).min(Scalar::from(dim) - column.clone());
        let columns = k.let_("columns", columns);
        let shares = [0, 1].map(|i| k.let_("share", (task.clone() + i) * work.clone() / part.tasks));
        let ranges = [0, 1].map(|i| lists.range(k, &shares[i]));
        let [first, last] = lists.read(k, &ranges, &shares);
        let ended = last.range.clone() - first.range.clone();
        if part.heavy.is_some() {
            k.if_(tile.eq(0), |k| sums.note(k, &task, &first, &last));
        }
        let visited = k.let_("visited", ended.clone() + last.skip.clone().min(1));
        k.for_each("i", 0, visited, 1, |k, i| {
            let begin = k.let_("begin_row", (first.range.clone() + i.clone()) * part.range);
            let here = Scalar::from(part.range).min(Scalar::from(rows) - begin.clone());
            let here = k.let_("rows_here", here);
            sums.clear(k, &here);
            lists.each(k, &i, |k, key, slice| {
                let to = k.let_("to_row", row(part, key) - 1 - begin.clone());
                let position = k.let_("position", place(part, key) + slice.clone() * part.slice);
                sums.add(k, &to, &position, &column, &columns);
            });
            let finish = |k: &mut Builder| sums.finish(k, [&begin, &column], [&here, &columns]);
            if part.heavy.is_none() {
                return finish(k);
            }
            // The last range may end in another task, the first have begun in one.
            let carried = k.let_("carried", i.clone().eq(ended));
            let begun = first.skip.clone().ne(0).binary(ScalarBinary::And, i.eq(0));
            let partial = carried.clone().binary(ScalarBinary::Or, begun);
            k.if_else(partial, |k| sums.keep(k, unit.clone() * 2 + carried, &here), finish);
        });
    });
    sums.end(&mut k);
    k.finish()
}

impl<'a> Sums<'a> {
    /// Parameters and buffers.
    fn declare(k: &mut Builder, part: &'a Partition) -> Sums<'a> {
        let elem = part.shape.elem;
        let grad = k.input("grad", elem, part.shape.indices * part.shape.dim);
        if part.ragged {
            k.slack(grad, elem.per_block());
        }
        let table = Table::declare(k, part);
        let size = part.range * part.pitch;
        let is_wide = elem == Elem::F32;
        let shared = part.heavy.map(|_| {
            let partials = k.output("partials", Elem::F32, part.tasks * part.tiles * part.partial());
            [partials, k.output("cuts", Elem::I32, part.tasks * REPORT)]
        });
        Sums {
            part,
            grad,
            table,
            shared,
            sums: k.ub("sums", Elem::F32, if is_wide { part.results * size } else { size }),
            narrow: (!is_wide).then(|| k.ub("narrow", elem, part.results * size)),
            near: k.ub("near", elem, part.slots * part.pitch),
            wide: (elem == Elem::BF16).then(|| k.ub("wide", Elem::F32, part.pitch)),
            counts: part.shape.by_frequency.then(|| k.ub("counts", Elem::I32, part.range)),
            note: part.heavy.map(|_| k.ub("note", Elem::I32, REPORT)),
            round: k.var("round", ScalarType::Int),
            result: k.var("result", ScalarType::Int),
        }
    }

    fn begin(&self, k: &mut Builder) {
        for slot in 0..self.part.slots {
            k.set_flag(Pipe::V, Pipe::Mte2, slot);
        }
        for result in 0..self.part.results {
            k.set_flag(Pipe::Mte3, Pipe::V, result);
        }
        k.set(self.round, 0);
        k.set(self.result, 0);
    }

    fn end(&self, k: &mut Builder) {
        for slot in 0..self.part.slots {
            k.wait_flag(Pipe::V, Pipe::Mte2, slot);
        }
        for result in 0..self.part.results {
            k.wait_flag(Pipe::Mte3, Pipe::V, result);
        }
    }

    /// The first of the sums in hand.
    fn first(&self) -> View {
        match self.narrow {
            Some(_) => self.sums.at(0),
            None => self.sums.at(self.result * (self.part.range * self.part.pitch)),
        }
    }

    /// Sets sums of so many rows to zero.
    fn clear(&self, k: &mut Builder, rows: &Scalar) {
        if self.narrow.is_none() {
            k.wait_flag(Pipe::Mte3, Pipe::V, self.result);
        }
        k.duplicate(self.first(), 0.0, Over::Count(rows.clone() * self.part.pitch));
        k.barrier(Barrier::V);
        if let Some(counts) = self.counts {
            k.for_each("r", 0, rows.clone(), 1, |k, r| k.store(counts.at(r), 0));
        }
    }

    /// Adds the gradient of a position to a row of the range.
    fn add(&self, k: &mut Builder, row: &Scalar, position: &Scalar, column: &Scalar, columns: &Scalar) {
        let part = self.part;
        let slot = k.let_("slot", self.round % part.slots);
        let near = self.near.at(slot.clone() * part.pitch);
        k.wait_flag(Pipe::V, Pipe::Mte2, slot.clone());
        read(k, near.clone(), self.grad.at(position.clone() * part.shape.dim + column.clone()), columns);
        k.flag(Pipe::Mte2, Pipe::V, slot.clone());
        add(k, self.first().add(row.clone() * part.pitch), near, self.wide, columns);
        k.set_flag(Pipe::V, Pipe::Mte2, slot);
        // The next gradient may be of the same row.
        k.barrier(Barrier::V);
        k.set(self.round, self.round + 1);
        if let Some(counts) = self.counts {
            let count = k.load("count", counts.at(row));
            k.store(counts.at(row), count + 1);
        }
    }

    /// Rounds the sums of a range and writes them to the table from a row and a column on.
    fn finish(&self, k: &mut Builder, [row, column]: [&Scalar; 2], [rows, columns]: [&Scalar; 2]) {
        let part = self.part;
        if let Some(counts) = self.counts {
            k.for_each("r", 0, rows.clone(), 1, |k, r| {
                let count = k.load("count", counts.at(&r));
                k.if_(Scalar::from(1).lt(count.clone()), |k| {
                    let sums = self.first().add(r * part.pitch);
                    let factor = Scalar::from(1.0f32) / count.float();
                    k.scaled(Scaled::Muls, &sums, &sums, factor, Over::Count(columns.clone()));
                });
            });
            k.barrier(Barrier::V);
        }
        let from = match self.narrow {
            Some(narrow) => {
                let narrow = narrow.at(self.result * (part.range * part.pitch));
                k.wait_flag(Pipe::Mte3, Pipe::V, self.result);
                round(k, narrow.clone(), self.first(), rows.clone() * part.pitch);
                k.barrier(Barrier::V);
                narrow
            }
            None => self.first(),
        };
        k.flag(Pipe::V, Pipe::Mte3, self.result);
        self.table.write(k, part, &Rows { row, column, rows, columns, from });
        self.next(k);
    }

    /// Keeps partial sums of so many rows: number `place` of all.
    fn keep(&self, k: &mut Builder, place: Scalar, rows: &Scalar) {
        let Some([partials, _]) = self.shared else { return };
        let size = self.part.range * self.part.pitch;
        let flag = if self.narrow.is_some() { PARTIAL.into() } else { Scalar::Var(self.result) };
        k.flag(Pipe::V, Pipe::Mte3, flag);
        k.copy(partials.at(place * size), self.first(), rows.clone() * self.part.pitch);
        match self.narrow {
            Some(_) => k.flag(Pipe::Mte3, Pipe::V, PARTIAL),
            None => self.next(k),
        }
    }

    /// Hands the result over to the copies, and takes the next in hand.
    fn next(&self, k: &mut Builder) {
        k.set_flag(Pipe::Mte3, Pipe::V, self.result);
        k.set(self.result, (self.result + 1) % self.part.results);
    }

    /// Notes where a task begins and ends.
    fn note(&self, k: &mut Builder, task: &Scalar, first: &Cut, last: &Cut) {
        let (Some([_, cuts]), Some(note)) = (self.shared, self.note) else { return };
        let ended = last.range.clone() - first.range.clone();
        let words = [first.range.clone(), first.skip.clone().min(1), ended, last.skip.clone().min(1)];
        for i in 0..REPORT {
            k.store(note.at(i), words.get(i as usize).cloned().unwrap_or(0.into()));
        }
        k.flag(Pipe::S, Pipe::Mte3, 0);
        k.copy(cuts.at(task.clone() * REPORT), note.at(0), REPORT);
        k.flag(Pipe::Mte3, Pipe::S, 0);
    }
}
