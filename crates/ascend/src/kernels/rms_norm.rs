//! RMS norm of rows: ATen's `_fused_rms_norm`.
//!
//! One core has a whole row in UB; sums over it are a fixed tree. So the bits are the same for any number of blocks.

use super::copies::{read, write};
use super::refusal;
use crate::chip::Arch;
use crate::finding::{Result, Rule};
use crate::kernel::{
    Barrier, Binary, Buf, Builder, Elem, Over, Pipe, Program, Reduction, Round, Scalar, Scaled, Unit, View,
};

/// Longest row, in elements: its sum is a tree of two levels of repeats.
const LONGEST: u64 = 4096;
/// Rows of a task: their `rstd` are one block of 32 bytes.
const GROUP: u64 = 8;

/// Shapes of [`rms_norm`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RmsNorm {
    /// Type of x, gamma and y, f32 or f16. Computed in f32, rounded once at the end.
    pub elem: Elem,
    /// Number of rows, r.
    pub rows: u64,
    /// Elements of a row, d.
    pub dim: u64,
    /// What is added to the mean of squares.
    pub eps: f32,
}

/// `rstd[i] = 1 / sqrt(mean(x[i, :]²) + eps)` and `y[i, :] = x[i, :] · rstd[i] · gamma`.
///
/// Parameters: `x` \[r, d\], `gamma` \[d\], `y` \[r, d\], `rstd` \[r\] f32.
///
/// # Errors
/// `Unsupported` for other types. `Range` for an empty shape or rows of more than 4096 elements. `Alignment` on 310P,
/// which has no copy of part of 32 bytes, where a row is no multiple of them.
pub fn rms_norm(arch: Arch, shape: &RmsNorm) -> Result<Program> {
    let RmsNorm { elem, rows, dim, eps } = *shape;
    let name = format!("rms_norm_{elem}");
    check(arch, shape, &name)?;
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&name, arch, unit);
    k.doc(format!(
        "y = x * rstd * gamma, rstd = 1 / sqrt(mean(x * x) + {eps:e}); {rows} rows of {dim}, {elem}"
    ));
    let x = k.input("x", elem, rows * dim);
    let gamma = k.input("gamma", elem, dim);
    let y = k.output("y", elem, rows * dim);
    let rstd = k.output("rstd", Elem::F32, rows);
    if arch == Arch::P310 {
        k.slack(rstd, rows.next_multiple_of(GROUP) - rows);
    }
    let padded = dim.next_multiple_of(Elem::F32.per_repeat());
    let narrow = (elem == Elem::F16).then(|| (k.ub("x_in", elem, padded), k.ub("y_out", elem, padded)));
    let wide_x = k.ub("wide_x", Elem::F32, padded);
    let wide_y = k.ub("wide_y", Elem::F32, padded);
    let scale = k.ub("scale", Elem::F32, padded);
    let squares = k.ub("squares", Elem::F32, padded);
    let partial = k.ub("partial", Elem::F32, Elem::F32.per_repeat());
    let total = k.ub("total", Elem::F32, Elem::F32.per_block());
    let group = k.ub("group", Elem::F32, GROUP);
    let all = || Over::count(dim);
    let count = Scalar::from(dim);

    // Elements behind a row's end stay zeros in its sum.
    k.duplicate(squares.at(0), 0.0, Over::count(padded));
    k.barrier(Barrier::V);
    let from = narrow.map_or(scale, |(x_in, _)| x_in);
    read(&mut k, from.at(0), gamma.at(0), &count);
    k.flag(Pipe::Mte2, Pipe::V, 0);
    widen(&mut k, scale, from, all());

    // Flags: the row's input, its result and the group's `rstd` may be overwritten.
    k.set_flag(Pipe::V, Pipe::Mte2, 0);
    k.set_flag(Pipe::Mte3, Pipe::V, 0);
    k.set_flag(Pipe::Mte3, Pipe::S, 0);
    k.for_each("start", Scalar::BLOCK * GROUP, rows, Scalar::BLOCKS * GROUP, |k, start| {
        let members = k.let_("members", Scalar::from(GROUP).min(Scalar::from(rows) - start.clone()));
        k.wait_flag(Pipe::Mte3, Pipe::S, 0);
        k.for_each("member", 0, members.clone(), 1, |k, member| {
            let at = k.let_("offset", (start.clone() + member.clone()) * dim);
            let input = narrow.map_or(wide_x, |(x_in, _)| x_in);
            k.wait_flag(Pipe::V, Pipe::Mte2, 0);
            read(k, input.at(0), x.at(&at), &count);
            k.flag(Pipe::Mte2, Pipe::V, 0);
            widen(k, wide_x, input, all());
            k.binary(Binary::Mul, squares.at(0), wide_x.at(0), wide_x.at(0), all());
            k.barrier(Barrier::V);
            let sum = row_sum(k, squares, partial, total, padded);
            let root = (sum / (dim as f32) + eps).sqrt();
            let scaling = k.let_("scaling", Scalar::from(1.0) / root);
            k.store(group.at(&member), scaling.clone());

            k.wait_flag(Pipe::Mte3, Pipe::V, 0);
            k.scaled(Scaled::Muls, wide_y.at(0), wide_x.at(0), scaling, all());
            k.set_flag(Pipe::V, Pipe::Mte2, 0);
            k.barrier(Barrier::V);
            k.binary(Binary::Mul, wide_y.at(0), wide_y.at(0), scale.at(0), all());
            let result = match narrow {
                Some((_, y_out)) => {
                    k.barrier(Barrier::V);
                    round(k, y_out.at(0), wide_y.at(0), all());
                    y_out
                }
                None => wide_y,
            };
            k.flag(Pipe::V, Pipe::Mte3, 0);
            write(k, y.at(at), result.at(0), &count);
            k.set_flag(Pipe::Mte3, Pipe::V, 0);
            k.barrier(Barrier::V);
        });
        k.flag(Pipe::S, Pipe::Mte3, 0);
        write(k, rstd.at(start), group.at(0), &members);
        k.set_flag(Pipe::Mte3, Pipe::S, 0);
    });
    k.wait_flag(Pipe::V, Pipe::Mte2, 0);
    k.wait_flag(Pipe::Mte3, Pipe::V, 0);
    k.wait_flag(Pipe::Mte3, Pipe::S, 0);
    k.finish()
}

