//! Rows of a table at given indices, where rows are short or not a multiple of a block. They are loaded with
//! a stride of at least a block of 32 bytes, and the vector unit compacts them before they are written.

use super::copies::{read, write};
use super::gather_task::{GatherRows, Report, SHARE};
use super::indices::{Indices, not_inside, read_indices};
use crate::chip::Arch;
use crate::kernel::{
    Barrier, Binary, Buf, Builder, CacheFlush, Elem, Gather, Gm, Over, Pipe, Ramp, Round, Scalar, ScalarType,
    Scaled,
};

/// Bytes of a slot that rows land in; two are in flight.
const LANDING: u64 = 16 << 10;
/// Fewest rows of a slot: so many rows of any type are a multiple of a block.
const LEAST: u64 = 16;
/// A2 copies rows of so many bytes as they are just as well.
const SHORT: u64 = 128;

/// The parameters of a gather.
pub(super) struct Operands {
    pub from: Indices,
    pub table: Gm,
    /// Rows for negative indices.
    pub base: Option<Gm>,
    pub out: Gm,
    pub fault: Gm,
}

/// True if rows of a table are gathered this way.
pub(super) fn packs(arch: Arch, shape: &GatherRows) -> bool {
    let bytes = shape.dim.saturating_mul(shape.elem.size());
    let wanted = match arch {
        Arch::A2 => bytes < SHORT,
        Arch::P310 => !bytes.is_multiple_of(32),
    };
    wanted && shape.elem.size() > 1 && pitch(shape) * LEAST <= LANDING
}

/// Bytes from one row to the next where they land.
const fn pitch(shape: &GatherRows) -> u64 {
    shape.dim.saturating_mul(shape.elem.size()).next_multiple_of(32)
}

/// Statements of a kernel of such a gather.
pub(super) fn packed(k: &mut Builder, shape: &GatherRows, operands: &Operands) {
    let GatherRows { elem, indices, rows, dim, .. } = *shape;
    let (pitch, size) = (pitch(shape), elem.size());
    let most = (LANDING / pitch).min(256);
    let most = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
    let words = most * dim;
    let near = operands.from.buffer(k, 2 * SHARE);
    let landing = k.ub("landing", elem, 2 * most * pitch / size);
    let together = k.ub("together", elem, 2 * words.next_multiple_of(elem.per_repeat()));
    let order = order(k, shape, words, pitch);
    // Parts are whole blocks, unless there is one alone. 310P copies whole blocks: of such a part, the last
    // elements again as a block of their own, and fewer than a block one by one.
    let (block, all) = (elem.per_block(), indices * dim);
    let ragged = k.arch() == Arch::P310 && all % block != 0 && indices < most;
    let last = (ragged && all >= block).then(|| {
        let places = k.ub("places", Elem::I32, 64);
        k.issue(Ramp { dst: places.at(0), first: 0.into(), count: 64.into() });
        k.barrier(Barrier::V);
        k.scaled(Scaled::Muls, places.at(0), places.at(0), size as i64, Over::count(64));
        k.barrier(Barrier::V);
        [k.ub("last", elem, elem.per_repeat()), places]
    });
    let report = Report::declare(k);
    let [round, row] = ["round", "row"].map(|name| k.var(name, ScalarType::Int));
    k.set(round, 0);
    // Flags: a slot may be filled again; the compacted rows are written.
    for slot in 0..2 {
        k.set_flag(Pipe::V, Pipe::Mte2, slot);
        k.set_flag(Pipe::Mte3, Pipe::V, slot);
    }
    k.for_each("task", Scalar::BLOCK, shape.reports(), Scalar::BLOCKS, |k, task| {
        let (start, len) = shape.task(k, &task);
        report.begin(k);
        k.flag(Pipe::S, Pipe::Mte2, 2);
        read_indices(k, near, operands.from.gm, &start, &len);
        let count = k.let_("count", len.clone().min(most));
        k.for_each("part", 0, len.clone(), most, |k, part| {
            // The last part is as long as the others: it begins where rows are gathered already.
            let begin = k.let_("begin", part.clone().min(len.clone() - count.clone()));
            let slot = k.let_("slot", round % 2);
            k.wait_flag(Pipe::V, Pipe::Mte2, slot.clone());
            k.for_each("i", 0, count.clone(), 1, |k, i| {
                let own = k.let_("own", begin.clone() + i.clone());
                let target = k.load("target", near.at(&own));
                let position = k.let_("position", start.clone() + own);
                let outside = k.let_("outside", not_inside(&target, rows));
                let into = landing.at(slot.clone() * (most * pitch / size) + i * (pitch / size));
                match operands.base {
                    Some(base) => k.if_else(
                        outside,
                        |k| read(k, into.clone(), base.at(position * dim), &dim.into()),
                        |k| read(k, into.clone(), operands.table.at(target.clone() * dim), &dim.into()),
                    ),
                    None => {
                        k.set(row, target.clone());
                        k.if_(outside, |k| {
                            // The last part sees some positions twice.
                            let new = begin.clone().eq(part.clone());
                            k.if_(new, |k| report.add(k, &position, &target));
                            k.set(row, 0);
                        });
                        read(k, into, operands.table.at(row * dim), &dim.into());
                    }
                }
            });
            k.flag(Pipe::Mte2, Pipe::V, slot.clone());
            k.wait_flag(Pipe::Mte3, Pipe::V, slot.clone());
            let result = together.at(slot.clone() * words.next_multiple_of(elem.per_repeat()));
            k.issue(Gather {
                dst: result.clone(),
                src: landing.at(0),
                offsets: order.cast(Elem::U32).at(0),
                base: slot.clone() * (most * pitch),
                count: count.clone() * dim,
            });
            k.set_flag(Pipe::V, Pipe::Mte2, slot.clone());
            if let Some([last, places]) = last {
                k.barrier(Barrier::V);
                k.issue(Gather {
                    dst: last.at(0),
                    src: result.clone(),
                    offsets: places.cast(Elem::U32).at(0),
                    base: ((all - block) * size).into(),
                    count: block.into(),
                });
            }
            let destination = k.let_("destination", (start.clone() + begin.clone()) * dim);
            k.flag(Pipe::V, Pipe::Mte3, slot.clone());
            if ragged && last.is_none() {
                k.flag(Pipe::V, Pipe::S, 2);
                k.for_each("i", 0, all, 1, |k, i| {
                    let value = k.load("value", together.at(&i));
                    k.store(operands.out.at(&i), value);
                    k.issue(CacheFlush { line: operands.out.at(i) });
                });
            } else {
                let whole: Scalar = if ragged { (all / block * block).into() } else { count.clone() * dim };
                k.if_(begin.ne(part), |k| k.barrier(Barrier::Mte3));
                write(k, operands.out.at(destination), result, &whole);
            }
            if let Some([last, _]) = last {
                k.barrier(Barrier::Mte3);
                write(k, operands.out.at(all - block), last.at(0), &block.into());
            }
            k.set_flag(Pipe::Mte3, Pipe::V, slot);
            k.set(round, round + 1);
        });
        report.write(k, operands.fault, &task);
    });
    for slot in 0..2 {
        k.wait_flag(Pipe::V, Pipe::Mte2, slot);
        k.wait_flag(Pipe::Mte3, Pipe::V, slot);
    }
    report.end(k);
}

