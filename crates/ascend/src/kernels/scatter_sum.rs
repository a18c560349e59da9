//! Elements summed at given indices of planes, or written there: the gradient of max pooling, ATen's
//! `max_pool2d_with_indices_backward`, and scatters along a last dimension.
//!
//! A task is a range of results, which UB holds; sums of floats as f32. The core of a task adds the elements
//! of its planes in their order, one by one in the scalar unit. No result is summed by two cores, so the bits
//! are the same for any number of blocks.

use super::copies::{read, write};
use super::indices::{Indices, below, not_below, not_inside};
use super::refusal;
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{
    Barrier, Builder, CacheFlush, Elem, Over, Pipe, Program, Round, Scalar, ScalarBinary, ScalarType, Unit,
};

/// Results of a task at most; the last task has what is left beside, up to as many again.
const SUMS: u64 = 8 << 10;
/// Results of a task at least, and tasks that are enough.
const LEAST: u64 = 1024;
const TASKS: u64 = 64;
/// Elements that UB holds at a time.
const ELEMENTS: u64 = 2048;

/// Effect of an element on the result at its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scatter {
    /// It is added to zeros.
    Sum,
    /// It is added to the old value.
    SumOnto,
    /// It is multiplied by the old value.
    ProductOnto,
    /// The larger of both stays, NaN if either is.
    MaxOnto,
    /// The smaller of both stays, NaN if either is.
    MinOnto,
    /// It replaces the old value.
    Replace,
    /// Its position replaces the old value, initially -1.
    Position,
}

/// Shapes of [`scatter_sum`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScatterSum {
    /// Effect of each element.
    pub scatter: Scatter,
    /// Type of elements. Sums are of f32, f16, i32, i64 and, on A2, bf16; those of floats are f32, rounded
    /// once at the end. Positions are i32.
    pub elem: Elem,
    /// Type of indices, i32 or i64.
    pub index: Elem,
    /// Number of planes, p.
    pub planes: u64,
    /// Elements of a plane, n.
    pub from: u64,
    /// Results of a plane, m.
    pub to: u64,
}

impl Scatter {
    /// True if elements are combined with the old value.
    const fn combines(self) -> bool {
        matches!(self, Scatter::SumOnto | Scatter::ProductOnto | Scatter::MaxOnto | Scatter::MinOnto)
    }
}

impl ScatterSum {
    /// Results of a task: whole planes where they are small.
    fn share(&self) -> u64 {
        let blocks = self.elem.per_block().max(16);
        let wanted = (self.planes * self.to / TASKS).clamp(LEAST, SUMS).next_multiple_of(blocks);
        let planes = self.to.checked_mul(blocks).filter(|&p| p <= SUMS);
        planes.map_or(wanted, |p| wanted / p * p).max(planes.unwrap_or(blocks))
    }

    /// True if sums are taken in f32.
    const fn in_f32(&self) -> bool {
        (matches!(self.scatter, Scatter::Sum) || self.scatter.combines()) && self.elem.is_float()
    }

    /// Reports that the kernel writes: one for each task.
    pub fn reports(&self) -> u64 {
        (self.planes * self.to / self.share()).max(1)
    }
}

