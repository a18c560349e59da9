//! Gradient of an embedding's table, dense: ATen's `embedding_dense_backward`.
//!
//! A task is a range of table rows and of columns whose sums lie in UB as f32. Tasks go round the cores, and the core of
//! a task adds the gradients of its rows in the order of the indices. No element is summed by two cores, so the bits are
//! the same for any number of blocks, and there are no atomic sums.

use super::copies::{read, write_rows};
use super::indices::{Indices, below, not_below, not_inside, read_indices};
use super::refusal;
use crate::chip::Arch;
use crate::finding::{Result, Rule};
use crate::kernel::{
    Barrier, Binary, Builder, Elem, Over, Pipe, Program, Round, Scalar, ScalarBinary, ScalarType, Scaled,
    Unit,
};

/// Sums of a task, f32 elements.
const SUMS: u64 = 24 << 10;
/// Columns of a task.
const COLUMNS: u64 = 1024;
/// Indices that lie in UB at a time.
const INDICES: u64 = 4096;
/// Rows of gradients in flight.
const SLOTS: u64 = 4;
/// Rows that one copy moves.
const COPY_ROWS: u64 = 4095;
/// Words of `fault`.
const FAULT: u64 = 8;

/// Shapes of [`embedding_grad`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmbeddingGrad {
    /// Type of gradients, f32 or f16. Sums are f32, rounded once at the end.
    pub elem: Elem,
    /// Type of indices, i32 or i64.
    pub index: Elem,
    /// Number of indices, n.
    pub indices: u64,
    /// Rows of the table, r.
    pub rows: u64,
    /// Elements of a row, d.
    pub dim: u64,
    /// The row whose gradient is zero.
    pub padding: Option<u64>,
}