/// Offsets in bytes of the elements where they land: element j at `j / dim · pitch + j % dim · size`. The
/// quotient is exact below 2²¹. `(j + ½) / dim` is at least `1 / 2 dim` from an integer, and the roundings of
/// f32 are less.
fn order(k: &mut Builder, shape: &GatherRows, words: u64, pitch: u64) -> Buf {
    let (dim, size) = (shape.dim, shape.elem.size());
    let order = k.ub("order", Elem::I32, words);
    k.issue(Ramp { dst: order.at(0), first: 0.into(), count: words.into() });
    k.barrier(Barrier::V);
    if dim > 1 {
        let float = k.ub("quotient", Elem::F32, words);
        let over = || Over::count(words);
        k.cast(float.at(0), order.at(0), Round::None, over());
        for (op, by) in [(Scaled::Adds, 0.5), (Scaled::Muls, 1.0 / dim as f32)] {
            k.barrier(Barrier::V);
            k.scaled(op, float.at(0), float.at(0), by, over());
        }
        let whole = k.ub("row_of", Elem::I32, words);
        k.barrier(Barrier::V);
        k.cast(whole.at(0), float.at(0), Round::Floor, over());
        k.scaled(Scaled::Muls, order.at(0), order.at(0), size as i64, over());
        k.barrier(Barrier::V);
        k.scaled(Scaled::Muls, whole.at(0), whole.at(0), pitch as i64 - (dim * size) as i64, over());
        k.barrier(Barrier::V);
        k.binary(Binary::Add, order.at(0), order.at(0), whole.at(0), over());
    } else {
        k.scaled(Scaled::Muls, order.at(0), order.at(0), pitch as i64, Over::count(words));
    }
    k.barrier(Barrier::V);
    order
}