/// `out[p, index[p, i]] += x[p, i]`, `= x[p, i]` `= p n + i` or another [`Scatter`] for i = 0, 1, …
/// below n.
///
/// Parameters: `index` \[p, n\], `x` \[p, n\] but for positions, `before` \[p, m\] but for [`Scatter::Sum`]
/// and positions, `out` \[p, m\], `fault` \[reports, 8\] i32. An index outside 0 to m - 1 does nothing. Each
/// report has the number of such indices in the planes that begin in a task, the position of the first or -1,
/// and that index as i64, then zeros. The host has to look at them. On 310P inputs have a slack of 32 bytes.
///
/// # Errors
/// `Unsupported` for other types. `Range` for an empty shape, or one of more elements than i32 counts.
pub fn scatter_sum(arch: Arch, shape: &ScatterSum) -> Result<Program> {
    let ScatterSum { scatter, elem, index, planes, from, to } = *shape;
    let (name, sign) = match scatter {
        Scatter::Sum | Scatter::SumOnto => ("sum", "+="),
        Scatter::ProductOnto => ("product", "*="),
        Scatter::MaxOnto => ("max", "max="),
        Scatter::MinOnto => ("min", "min="),
        Scatter::Replace => ("replace", "="),
        Scatter::Position => ("position", "= position of"),
    };
    let name = format!("scatter_{name}_{elem}");
    check(arch, shape, &name)?;
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&name, arch, unit);
    k.doc(format!(
        "out[p, index[p, i]] {sign} x[p, i]: {planes} planes of {from} elements and {to} results, {elem}"
    ));
    k.doc("each result is computed by one core, sums of floats in f32, in the order of the elements");
    let results = planes * to;
    let indices = Indices::input(&mut k, index, planes * from);
    let x = (scatter != Scatter::Position).then(|| k.input("x", elem, planes * from));
    let onto = scatter == Scatter::Replace || scatter.combines();
    let before = onto.then(|| k.input("before", elem, results));
    if arch == Arch::P310 {
        // Planes begin anywhere within a block.
        k.slack(indices.gm, index.per_block());
        for gm in [x, before].into_iter().flatten() {
            k.slack(gm, elem.per_block());
        }
    }
    let out = k.output("out", elem, results);
    let fault = k.output("fault", Elem::I32, shape.reports() * 8);
    let (tasks, share) = (shape.reports(), shape.share());
    let rest = results - (tasks - 1) * share;
    let room = rest.max(share.min(results)).next_multiple_of(64);
    let sums = k.ub("sums", if shape.in_f32() { Elem::F32 } else { elem }, room);
    let narrow = (sums.elem != elem).then(|| k.ub("narrow", elem, room));
    let near = indices.buffer(&mut k, ELEMENTS);
    let near_x = x.map(|x| (x, k.ub("near_x", elem, ELEMENTS)));
    let report = k.ub("report", Elem::I32, 8);
    // 310P copies whole blocks: the last results again, as a block of their own; fewer than a block one by
    // one.
    let block = elem.per_block();
    let ragged = arch == Arch::P310 && !results.is_multiple_of(block);
    let last = (ragged && results >= block).then(|| k.ub("last", elem, block));
    let singly = ragged && results < block;
    let [wrong, first_wrong, first_index, base, plane_end] =
        ["wrong", "first_wrong", "first_index", "base", "plane_end"].map(|name| k.var(name, ScalarType::Int));

    // The sums may be overwritten.
    k.set_flag(Pipe::Mte3, Pipe::V, 0);
    k.for_each("task", Scalar::BLOCK, tasks, Scalar::BLOCKS, |k, task| {
        let first = k.let_("first", task.clone() * share);
        let is_last = k.let_("is_last", task.clone().eq(tasks - 1));
        let len = k.let_("len", is_last.clone() * rest + (Scalar::from(1) - is_last.clone()) * share);
        let all = || Over::Count(len.clone().div_ceil(64) * 64u64);
        for (var, value) in [(wrong, 0), (first_wrong, -1), (first_index, 0)] {
            k.set(var, value);
        }
        k.wait_flag(Pipe::Mte3, Pipe::V, 0);
        match scatter {
            Scatter::Position => k.duplicate(sums.at(0), -1, all()),
            _ if shape.in_f32() => k.duplicate(sums.at(0), 0.0, all()),
            _ => {}
        }
        if let Some(before) = before {
            let into = narrow.unwrap_or(sums);
            k.flag(Pipe::V, Pipe::Mte2, 1);
            read(k, into.at(0), before.at(&first), &len);
            k.flag(Pipe::Mte2, Pipe::V, 1);
            if let Some(narrow) = narrow {
                k.cast(sums.at(0), narrow.at(0).strided(1, 4), Round::None, Over::Count(len.clone()));
            }
        }
        k.flag(Pipe::V, Pipe::S, 0);
        let plane = k.let_("plane", first.clone() / to);
        let begin = k.let_("begin", plane.clone() * from);
        let end = k.let_("end", ((first.clone() + len.clone() - 1) / to + 1) * from);
        k.set(base, plane * to);
        k.set(plane_end, begin.clone() + from);
        k.for_each("piece", begin, end.clone(), ELEMENTS, |k, piece| {
            let count = k.let_("count", Scalar::from(ELEMENTS).min(end - piece.clone()));
            k.flag(Pipe::S, Pipe::Mte2, 0);
            read(k, near.at(0), indices.gm.at(&piece), &count);
            if let Some((x, near_x)) = near_x {
                read(k, near_x.at(0), x.at(&piece), &count);
            }
            k.flag(Pipe::Mte2, Pipe::S, 0);
            k.for_each("i", 0, count, 1, |k, i| {
                let position = k.let_("position", piece.clone() + i.clone());
                k.if_(not_below(&position, plane_end), |k| {
                    k.set(base, base + to);
                    k.set(plane_end, plane_end + from);
                });
                let at = k.load("place", near.at(&i));
                let outside = k.let_("outside", not_inside(&at, to));
                // The plane's first result is the task's.
                let own = not_below(&base.into(), first.clone());
                k.if_(outside.clone().binary(ScalarBinary::And, own), |k| {
                    k.if_(Scalar::Var(wrong).eq(0), |k| {
                        k.set(first_wrong, position.clone());
                        k.set(first_index, at.clone());
                    });
                    k.set(wrong, wrong + 1);
                });
                k.if_(outside.eq(0), |k| {
                    let target = k.let_("target", at + base - first.clone());
                    let mine = not_below(&target, 0).binary(ScalarBinary::And, below(&target, len.clone()));
                    k.if_(mine, |k| {
                        let term = match near_x {
                            Some((_, near_x)) => k.load("term", near_x.at(i)),
                            None => position,
                        };
                        let value = match scatter {
                            Scatter::Sum | Scatter::SumOnto => k.load("sum", sums.at(&target)) + term,
                            Scatter::ProductOnto => k.load("product", sums.at(&target)) * term,
                            Scatter::Replace | Scatter::Position => term,
                            Scatter::MaxOnto | Scatter::MinOnto => {
                                let op = if scatter == Scatter::MaxOnto {
                                    ScalarBinary::Gt
                                } else {
                                    ScalarBinary::Lt
                                };
                                let old = k.load("old", sums.at(&target));
                                let stays = old.clone().binary(op, term.clone());
                                let stays = stays.binary(ScalarBinary::Or, old.clone().ne(old));
                                k.if_(stays.eq(0), |k| k.store(sums.at(target), term));
                                return;
                            }
                        };
                        k.store(sums.at(target), value);
                    });
                });
            });
        });
        let result = match narrow {
            Some(narrow) => {
                k.flag(Pipe::S, Pipe::V, 0);
                // 310P rounds to nearest, ties to even, where no rounding is named.
                let rounding = if arch == Arch::A2 { Round::Rint } else { Round::None };
                k.cast(narrow.at(0).strided(1, 4), sums.at(0), rounding, all());
                k.flag(Pipe::V, Pipe::Mte3, 0);
                if ragged {
                    k.flag(Pipe::V, Pipe::S, 0);
                }
                narrow
            }
            None => sums,
        };
        if let Some(last) = last {
            k.if_(is_last.clone(), |k| {
                k.for_each("i", 0, block, 1, |k, i| {
                    let value = k.load("value", result.at(i.clone() + (rest - block)));
                    k.store(last.at(i), value);
                });
            });
        }
        if singly {
            k.for_each("i", 0, results, 1, |k, i| {
                let value = k.load("value", result.at(&i));
                k.store(out.at(&i), value);
                k.issue(CacheFlush { line: out.at(i) });
            });
        }
        k.store(report.at(0), wrong);
        k.store(report.at(1), first_wrong);
        k.store(report.cast(Elem::I64).at(1), first_index);
        for word in 4..8 {
            k.store(report.at(word), 0);
        }
        k.flag(Pipe::S, Pipe::Mte3, 0);
        if !singly {
            let whole = if ragged { len.clone() / block * block } else { len.clone() };
            write(k, out.at(first), result.at(0), &whole);
        }
        if let Some(last) = last {
            k.if_(is_last, |k| {
                k.barrier(Barrier::Mte3);
                write(k, out.at(results - block), last.at(0), &block.into());
            });
        }
        k.copy(fault.at(task * 8), report.at(0), 8);
        k.set_flag(Pipe::Mte3, Pipe::V, 0);
        // The report and the last block are written again by the scalar unit.
        k.flag(Pipe::Mte3, Pipe::S, 0);
    });
    k.wait_flag(Pipe::Mte3, Pipe::V, 0);
    k.finish()
}

