//! Gradients of an RMS norm: ATen's `_fused_rms_norm_backward`, in two kernels.
//!
//! The first writes dx, and for each of a fixed number of row ranges a partial sum of dgamma. The second adds
//! these in a fixed tree. Ranges depend on the shape alone, so the bits are the same for any number of
//! blocks. Each core has ranges that follow each other, in tiles of whole rows; the next tile is read and the
//! last one written while one is computed. In f16 inputs are widened first, so that their places are free
//! again at once: one of each is enough, and tiles have twice the rows.

use super::copies::{read, read_rows, write, write_rows};
use super::rms_norm::{RmsNorm, check};
use super::row_tile::{RowSums, RowTile, round, widen};
use super::sum_rows::{SumRows, sum_rows};
use crate::chip::Arch;
use crate::kernel::finding::Result;
use crate::kernel::{
    Barrier, Binary, Builder, Elem, Over, Pipe, Program, Scalar, ScalarType, ScalarUnary, Scaled, Unit, View,
};

/// Most ranges of rows: 48, 40, 24, 20 and 8 cores each have as many.
const RANGES: u64 = 240;
/// Rows of a range, as far as there are so many: partial sums are then a fraction of what is read.
const SHORTEST: u64 = 4;
/// Bytes of L2 of the largest chip: if the operands' total is larger, all but the results bypass it.
const L2: u64 = 192 << 20;
/// `rstd` that come with a tile: from a block's beginning on.
const NEAR: u64 = 16;

/// Number of ranges of `rows` rows. Range i begins at row `i · rows / ranges`.
const fn ranges(rows: u64) -> u64 {
    let wanted = rows.div_ceil(SHORTEST);
    if wanted < RANGES { wanted } else { RANGES }
}

/// Elements of the partial sums that one kernel hands to the other, f32.
pub fn rms_norm_grad_partials(shape: &RmsNorm) -> u64 {
    ranges(shape.rows) * pitch(shape)
}

/// Elements from one range's partial sums to the next: whole repeats, which no two cores share.
const fn pitch(shape: &RmsNorm) -> u64 {
    shape.dim.next_multiple_of(Elem::F32.per_repeat())
}

const fn unit(arch: Arch) -> Unit {
    if arch.split() { Unit::Vector } else { Unit::Whole }
}

