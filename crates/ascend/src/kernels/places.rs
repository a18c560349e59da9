//! Places in a tensor that indices address: checked, and multiplied by strides. Operators that index by
//! several tensors or along an inner dimension gather and scatter by them.
//!
//! A task is a range of positions, whose indices the scalar unit checks and replaces in UB.

use super::copies::{read, write};
use super::indices::{Indices, not_inside, read_indices};
use super::refusal;
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{Builder, Elem, Pipe, Program, Scalar, ScalarType, Unit};

/// Positions of a task.
const POSITIONS: u64 = 512;

/// Shapes of [`places`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    /// Type of indices, i32 or i64.
    pub index: Elem,
    /// Number of indices, n.
    pub indices: u64,
    /// Indices are below it.
    pub limit: u64,
    /// True where negative indices count from the end.
    pub wrap: bool,
    /// From one index to the next, in places.
    pub stride: u64,
    /// Term that a position adds by itself: (d, m, s) stands for `position / d % m · s`.
    pub walks: Vec<[u64; 3]>,
    /// True if the places of other indices are added.
    pub onto: bool,
}

impl Places {
    /// Reports that the kernel writes: one for each task.
    pub const fn reports(&self) -> u64 {
        self.indices.div_ceil(POSITIONS)
    }

    /// Elements of the result: a whole number of blocks.
    pub const fn room(&self) -> u64 {
        self.indices.next_multiple_of(8)
    }
}

/// `out[i] = index[i] · stride + Σ i / d % m · s`, plus `sum[i]` where there is one.
///
/// Parameters: `index` \[n\], `sum` \[`room`\] i32 where [`Places::onto`] is set, `out` \[`room`\] i32,
/// `fault` \[reports, 8\] i32. An index that is not in 0 to `limit` - 1 counts as 0. Each report has the
/// number of such indices among a task's positions, the position of the first or -1, and that index as i64,
/// then zeros. The host has to look at them. Elements after the n-th are undefined.
///
/// # Errors
/// `Unsupported` for other types of indices. `Range` for none, and for places beyond i32.
pub fn places(arch: Arch, shape: &Places) -> Result<Program> {
    let Places { index, indices, limit, wrap, stride, ref walks, onto } = *shape;
    let name = format!("places_{index}");
    check(shape, &name)?;
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&name, arch, unit);
    let by_itself: String = walks.iter().map(|[d, m, s]| format!(" + i / {d} % {m} * {s}")).collect();
    k.doc(format!("out[i] = index[i] * {stride}{by_itself}: {indices} indices below {limit}"));
    let from = Indices::input(&mut k, index, indices);
    let sum = onto.then(|| k.input("sum", Elem::I32, shape.room()));
    let out = k.output("out", Elem::I32, shape.room());
    let fault = k.output("fault", Elem::I32, shape.reports() * 8);
    let near = from.buffer(&mut k, POSITIONS);
    let near_sum = sum.map(|_| k.ub("near_sum", Elem::I32, POSITIONS));
    let result = k.ub("result", Elem::I32, POSITIONS);
    let report = k.ub("report", Elem::I32, 8);
    let [wrong, first, first_index, value] =
        ["wrong", "first", "first_index", "value"].map(|name| k.var(name, ScalarType::Int));

    k.for_each("task", Scalar::BLOCK, shape.reports(), Scalar::BLOCKS, |k, task| {
        let start = k.let_("start", task.clone() * POSITIONS);
        let len = k.let_("len", Scalar::from(POSITIONS).min(Scalar::from(indices) - start.clone()));
        let whole = k.let_("whole", Scalar::from(POSITIONS).min(Scalar::from(shape.room()) - start.clone()));
        k.set(wrong, 0);
        k.set(first, -1);
        k.set(first_index, 0);
        k.flag(Pipe::S, Pipe::Mte2, 0);
        if let (Some(sum), Some(near_sum)) = (sum, near_sum) {
            read(k, near_sum.at(0), sum.at(&start), &whole);
        }
        read_indices(k, near, from.gm, &start, &len);
        k.for_each("i", 0, len.clone(), 1, |k, i| {
            let given = k.load("given", near.at(&i));
            k.set(value, given.clone());
            if wrap {
                k.if_(given.clone().lt(0), |k| k.set(value, given.clone() + limit));
            }
            let position = k.let_("position", start.clone() + i.clone());
            k.if_(not_inside(&value.into(), limit), |k| {
                k.if_(Scalar::Var(wrong).eq(0), |k| {
                    k.set(first, position.clone());
                    k.set(first_index, given.clone());
                });
                k.set(wrong, wrong + 1);
                k.set(value, 0);
            });
            let mut place = value * stride;
            for &[divisor, modulus, step] in walks {
                let mut digit = position.clone() / divisor;
                if divisor.saturating_mul(modulus) < indices {
                    digit = digit % modulus;
                }
                place = place + digit * step;
            }
            if let Some(near_sum) = near_sum {
                let before = k.load("before", near_sum.at(&i));
                place = place + before;
            }
            k.store(result.at(i), place);
        });
        // The last block is whole.
        k.for_each("i", len, whole.clone(), 1, |k, i| k.store(result.at(i), 0));
        k.store(report.at(0), wrong);
        k.store(report.at(1), first);
        k.store(report.cast(Elem::I64).at(1), first_index);
        for word in 4..8 {
            k.store(report.at(word), 0);
        }
        k.flag(Pipe::S, Pipe::Mte3, 0);
        write(k, out.at(start), result.at(0), &whole);
        k.copy(fault.at(task * 8), report.at(0), 8);
        k.flag(Pipe::Mte3, Pipe::S, 0);
    });
    k.finish()
}

fn check(shape: &Places, name: &str) -> Result<()> {
    let fail = |rule, message| Err(refusal(name, "index", rule, message));
    if !matches!(shape.index, Elem::I32 | Elem::I64) {
        return fail(Rule::Unsupported, format!("indices are {}; i32 and i64 are supported", shape.index));
    }
    let most = i32::MAX as u64;
    for (what, size) in [("indices", shape.indices), ("as limit", shape.limit)] {
        if !(1..=most).contains(&size) {
            return fail(Rule::Range, format!("there are {size} {what}, outside 1 to {most}"));
        }
    }
    let last = |[_, modulus, step]: &[u64; 3]| modulus.saturating_sub(1).saturating_mul(*step);
    let walked = shape.walks.iter().map(last).fold(0u64, u64::saturating_add);
    let place = (shape.limit - 1).saturating_mul(shape.stride).saturating_add(walked);
    let sound = shape.walks.iter().all(|[divisor, modulus, _]| *divisor > 0 && *modulus > 0);
    match sound && place <= most {
        true => Ok(()),
        false => fail(Rule::Range, format!("places reach {place}, beyond {most}")),
    }
}