fn check(arch: Arch, shape: &ScatterSum, name: &str) -> Result<()> {
    let ScatterSum { scatter, elem, index, planes, from, to } = *shape;
    let fail = |rule, message| Err(refusal(name, "max_pool2d_with_indices_backward", rule, message));
    let floats = matches!(elem, Elem::F32 | Elem::F16) || (elem == Elem::BF16 && arch == Arch::A2);
    let types = match scatter {
        Scatter::Sum => floats,
        Scatter::SumOnto | Scatter::MaxOnto | Scatter::MinOnto => {
            floats || matches!(elem, Elem::I32 | Elem::I64)
        }
        Scatter::ProductOnto => floats,
        Scatter::Replace => true,
        Scatter::Position => elem == Elem::I32,
    };
    if !types {
        return fail(Rule::Unsupported, format!("elements are {elem}, which the kernel has not on {arch}"));
    }
    if !matches!(index, Elem::I32 | Elem::I64) {
        return fail(Rule::Unsupported, format!("indices are {index}; i32 and i64 are supported"));
    }
    let limit = i32::MAX as u64;
    let [elements, results] = [from, to].map(|n| planes.saturating_mul(n));
    for (what, size) in [("elements", elements), ("results", results)] {
        if !(1..=limit).contains(&size) {
            return fail(Rule::Range, format!("there are {size} {what}, outside 1 to {limit}"));
        }
    }
    Ok(())
}
