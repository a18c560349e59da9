//! The lower rungs: every gradient is added to its row by an atomic copy, to a table in f32 that is rounded
//! at the end. The order of sums is that in which cores come: two runs may differ in the last bits.

use super::super::copies::{read, write};
use super::super::indices::{not_inside, read_indices};
use super::rows::round;
use super::{EmbeddingGrad, Operand, Stages, refuse};
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{
    Access, AtomicOp, Barrier, Builder, DataCopyPad, Elem, Gm, Over, Pipe, Program, Round, Scalar,
    ScalarBinary, Unit, View,
};

/// Elements of a large copy.
pub(super) const LARGE: u64 = 8 << 10;
/// Rows of a large copy at most.
const ROWS: u64 = 16;
/// Indices that UB holds at a time.
const INDICES: u64 = 2048;

/// The share of a gradient that one copy moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Copies {
    /// A row.
    Rows,
    /// Many rows.
    Many,
}

/// The launches of a lower rung.
pub(super) fn stages(arch: Arch, shape: &EmbeddingGrad, copies: Copies, stages: &mut Stages) -> Result<()> {
    let EmbeddingGrad { elem, rows, dim, .. } = *shape;
    let block = elem.per_block();
    if dim > LARGE {
        let message =
            format!("a row has {dim} elements, more than {LARGE}: sorted positions have no such limit");
        return Err(refuse(shape, Rule::Range, message));
    }
    if arch == Arch::P310 && dim % block != 0 {
        let message =
            format!("a row has {dim} elements, no multiple of {block} (32 bytes): sort the positions");
        return Err(refuse(shape, Rule::Alignment, message));
    }
    if shape.by_frequency {
        return Err(refuse(shape, Rule::Unsupported, "scaling by frequency takes sorted positions".into()));
    }
    let (cores, elements) = (u64::from(shape.cores), rows * dim);
    let piece = if copies == Copies::Rows { dim } else { LARGE };
    let sums = match elem {
        Elem::F32 => Operand::Table,
        _ => stages.take(elements * 4),
    };
    stages.push(zeros(arch, Elem::F32, elements, piece)?, &[sums], cores);
    stages.push(add(arch, shape, copies)?, &[Operand::Index, Operand::Grad, sums], cores);
    if elem != Elem::F32 {
        stages.push(rounded(arch, elem, elements, piece)?, &[sums, Operand::Table], cores);
    }
    Ok(())
}

const fn unit(arch: Arch) -> Unit {
    if arch.split() { Unit::Vector } else { Unit::Whole }
}

/// Fills memory with zeros, `piece` elements a copy, the last of up to twice as many.
///
/// Parameters: `out` \[elements\].
pub(super) fn zeros(arch: Arch, elem: Elem, elements: u64, piece: u64) -> Result<Program> {
    let mut k = Builder::new(&format!("zeros_{elem}"), arch, unit(arch));
    k.doc(format!("zeros: {elements} elements, {elem}"));
    let out = k.output("out", elem, elements);
    let (tasks, block) = ((elements / piece).max(1), elem.per_block());
    let last = elements - (tasks - 1) * piece;
    let room = last.max(piece).next_multiple_of(elem.per_repeat());
    let zeros = k.ub("zeros", elem, room);
    // The vector unit has no bf16.
    let same = if elem.size() == 2 { Elem::F16 } else { elem };
    k.duplicate(zeros.cast(same).at(0), 0.0, Over::count(room));
    k.flag(Pipe::V, Pipe::Mte3, 0);
    k.for_each("task", Scalar::BLOCK, tasks, Scalar::BLOCKS, |k, task| {
        let is_last = k.let_("is_last", task.clone().eq(tasks - 1));
        let len = k.let_("len", is_last.clone() * last + (Scalar::from(1) - is_last.clone()) * piece);
        if arch == Arch::A2 || elements.is_multiple_of(block) && piece.is_multiple_of(block) {
            return write(k, out.at(task * piece), zeros.at(0), &len);
        }
        // Whole blocks, and the last one of all again as a block of its own.
        let whole = k.let_("whole", len / block * block);
        k.copy(out.at(task * piece), zeros.at(0), whole);
        k.if_(is_last, |k| {
            k.barrier(Barrier::Mte3);
            k.copy(out.at(elements - block), zeros.at(0), block);
        });
    });
    k.finish()
}

