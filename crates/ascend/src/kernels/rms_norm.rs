//! RMS norm of rows: ATen's `_fused_rms_norm`.
//!
//! Each core has rows that follow each other, in tiles of whole rows; the next tile is read and the last one
//! written while one is computed. A row's sum is a fixed tree, so the bits are the same for any number of
//! blocks.

use super::copies::{read_rows, write, write_rows};
use super::refusal;
use super::row_tile::{LONGEST, RowSums, RowTile, round, widen};
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{Barrier, Binary, Builder, Elem, Over, Pipe, Program, Scalar, ScalarType, Scaled, Unit};

/// Rows whose `rstd` are written in one copy, whole blocks of 32 bytes.
const GROUP: u64 = 64;

/// Shapes of [`rms_norm`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RmsNorm {
    /// Type of x, gamma and y, f32 or f16. Computed in f32, rounded once at the end.
    pub elem: Elem,
    /// Number of rows, r.
    pub rows: u64,
    /// Elements of a row, d.
    pub dim: u64,
    /// Number added to the mean of squares.
    pub eps: f32,
}

/// `rstd[i] = 1 / sqrt(mean(x[i, :]²) + eps)` and `y[i, :] = x[i, :] · gamma · rstd[i]`.
///
/// Parameters: `x` \[r, d\], `gamma` \[d\], `y` \[r, d\], `rstd` \[r\] f32.
///
/// # Errors
/// `Unsupported` for other types. `Range` for an empty shape or rows of more than 4096 elements. `Alignment`
/// on 310P, which has no copy of part of 32 bytes, where a row is no multiple of them.
pub fn rms_norm(arch: Arch, shape: &RmsNorm) -> Result<Program> {
    let RmsNorm { elem, rows, dim, eps } = *shape;
    let name = format!("rms_norm_{elem}");
    check(arch, shape, &name)?;
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(&name, arch, unit);
    k.doc(format!(
        "y = x * gamma * rstd, rstd = 1 / sqrt(mean(x * x) + {eps:e}); {rows} rows of {dim}, {elem}"
    ));
    let x = k.input("x", elem, rows * dim);
    let gamma = k.input("gamma", elem, dim);
    let y = k.output("y", elem, rows * dim);
    let rstd = k.output("rstd", Elem::F32, rows);
    if arch == Arch::P310 {
        k.slack(rstd, rows.next_multiple_of(8) - rows);
    }
    let narrow = elem == Elem::F16;
    // Two tiles of x and of y, squares and gamma; f32 of x where it is narrow.
    let bytes = 4 * elem.size() + 8 + if narrow { 4 } else { 0 };
    let tile = RowTile::new(arch, [rows, dim], bytes, 0);
    let (len, shape) = (tile.len(), [dim, tile.pitch]);
    // Operands of one instruction are in different banks.
    let wide = narrow.then(|| k.ub_phase("wide_x", Elem::F32, len, 0));
    let work = k.ub_phase("work", Elem::F32, len, 0);
    let x_in = k.ub_phase("x_in", elem, 2 * len, 0);
    let y_out = k.ub_phase("y_out", elem, 2 * len, 0);
    let scale = k.ub_phase("scale", Elem::F32, len, 256);
    let group = k.ub("group", Elem::F32, GROUP);
    let sums = RowSums::new(&mut k, tile);

    // Rows of this core; on 310P their `rstd` are whole blocks.
    let unit = if arch == Arch::P310 { tile.rows.max(8) } else { tile.rows };
    let units = rows.div_ceil(unit);
    let first = k.let_("first", Scalar::BLOCK * units / Scalar::BLOCKS * unit);
    let end = k.let_("end", ((Scalar::BLOCK + 1) * units / Scalar::BLOCKS * unit).min(rows));
    let fetch = |k: &mut Builder, start: &Scalar, slot: Scalar| {
        let members = tile.members(k, end.clone() - start.clone());
        k.wait_flag(Pipe::V, Pipe::Mte2, slot.clone());
        read_rows(k, x_in.at(slot.clone() * len), x.at(start.clone() * dim), &members, shape);
        k.set_flag(Pipe::Mte2, Pipe::V, slot);
    };

    // Flags: x and y of a slot, and the group's `rstd`, may be overwritten.
    if dim < tile.pitch {
        k.duplicate(x_in.at(0), 0.0, Over::count(2 * len));
    }
    for slot in 0..2 {
        k.set_flag(Pipe::V, Pipe::Mte2, slot);
        k.set_flag(Pipe::Mte3, Pipe::V, slot);
    }
    k.set_flag(Pipe::Mte3, Pipe::S, 0);
    // Gamma, once for each row of a tile. Where it is narrow it is staged in a result's buffer.
    let near = if narrow { y_out } else { scale };
    if dim < tile.pitch {
        k.duplicate(near.at(0), 0.0, tile.over(&tile.rows.into()));
    }
    k.flag(Pipe::V, Pipe::Mte2, 2);
    for row in 0..if narrow { 1 } else { tile.rows } {
        read_rows(&mut k, near.at(row * tile.pitch), gamma.at(0), &1.into(), shape);
    }
    k.set_flag(Pipe::Mte2, Pipe::V, 2);
    k.if_(first.clone().lt(end.clone()), |k| fetch(k, &first, 0.into()));
    k.wait_flag(Pipe::Mte2, Pipe::V, 2);
    for row in 0..if narrow { tile.rows } else { 0 } {
        widen(&mut k, scale.at(row * tile.pitch), near.at(0), tile.over(&1.into()));
    }
    k.barrier(Barrier::V);

    let round_ = k.var("round", ScalarType::Int);
    k.set(round_, 0);
    k.for_each("top", &first, &end, GROUP, |k, top| {
        let bottom = k.let_("bottom", (top.clone() + GROUP).min(end.clone()));
        k.wait_flag(Pipe::Mte3, Pipe::S, 0);
        k.for_each("start", &top, &bottom, tile.rows, |k, start| {
            let slot = k.let_("slot", round_ % 2);
            let members = tile.members(k, end.clone() - start.clone());
            let next = k.let_("next", start.clone() + tile.rows);
            k.if_(next.clone().lt(end.clone()), |k| fetch(k, &next, Scalar::from(1) - slot.clone()));
            let all = || tile.over(&members);
            let place = slot.clone() * len;
            k.wait_flag(Pipe::Mte2, Pipe::V, slot.clone());
            let from = match wide {
                Some(wide) => {
                    widen(k, wide.at(0), x_in.at(&place), all());
                    k.set_flag(Pipe::V, Pipe::Mte2, slot.clone());
                    k.barrier(Barrier::V);
                    wide.at(0)
                }
                None => x_in.at(&place),
            };
            k.binary(Binary::Mul, work.at(0), &from, &from, all());
            k.barrier(Barrier::V);
            sums.add(k, work.at(0), &members);
            k.set_flag(Pipe::V, Pipe::S, 0);

            // Products with gamma while the scalar unit computes `rstd`.
            let to = if narrow { work.at(0) } else { y_out.at(&place) };
            if !narrow {
                k.wait_flag(Pipe::Mte3, Pipe::V, slot.clone());
            }
            k.binary(Binary::Mul, &to, &from, scale.at(0), all());
            if !narrow {
                k.set_flag(Pipe::V, Pipe::Mte2, slot.clone());
            }
            k.barrier(Barrier::V);
            k.wait_flag(Pipe::V, Pipe::S, 0);
            tile.each(k, &members, |k, row, at| {
                let sum = k.load("sum", sums.sums.at(&row));
                let root = (sum / (dim as f32) + eps).sqrt();
                let scaling = k.let_("scaling", Scalar::from(1.0) / root);
                k.scaled(Scaled::Muls, to.add(&at), to.add(at), scaling.clone(), tile.over(&1.into()));
                k.store(group.at(start.clone() - top.clone() + row), scaling);
            });
            k.flag(Pipe::S, Pipe::V, 0);
            k.if_(bottom.clone().lt(next + 1), |k| {
                k.flag(Pipe::S, Pipe::Mte3, 0);
                write(k, rstd.at(&top), group.at(0), &(bottom.clone() - top.clone()));
                k.set_flag(Pipe::Mte3, Pipe::S, 0);
            });
            if narrow {
                k.wait_flag(Pipe::Mte3, Pipe::V, slot.clone());
                k.barrier(Barrier::V);
                round(k, y_out.at(&place), to, all());
            }
            k.flag(Pipe::V, Pipe::Mte3, slot.clone());
            write_rows(k, y.at(start * dim), y_out.at(place), &members, &dim.into(), shape);
            k.set_flag(Pipe::Mte3, Pipe::V, slot);
            k.set(round_, round_ + 1);
        });
    });
    for slot in 0..2 {
        k.wait_flag(Pipe::V, Pipe::Mte2, slot);
        k.wait_flag(Pipe::Mte3, Pipe::V, slot);
    }
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
