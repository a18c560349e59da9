//! Indices proved to be in range: `check_index`, which other operators' indices go through.
//!
//! A task is a range of positions, whose indices the scalar unit checks and replaces in UB.

use super::copies::write;
use super::indices::{Indices, not_below, not_inside, read_indices};
use super::refusal;
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{
    Barrier, Builder, CacheFlush, Elem, Pipe, Program, Scalar, ScalarBinary, ScalarType, Unit,
};

/// Positions of a task; the last has what is left beside, so that it has a whole block if there is one.
const POSITIONS: u64 = 1024;

/// Shapes of [`check_index`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckIndex {
    /// Type of indices, i32 or i64.
    pub index: Elem,
    /// Number of indices, n.
    pub indices: u64,
    /// Indices are below it.
    pub limit: u64,
    /// True where negative indices count from the end.
    pub wrap: bool,
    /// The index that is valid without being a row: `ignore_index`.
    pub ignored: Option<i64>,
}

impl CheckIndex {
    /// Reports that the kernel writes: one for each task.
    pub const fn reports(&self) -> u64 {
        let whole = self.indices / POSITIONS;
        if whole == 0 { 1 } else { whole }
    }
}

/// `out[i] = index[i]`, plus `limit` where it is negative and `wrap` is set; `ignored` stays as it is.
///
/// Parameters: `index` \[n\], `out` \[n\], `fault` \[reports, 8\] i32. An index that is not in 0 to `limit` -
/// 1 then gives
/// 0. Each report has the number of such indices among a task's positions, the position of the first or -1,
///    and that index as i64, then zeros. The host has to look at them.
///
/// # Errors
/// `Unsupported` for other types of indices. `Range` for none, or more than an i32 counts, and a limit of 0
/// or beyond i64.
pub fn check_index(arch: Arch, shape: &CheckIndex) -> Result<Program> {
    let CheckIndex { index, indices, limit, wrap, ignored } = *shape;
    let name = format!("check_index_{index}");
    check(shape, &name)?;
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&name, arch, unit);
    let wrapped = if wrap { ", negative ones from the end" } else { "" };
    k.doc(format!("out[i] = index[i], proved to be in 0..{limit}{wrapped}: {indices} indices"));
    let from = Indices::input(&mut k, index, indices);
    let out = k.output("out", index, indices);
    let fault = k.output("fault", Elem::I32, shape.reports() * 8);
    let block = index.per_block();
    let most = POSITIONS.min(indices) + indices % POSITIONS;
    let near = k.ub("near", index, most.next_multiple_of(block));
    let report = k.ub("report", Elem::I32, 8);
    // 310P copies whole blocks: the last indices again, as a block of their own; fewer than a block one by
    // one.
    let ragged = arch == Arch::P310 && !indices.is_multiple_of(block);
    let last = (ragged && indices >= block).then(|| k.ub("last", index, block));
    let singly = ragged && indices < block;
    let [wrong, first, first_index, value] =
        ["wrong", "first", "first_index", "value"].map(|name| k.var(name, ScalarType::Int));

    // Flags: indices and the report may be overwritten.
    k.set_flag(Pipe::Mte3, Pipe::Mte2, 0);
    k.set_flag(Pipe::Mte3, Pipe::S, 0);
    let tasks = shape.reports();
    k.for_each("task", Scalar::BLOCK, tasks, Scalar::BLOCKS, |k, task| {
        let start = k.let_("start", task.clone() * POSITIONS);
        let is_last = k.let_("is_last", task.clone().eq(tasks - 1));
        let rest = indices - (tasks - 1) * POSITIONS;
        let len = k.let_("len", is_last.clone() * rest + (Scalar::from(1) - is_last.clone()) * POSITIONS);
        k.set(wrong, 0);
        k.set(first, -1);
        k.set(first_index, 0);
        k.wait_flag(Pipe::Mte3, Pipe::Mte2, 0);
        read_indices(k, near, from.gm, &start, &len);
        k.for_each("i", 0, len.clone(), 1, |k, i| {
            let given = k.load("given", near.at(&i));
            k.set(value, given.clone());
            if wrap {
                k.if_(given.clone().lt(0), |k| k.set(value, given.clone() + limit));
            }
            let outside = not_inside(&value.into(), limit);
            let outside = match ignored {
                Some(ignored) => outside.binary(ScalarBinary::And, given.clone().ne(ignored)),
                None => outside,
            };
            k.if_(outside, |k| {
                k.if_(Scalar::Var(wrong).eq(0), |k| {
                    k.set(first, start.clone() + i.clone());
                    k.set(first_index, given.clone());
                });
                k.set(wrong, wrong + 1);
                k.set(value, 0);
            });
            if let Some(ignored) = ignored.filter(|&x| wrap && x < 0) {
                k.if_(given.eq(ignored), |k| k.set(value, ignored));
            }
            k.store(near.at(&i), value);
            if let Some(last) = last {
                let begin = rest - block;
                let own = i.clone() - begin;
                let among = is_last.clone().binary(ScalarBinary::And, not_below(&own, 0));
                k.if_(among, |k| k.store(last.at(own), value));
            }
            if singly {
                let to = out.at(start.clone() + i);
                k.store(to.clone(), value);
                k.issue(CacheFlush { line: to });
            }
        });
        k.flag(Pipe::S, Pipe::Mte3, 0);
        if !singly {
            let whole = if ragged { len / block * block } else { len };
            write(k, out.at(&start), near.at(0), &whole);
        }
        if let Some(last) = last {
            k.if_(is_last, |k| {
                k.barrier(Barrier::Mte3);
                write(k, out.at(indices - block), last.at(0), &block.into());
            });
        }
        k.set_flag(Pipe::Mte3, Pipe::Mte2, 0);
        k.wait_flag(Pipe::Mte3, Pipe::S, 0);
        k.store(report.at(0), wrong);
        k.store(report.at(1), first);
        k.store(report.cast(Elem::I64).at(1), first_index);
        for word in 4..8 {
            k.store(report.at(word), 0);
        }
        k.flag(Pipe::S, Pipe::Mte3, 1);
        k.copy(fault.at(task * 8), report.at(0), 8);
        k.set_flag(Pipe::Mte3, Pipe::S, 0);
    });
    k.wait_flag(Pipe::Mte3, Pipe::Mte2, 0);
    k.wait_flag(Pipe::Mte3, Pipe::S, 0);
    k.finish()
}

fn check(shape: &CheckIndex, name: &str) -> Result<()> {
    let fail = |rule, message| Err(refusal(name, "check_index", rule, message));
    if !matches!(shape.index, Elem::I32 | Elem::I64) {
        return fail(Rule::Unsupported, format!("indices are {}; i32 and i64 are supported", shape.index));
    }
    for (what, size, most) in
        [("indices", shape.indices, i32::MAX as u64), ("as limit", shape.limit, i64::MAX as u64)]
    {
        if !(1..=most).contains(&size) {
            return fail(Rule::Range, format!("there are {size} {what}, outside 1 to {most}"));
        }
    }
    Ok(())
}