/// Adds gradients.
///
/// Parameters: `index` \[n\], `grad` \[n, d\], `sums` \[r, d\] f32.
fn add(arch: Arch, shape: &EmbeddingGrad, copies: Copies) -> Result<Program> {
    let EmbeddingGrad { elem, index, indices, rows, dim, padding, cores, .. } = *shape;
    let mut k = Builder::new(&format!("embedding_grad_atomic_{elem}"), arch, unit(arch));
    let pitch = dim.next_multiple_of(Elem::F16.per_block());
    let group = if copies == Copies::Rows { 1 } else { (2 * LARGE / pitch).clamp(1, ROWS) };
    k.doc(format!("sums[index[i]] += grad[i], atomic: {indices} indices, table {rows} x {dim}, {elem}"));
    k.doc(format!("{group} rows a copy"));
    let from = k.input("index", index, indices);
    if arch == Arch::P310 {
        k.slack(from, index.per_block());
    }
    let grad = k.input("grad", elem, indices * dim);
    let sums = k.pointer("sums", Access::InOut, Elem::F32, rows * dim);
    let share = indices.div_ceil(u64::from(cores.max(1))).next_multiple_of(ROWS).min(INDICES);
    let places = k.ub("places", index, share);
    let near = k.ub("near", elem, group * pitch);
    let wide = (elem != Elem::F32).then(|| k.ub("wide", Elem::F32, group * pitch));
    k.for_each("task", Scalar::BLOCK, indices.div_ceil(share), Scalar::BLOCKS, |k, task| {
        let start = k.let_("start", task * share);
        let len = k.let_("len", Scalar::from(share).min(Scalar::from(indices) - start.clone()));
        k.flag(Pipe::S, Pipe::Mte2, 0);
        read_indices(k, places, from, &start, &len);
        k.for_each("i", 0, len.clone(), group, |k, i| {
            let here = k.let_("here", Scalar::from(group).min(len.clone() - i.clone()));
            read_rows(k, near.at(0), grad.at((start.clone() + i.clone()) * dim), &here, [dim, pitch]);
            match wide {
                Some(wide) => {
                    k.flag(Pipe::Mte2, Pipe::V, 0);
                    let all = Over::Count(here.clone() * pitch);
                    k.cast(wide.at(0), near.at(0).strided(1, 4), Round::None, all);
                    k.flag(Pipe::V, Pipe::Mte3, 0);
                }
                None => k.flag(Pipe::Mte2, Pipe::Mte3, 0),
            }
            let from = wide.unwrap_or(near);
            k.for_each("r", 0, here, 1, |k, r| {
                let target = k.load("target", places.at(i.clone() + r.clone()));
                let inside = not_inside(&target, rows).eq(0);
                let mine = match padding {
                    Some(padding) => inside.binary(ScalarBinary::And, target.clone().ne(padding)),
                    None => inside,
                };
                k.if_(mine, |k| add_row(k, sums, target, from.at(r * pitch), dim));
            });
            // One copy at a time: the next waits for these.
            k.flag(Pipe::Mte3, Pipe::Mte2, 0);
            if wide.is_some() {
                k.flag(Pipe::Mte3, Pipe::V, 0);
            }
        });
    });
    k.finish()
}

/// Copies rows into UB with a stride of `pitch` elements.
fn read_rows(k: &mut Builder, into: View, from: View, rows: &Scalar, [dim, pitch]: [u64; 2]) {
    let elem = into.elem;
    let (blocks, apart) = (dim.div_ceil(elem.per_block()), pitch / elem.per_block());
    match k.arch() {
        Arch::A2 => k.copy_pad(into, from, rows.clone(), dim * elem.size(), 0, apart - blocks),
        Arch::P310 => k.copy_runs(into, from, rows.clone(), blocks, 0, apart - blocks),
    }
}

/// Adds a row of `dim` sums to row `target`.
fn add_row(k: &mut Builder, sums: Gm, target: Scalar, src: View, dim: u64) {
    let dst = sums.at(target * dim);
    match k.arch() {
        Arch::A2 => k.issue(DataCopyPad {
            dst,
            src,
            blocks: 1.into(),
            bytes: (dim * 4).into(),
            src_gap: 0.into(),
            dst_gap: 0.into(),
            left: 0,
            right: 0,
            fill: None,
            atomic: Some(AtomicOp::Add),
        }),
        Arch::P310 => k.copy_atomic(dst, src, dim, AtomicOp::Add),
    }
}

/// Rounds sums, `piece` elements a copy.
///
/// Parameters: `sums` \[elements\] f32, `out` \[elements\].
fn rounded(arch: Arch, elem: Elem, elements: u64, piece: u64) -> Result<Program> {
    let mut k = Builder::new(&format!("rounded_{elem}"), arch, unit(arch));
    k.doc(format!("sums in f32 rounded to {elem}: {elements} elements"));
    let sums = k.input("sums", Elem::F32, elements);
    let out = k.output("out", elem, elements);
    let room = piece.next_multiple_of(Elem::F32.per_repeat());
    let (wide, narrow) = (k.ub("wide", Elem::F32, room), k.ub("narrow", elem, room));
    k.for_each("task", Scalar::BLOCK, elements.div_ceil(piece), Scalar::BLOCKS, |k, task| {
        let start = k.let_("start", task * piece);
        let len = k.let_("len", Scalar::from(piece).min(Scalar::from(elements) - start.clone()));
        read(k, wide.at(0), sums.at(&start), &len);
        k.flag(Pipe::Mte2, Pipe::V, 0);
        round(k, narrow.at(0), wide.at(0), len.clone());
        k.flag(Pipe::V, Pipe::Mte3, 0);
        write(k, out.at(start), narrow.at(0), &len);
        k.flag(Pipe::Mte3, Pipe::Mte2, 0);
        k.flag(Pipe::Mte3, Pipe::V, 0);
    });
    k.finish()
}