/// `dx = rstd (dy gamma) - x rstd³ / d Σ(dy gamma x)`, and partial sums of `dgamma = Σ dy x rstd` over rows.
///
/// Parameters: `dy` \[r, d\], `x` \[r, d\], `rstd` \[r\] f32, `gamma` \[d\], `dx` \[r, d\], `partials` f32,
/// as many as [`rms_norm_grad_partials`] says.
///
/// # Errors
/// As of [`rms_norm`](fn@super::rms_norm).
pub fn rms_norm_grad(arch: Arch, shape: &RmsNorm) -> Result<Program> {
    let RmsNorm { elem, rows, dim, .. } = *shape;
    let name = format!("rms_norm_grad_{elem}");
    check(arch, shape, &name)?;
    let number = ranges(rows);
    let mut k = Builder::new(&name, arch, unit(arch));
    k.doc(format!("dx, and dgamma of {number} ranges of rows; {rows} rows of {dim}, {elem}"));
    let [dy, x] = ["dy", "x"].map(|name| k.input(name, elem, rows * dim));
    let rstd = k.input("rstd", Elem::F32, rows);
    let gamma = k.input("gamma", elem, dim);
    let dx = k.output("dx", elem, rows * dim);
    let partials = k.output("partials", Elem::F32, rms_norm_grad_partials(shape));
    if arch == Arch::P310 {
        k.slack(rstd, rows.next_multiple_of(8) - rows);
    }

    let narrow = elem == Elem::F16;
    // Tiles of dy, x and dx, and a product; f32 of dy and x where they are narrow. Sums of a row, and gamma:
    // once for each row of a tile, so that a product is one instruction; or once, where a tile of two rows or
    // less has more rows so.
    let places = if narrow { 1 } else { 2 };
    let bytes = 3 * places * elem.size() + 4 + if narrow { 8 } else { 0 };
    let beside = RowTile::new(arch, [rows, dim], bytes + 4, 4 * places);
    let alone = RowTile::new(arch, [rows, dim], bytes, 4 * places + 4);
    let once = beside.rows <= 2 && alone.rows > beside.rows;
    let (tile, gammas) = if once { (alone, 1) } else { (beside, beside.rows) };
    let (len, room, sizes) = (tile.len(), pitch(shape).max(tile.pitch), [dim, tile.pitch]);
    if arch == Arch::A2 && 3 * rows * dim * elem.size() + 4 * rms_norm_grad_partials(shape) > L2 {
        [dy, x].into_iter().for_each(|gm| k.streamed(gm));
    }
    // Operands of one instruction are in different banks.
    let wide_dy = narrow.then(|| k.ub_phase("wide_dy", Elem::F32, len, 0));
    let work = k.ub_phase("work", Elem::F32, len, 0);
    let x_in = k.ub_phase("x_in", elem, places * len, 256);
    let dx_out = k.ub_phase("dx_out", elem, places * len, 0);
    let wide_x = narrow.then(|| k.ub_phase("wide_x", Elem::F32, len, 256));
    let dgamma = k.ub_phase("dgamma", Elem::F32, places * room, 256);
    let dy_in = k.ub_phase("dy_in", elem, places * len, 0);
    let scale = k.ub_phase("scale", Elem::F32, gammas * tile.pitch, 256);
    let near = k.ub("near_rstd", Elem::F32, 2 * NEAR);
    let sums = RowSums::new(&mut k, tile);

    // Ranges of this core.
    let begin = |range: Scalar| range * rows / number;
    let low = k.let_("low", Scalar::BLOCK * number / Scalar::BLOCKS);
    let high = k.let_("high", (Scalar::BLOCK + 1) * number / Scalar::BLOCKS);
    // The place of what is in a slot.
    let place = |slot: &Scalar| if narrow { 0.into() } else { slot.clone() };
    let fetch = |k: &mut Builder, start: &Scalar, end: Scalar, slot: Scalar| {
        let members = tile.members(k, end - start.clone());
        let (at, place) = (k.let_("offset", start.clone() * dim), place(&slot));
        k.wait_flag(Pipe::V, Pipe::Mte2, place.clone());
        read_rows(k, dy_in.at(place.clone() * len), dy.at(&at), &members, sizes);
        read_rows(k, x_in.at(place.clone() * len), x.at(at), &members, sizes);
        k.set_flag(Pipe::Mte2, Pipe::V, place);
        let whole = k.let_("whole", start.clone() / 8 * 8);
        let count = Scalar::from(NEAR).min(Scalar::from(rows) - whole.clone());
        k.wait_flag(Pipe::S, Pipe::Mte2, slot.clone());
        read(k, near.at(slot.clone() * NEAR), rstd.at(whole), &count);
        k.set_flag(Pipe::Mte2, Pipe::S, slot);
    };

    // Flags: inputs, dx and dgamma of a slot may be overwritten.
    if dim < tile.pitch {
        for buf in [dy_in, x_in] {
            k.duplicate(buf.at(0), 0.0, Over::count(places * len));
        }
    }
    for slot in 0..2 {
        k.set_flag(Pipe::S, Pipe::Mte2, slot);
    }
    for place in 0..places {
        k.set_flag(Pipe::V, Pipe::Mte2, place);
        k.set_flag(Pipe::Mte3, Pipe::V, place);
        k.set_flag(Pipe::Mte3, Pipe::V, place + 2);
    }
    // Gamma. Where it is narrow it is staged in a result's buffer.
    let from = if narrow { dx_out } else { scale };
    if dim < tile.pitch {
        k.duplicate(from.at(0), 0.0, tile.over(&gammas.into()));
    }
    k.flag(Pipe::V, Pipe::Mte2, 2);
    for row in 0..if narrow { 1 } else { gammas } {
        read_rows(&mut k, from.at(row * tile.pitch), gamma.at(0), &1.into(), sizes);
    }
    k.set_flag(Pipe::Mte2, Pipe::V, 2);
    k.if_(low.clone().lt(high.clone()), |k| {
        let start = k.let_("start", begin(low.clone()));
        fetch(k, &start, begin(low.clone() + 1), 0.into());
    });
    k.wait_flag(Pipe::Mte2, Pipe::V, 2);
    for row in 0..if narrow { gammas } else { 0 } {
        widen(&mut k, scale.at(row * tile.pitch), from.at(0), tile.over(&1.into()));
    }
    k.barrier(Barrier::V);

    let times_gamma = |k: &mut Builder, to: &View, from: &View, members: &Scalar| {
        if once {
            tile.each(k, members, |k, _, at| {
                k.binary(Binary::Mul, to.add(&at), from.add(&at), scale.at(0), tile.over(&1.into()));
            });
        } else {
            k.binary(Binary::Mul, to, from, scale.at(0), tile.over(members));
        }
    };

    let round_ = k.var("round", ScalarType::Int);
    k.set(round_, 0);
    k.for_each("range", &low, &high, 1, |k, range| {
        let top = k.let_("top", begin(range.clone()));
        let bottom = k.let_("bottom", begin(range.clone() + 1));
        let own = k.let_("own", place(&(range.clone() % 2)));
        let dgamma = dgamma.at(own.clone() * room);
        k.for_each("start", &top, &bottom, tile.rows, |k, start| {
            let slot = k.let_("slot", round_ % 2);
            let other = Scalar::from(1) - slot.clone();
            let members = tile.members(k, bottom.clone() - start.clone());
            let next = k.let_("next", start.clone() + tile.rows);
            k.if_else(
                next.clone().lt(bottom.clone()),
                |k| fetch(k, &next, bottom.clone(), other.clone()),
                |k| {
                    let more = (range.clone() + 1).lt(high.clone());
                    k.if_(more, |k| fetch(k, &bottom, begin(range.clone() + 2), other.clone()));
                },
            );
            let (all, one) = (|| tile.over(&members), || tile.over(&1.into()));
            let (place, here) = (place(&slot) * len, place(&slot));
            k.wait_flag(Pipe::Mte2, Pipe::V, here.clone());
            let (dy, x) = match (wide_dy, wide_x) {
                (Some(dy), Some(x)) => {
                    widen(k, dy.at(0), dy_in.at(&place), all());
                    widen(k, x.at(0), x_in.at(&place), all());
                    k.set_flag(Pipe::V, Pipe::Mte2, here.clone());
                    k.barrier(Barrier::V);
                    (dy.at(0), x.at(0))
                }
                _ => (dy_in.at(&place), x_in.at(&place)),
            };
            // Place of a row's `rstd`.
            let stat = |row: Scalar| near.at(slot.clone() * NEAR + start.clone() % 8 + row);
            k.wait_flag(Pipe::Mte2, Pipe::S, slot.clone());
            tile.each(k, &members, |k, row, at| {
                let scaling = k.load("scaling", stat(row));
                k.scaled(Scaled::Muls, dy.add(&at), dy.add(at), scaling, one());
            });
            k.barrier(Barrier::V);
            // As late as may be: the last range's sums are being written.
            k.if_(start.clone().eq(top.clone()), |k| {
                k.wait_flag(Pipe::Mte3, Pipe::V, own.clone() + 2);
                k.duplicate(&dgamma, 0.0, Over::count(room));
            });
            k.binary(Binary::Mul, work.at(0), &dy, &x, all());
            k.barrier(Barrier::V);
            tile.each(k, &members, |k, _, at| {
                k.binary(Binary::Add, &dgamma, &dgamma, work.at(at), one());
                k.barrier(Barrier::V);
            });
            times_gamma(k, &work.at(0), &work.at(0), &members);
            k.barrier(Barrier::V);
            sums.add(k, work.at(0), &members);
            k.set_flag(Pipe::V, Pipe::S, 0);

            // The first term of dx while the scalar unit computes the factor of the second.
            let to = if narrow { dy.clone() } else { dx_out.at(&place) };
            if !narrow {
                k.wait_flag(Pipe::Mte3, Pipe::V, here.clone());
            }
            times_gamma(k, &to, &dy, &members);
            k.barrier(Barrier::V);
            k.wait_flag(Pipe::V, Pipe::S, 0);
            tile.each(k, &members, |k, row, at| {
                let scaling = k.load("scaling", stat(row.clone()));
                let dot = k.load("dot", sums.sums.at(row));
                let factor = scaling.clone() * scaling * (dot / (dim as f32));
                let factor = k.let_("factor", factor.unary(ScalarUnary::Neg));
                k.scaled(Scaled::Axpy, to.add(&at), x.add(at), factor, one());
            });
            k.flag(Pipe::S, Pipe::V, 0);
            k.set_flag(Pipe::S, Pipe::Mte2, slot.clone());
            match narrow {
                true => {
                    k.wait_flag(Pipe::Mte3, Pipe::V, here.clone());
                    k.barrier(Barrier::V);
                    round(k, dx_out.at(&place), to, all());
                }
                false => k.set_flag(Pipe::V, Pipe::Mte2, here.clone()),
            }
            k.flag(Pipe::V, Pipe::Mte3, here.clone());
            write_rows(k, dx.at(start * dim), dx_out.at(place), &members, &dim.into(), sizes);
            k.set_flag(Pipe::Mte3, Pipe::V, here);
            k.set(round_, round_ + 1);
            k.barrier(Barrier::V);
        });
        k.flag(Pipe::V, Pipe::Mte3, own.clone() + 2);
        write(k, partials.at(range * pitch(shape)), dgamma, &pitch(shape).into());
        k.set_flag(Pipe::Mte3, Pipe::V, own + 2);
    });
    for slot in 0..2 {
        k.wait_flag(Pipe::S, Pipe::Mte2, slot);
    }
    for place in 0..places {
        k.wait_flag(Pipe::V, Pipe::Mte2, place);
        k.wait_flag(Pipe::Mte3, Pipe::V, place);
        k.wait_flag(Pipe::Mte3, Pipe::V, place + 2);
    }
    k.finish()
}

/// `dgamma` out of its partial sums, as [`sum_rows`] adds rows.
///
/// Parameters: `partials` f32 as [`rms_norm_grad`] writes them, `dgamma` \[d\].
///
/// # Errors
/// As of [`rms_norm`](fn@super::rms_norm).
pub fn rms_norm_grad_gamma(arch: Arch, shape: &RmsNorm) -> Result<Program> {
    let RmsNorm { elem, rows, dim, .. } = *shape;
    let name = format!("rms_norm_grad_gamma_{elem}");
    check(arch, shape, &name)?;
    let sums = SumRows { rows: ranges(rows), pitch: pitch(shape), dim, outs: &[elem] };
    sum_rows(arch, &name, &sums)
}