/// `grad_table[index[i], :] += grad[i, :]` for i = 0, 1, … below n, onto zeros.
///
/// Parameters: `index` \[n\], `grad` \[n, d\], `grad_table` \[r, d\], `fault` \[8\] i32. Indices outside 0 to r - 1
/// add nothing. `fault` has their number, the position of the first or -1, that index as i64 or 0, then zeros. The host
/// has to look at it.
///
/// # Errors
/// `Unsupported` for other types. `Range` for an empty shape, or one whose rows or positions are no i32. `Alignment`
/// on 310P, which has no copy of part of 32 bytes, where a row is no multiple of them.
pub fn embedding_grad(arch: Arch, shape: &EmbeddingGrad) -> Result<Program> {
    let EmbeddingGrad { elem, index, indices, rows, dim, padding } = *shape;
    let name = format!("embedding_grad_{elem}");
    check(arch, shape, &name)?;
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&name, arch, unit);
    k.doc(format!("grad_table[index[i]] += grad[i]: {indices} indices, table {rows} x {dim}, {elem}"));
    k.doc("each element is summed by one core, in f32, in the order of the indices");
    let from = Indices::input(&mut k, index, indices);
    let grad = k.input("grad", elem, indices * dim);
    let table = k.output("grad_table", elem, rows * dim);
    let fault = k.output("fault", Elem::I32, FAULT);

    let width = dim.min(COLUMNS);
    let tiles = dim.div_ceil(width);
    // Rows of sums begin at whole blocks, also as f16.
    let pitch = width.next_multiple_of(Elem::F16.per_block());
    let most = (SUMS / pitch).min(COPY_ROWS);
    let sums = k.ub("sums", Elem::F32, SUMS);
    let narrow = (elem == Elem::F16).then(|| k.ub("narrow", elem, SUMS));
    let row = k.ub("row", elem, SLOTS * pitch);
    let near = from.buffer(&mut k, INDICES);
    let report = k.ub("report", Elem::I32, FAULT);

    // Flags: a slot is free; the sums may be overwritten.
    for slot in 0..SLOTS {
        k.set_flag(Pipe::V, Pipe::Mte2, slot);
    }
    k.set_flag(Pipe::Mte3, Pipe::V, 0);
    if indices <= INDICES {
        read_indices(&mut k, near, from.gm, &Scalar::Int(0), &indices.into());
    }
    let round = k.var("round", ScalarType::Int);
    k.set(round, 0);
    let (wrong, first_wrong) = (k.var("wrong", ScalarType::Int), k.var("first_wrong", ScalarType::Int));
    let first_index = k.var("first_index", ScalarType::Int);
    let share = (Scalar::from(rows) + Scalar::BLOCKS - 1) / Scalar::BLOCKS;
    let share = k.let_("share", share.min(most));
    let tasks = k.let_("tasks", (share.clone() + (rows - 1)) / share.clone() * tiles);

    k.for_each("task", Scalar::BLOCK, tasks, Scalar::BLOCKS, |k, task| {
        let first = k.let_("first", task.clone() / tiles * share.clone());
        let count = k.let_("count", share.min(Scalar::from(rows) - first.clone()));
        let column = k.let_("column", task.clone() % tiles * width);
        let columns = k.let_("columns", Scalar::from(width).min(Scalar::from(dim) - column.clone()));
        let all = Over::count(count.clone() * pitch);
        k.set(wrong, 0);
        k.set(first_wrong, -1);
        k.set(first_index, 0);

        k.wait_flag(Pipe::Mte3, Pipe::V, 0);
        k.duplicate(sums.at(0), 0.0, all.clone());
        k.barrier(Barrier::V);
        let pieces = indices.div_ceil(INDICES);
        k.for_each("piece", 0, pieces, 1, |k, piece| {
            let start = piece * INDICES;
            let len = k.let_("len", Scalar::from(INDICES).min(Scalar::from(indices) - start.clone()));
            if pieces > 1 {
                k.flag(Pipe::S, Pipe::Mte2, 0);
                read_indices(k, near, from.gm, &start, &len);
            }
            k.for_each("i", 0, len, 1, |k, i| {
                let target = k.load("target", near.at(&i));
                let position = start + i;
                k.if_(not_inside(&target, rows), |k| {
                    k.if_(Scalar::Var(wrong).eq(0), |k| {
                        k.set(first_wrong, position.clone());
                        k.set(first_index, target.clone());
                    });
                    k.set(wrong, wrong + 1);
                });
                let mine = not_below(&target, first.clone())
                    .binary(ScalarBinary::And, below(&target, first.clone() + count.clone()));
                let mine = match padding {
                    Some(padding) => mine.binary(ScalarBinary::And, target.clone().ne(padding)),
                    None => mine,
                };
                k.if_(mine, |k| {
                    let slot = k.let_("slot", round % SLOTS);
                    let from = grad.at(position * dim + column.clone());
                    let gradient = row.at(slot.clone() * pitch);
                    let sum = sums.at((target - first.clone()) * pitch);
                    k.wait_flag(Pipe::V, Pipe::Mte2, slot.clone());
                    read(k, gradient.clone(), from, &columns);
                    k.flag(Pipe::Mte2, Pipe::V, slot.clone());
                    let over = Over::count(columns.clone());
                    match elem {
                        // The product with 1 is exact: one rounding, of the sum.
                        Elem::F16 => k.scaled(Scaled::Axpy, sum, gradient.strided(1, 4), 1.0, over),
                        _ => k.binary(Binary::Add, sum.clone(), sum, gradient, over),
                    }
                    k.set_flag(Pipe::V, Pipe::Mte2, slot);
                    // The next gradient may be of the same row.
                    k.barrier(Barrier::V);
                    k.set(round, round + 1);
                });
            });
        });

        let result = match narrow {
            Some(narrow) => {
                // 310P rounds to nearest, ties to even, where no rounding is named.
                let rounding = if arch == Arch::A2 { Round::Rint } else { Round::None };
                k.cast(narrow.at(0).strided(1, 4), sums.at(0), rounding, all);
                narrow
            }
            None => sums,
        };
        k.flag(Pipe::V, Pipe::Mte3, 0);
        let to = table.at(first * dim + column);
        write_rows(k, to, result.at(0), &count, &columns, [dim, pitch]);
        k.set_flag(Pipe::Mte3, Pipe::V, 0);
        k.if_(task.eq(0), |k| {
            k.store(report.at(0), wrong);
            k.store(report.at(1), first_wrong);
            k.store(report.cast(Elem::I64).at(1), first_index);
            for word in 4..FAULT {
                k.store(report.at(word), 0);
            }
            k.flag(Pipe::S, Pipe::Mte3, 0);
            k.copy(fault.at(0), report.at(0), FAULT);
        });
    });
    for slot in 0..SLOTS {
        k.wait_flag(Pipe::V, Pipe::Mte2, slot);
    }
    k.wait_flag(Pipe::Mte3, Pipe::V, 0);
    k.finish()
}

fn check(arch: Arch, shape: &EmbeddingGrad, name: &str) -> Result<()> {
    let EmbeddingGrad { elem, index, indices, rows, dim, padding } = *shape;
    let fail = |rule, message| Err(refusal(name, "embedding_dense_backward", rule, message));
    if !matches!(elem, Elem::F16 | Elem::F32) {
        return fail(Rule::Unsupported, format!("gradients are {elem}; f32 and f16 are supported"));
    }
    if !matches!(index, Elem::I32 | Elem::I64) {
        return fail(Rule::Unsupported, format!("indices are {index}; i32 and i64 are supported"));
    }
    let limit = i32::MAX as u64;
    for (what, size) in [("indices", indices), ("rows", rows), ("elements of a row", dim)] {
        if !(1..=limit).contains(&size) {
            return fail(Rule::Range, format!("there are {size} {what}, outside 1 to {limit}"));
        }
    }
    if let Some(padding) = padding.filter(|&p| p >= rows) {
        return fail(Rule::Range, format!("the padding row is {padding}, the table has {rows} rows"));
    }
    let block = elem.per_block();
    if arch == Arch::P310 && dim % block != 0 {
        let message =
            format!("a row has {dim} elements, no multiple of {block} (32 bytes); pad the table's rows");
        return fail(Rule::Alignment, message);
    }
    // Gaps between rows of a copy: bytes in 32 bits on A2, blocks in 16 bits on 310P.
    let gap = (dim - dim.min(COLUMNS)) / block;
    if arch == Arch::P310 && gap > 65535 {
        return fail(Rule::Range, format!("a row of {dim} elements is too long for copies of parts of it"));
    }
    Ok(())
}