/// Refuses shapes that kernels of the norm cannot have.
pub(super) fn check(arch: Arch, shape: &RmsNorm, name: &str) -> Result<()> {
    let RmsNorm { elem, rows, dim, .. } = *shape;
    let fail = |rule, message| Err(refusal(name, "_fused_rms_norm", rule, message));
    if !matches!(elem, Elem::F16 | Elem::F32) {
        return fail(Rule::Unsupported, format!("rows are {elem}; f32 and f16 are supported"));
    }
    for (what, size, limit) in [("rows", rows, i32::MAX as u64), ("elements of a row", dim, LONGEST)] {
        if !(1..=limit).contains(&size) {
            return fail(Rule::Range, format!("there are {size} {what}, outside 1 to {limit}"));
        }
    }
    let block = elem.per_block();
    if arch == Arch::P310 && dim % block != 0 {
        return fail(Rule::Alignment, format!("a row has {dim} elements, no multiple of {block} (32 bytes)"));
    }
    Ok(())
}

/// Converts f16 to f32; nothing where it is f32 already and in place.
pub(super) fn widen(k: &mut Builder, to: Buf, from: Buf, over: Over) {
    if from.elem == Elem::F16 {
        k.cast(to.at(0), from.at(0).strided(1, 4), Round::None, over);
        k.barrier(Barrier::V);
    }
}

/// Converts f32 to f16, to nearest, ties to even.
pub(super) fn round(k: &mut Builder, to: View, from: View, over: Over) {
    // 310P rounds so where no rounding is named.
    let rounding = if k.arch() == Arch::A2 { Round::Rint } else { Round::None };
    k.cast(to.strided(1, 4), from, rounding, over);
}

/// Sum of `len` elements, whole repeats and at most 64 of them: a tree of neighbours over each repeat, and one over
/// their sums. The scalar unit has the sum, and the vector unit may go on.
pub(super) fn row_sum(k: &mut Builder, of: Buf, partial: Buf, total: Buf, len: u64) -> Scalar {
    let repeats = len / Elem::F32.per_repeat();
    k.reduce(Reduction::WholeSum, partial.at(0), of.at(0), Elem::F32.per_repeat(), repeats, 1);
    k.barrier(Barrier::V);
    k.reduce(Reduction::WholeSum, total.at(0), partial.at(0), repeats, 1, 1);
    k.flag(Pipe::V, Pipe::S, 0);
    let sum = k.load("sum", total.at(0));
    k.flag(Pipe::S, Pipe::V, 0);
    sum
}
