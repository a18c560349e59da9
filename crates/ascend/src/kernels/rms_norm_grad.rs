//! Gradients of an RMS norm: ATen's `_fused_rms_norm_backward`, in two kernels.
//!
//! The first writes dx, and for each of a fixed number of row ranges a partial sum of dgamma. The second adds these in a
//! fixed tree. Ranges depend on the shape alone, so the bits are the same for any number of blocks.

use super::copies::{read, write};
use super::rms_norm::{RmsNorm, check, round, row_sum, widen};
use crate::chip::Arch;
use crate::finding::Result;
use crate::kernel::{Barrier, Binary, Builder, Elem, Over, Pipe, Program, Scalar, ScalarUnary, Scaled, Unit};

/// Most ranges of rows; a power of two, for the tree.
const RANGES: u64 = 64;
/// Columns of a task of the second kernel.
const COLUMNS: u64 = 256;

/// Rows of a range and number of ranges of `rows` rows.
const fn ranges(rows: u64) -> (u64, u64) {
    let per = rows.div_ceil(RANGES);
    (per, rows.div_ceil(per))
}

/// Elements of the partial sums that one kernel hands to the other, f32.
pub fn rms_norm_grad_partials(shape: &RmsNorm) -> u64 {
    if shape.rows == 0 { 0 } else { ranges(shape.rows).1 * pitch(shape) }
}

/// Elements from one range's partial sums to the next: whole blocks, which no two cores share.
const fn pitch(shape: &RmsNorm) -> u64 {
    shape.dim.next_multiple_of(COLUMNS)
}

const fn unit(arch: Arch) -> Unit {
    if arch.split() { Unit::Vector } else { Unit::Whole }
}

/// `dx = rstd (dy gamma) - x rstd³ / d Σ(dy gamma x)`, and partial sums of `dgamma = Σ dy x rstd` over rows.
///
/// Parameters: `dy` \[r, d\], `x` \[r, d\], `rstd` \[r\] f32, `gamma` \[d\], `dx` \[r, d\], `partials` f32, as many as
/// [`rms_norm_grad_partials`] says.
///
/// # Errors
/// As of [`super::rms_norm`].
pub fn rms_norm_grad(arch: Arch, shape: &RmsNorm) -> Result<Program> {
    let RmsNorm { elem, rows, dim, .. } = *shape;
    let name = format!("rms_norm_grad_{elem}");
    check(arch, shape, &name)?;
    let (per, number) = ranges(rows);
    let mut k = Builder::new(&name, arch, unit(arch));
    k.doc(format!("dx, and dgamma of {number} ranges of {per} rows; {rows} rows of {dim}, {elem}"));
    let [dy, x] = ["dy", "x"].map(|name| k.input(name, elem, rows * dim));
    let rstd = k.input("rstd", Elem::F32, rows);
    let gamma = k.input("gamma", elem, dim);
    let dx = k.output("dx", elem, rows * dim);
    let partials = k.output("partials", Elem::F32, rms_norm_grad_partials(shape));

    let padded = dim.next_multiple_of(Elem::F32.per_repeat());
    let narrow =
        (elem == Elem::F16).then(|| ["dy_in", "x_in", "dx_out"].map(|name| k.ub(name, elem, padded)));
    let [wide_dy, wide_x, wide_dx, scale, product] =
        ["wide_dy", "wide_x", "wide_dx", "scale", "product"].map(|name| k.ub(name, Elem::F32, padded));
    let sums = k.ub("sums", Elem::F32, pitch(shape));
    let partial = k.ub("partial", Elem::F32, Elem::F32.per_repeat());
    let total = k.ub("total", Elem::F32, Elem::F32.per_block());
    let [dy_in, x_in, dx_out] = narrow.unwrap_or([wide_dy, wide_x, wide_dx]);
    let all = || Over::count(dim);
    let count = Scalar::from(dim);

    // Elements behind a row's end stay zeros in its sum.
    k.duplicate(product.at(0), 0.0, Over::count(padded));
    k.barrier(Barrier::V);
    let from = if narrow.is_some() { x_in } else { scale };
    read(&mut k, from.at(0), gamma.at(0), &count);
    k.flag(Pipe::Mte2, Pipe::V, 0);
    widen(&mut k, scale, from, all());

    // Flags: inputs, dx and the sums may be overwritten.
    k.set_flag(Pipe::V, Pipe::Mte2, 0);
    k.set_flag(Pipe::Mte3, Pipe::V, 0);
    k.set_flag(Pipe::Mte3, Pipe::V, 1);
    k.for_each("range", Scalar::BLOCK, number, Scalar::BLOCKS, |k, range| {
        let first = k.let_("first", range.clone() * per);
        let end = k.let_("end", (first.clone() + per).min(rows));
        k.wait_flag(Pipe::Mte3, Pipe::V, 1);
        k.duplicate(sums.at(0), 0.0, Over::count(pitch(shape)));
        k.for_each("r", first, end, 1, |k, r| {
            let at = k.let_("offset", r.clone() * dim);
            let scaling = k.load("scaling", rstd.at(r));
            k.wait_flag(Pipe::V, Pipe::Mte2, 0);
            read(k, dy_in.at(0), dy.at(&at), &count);
            read(k, x_in.at(0), x.at(&at), &count);
            k.flag(Pipe::Mte2, Pipe::V, 0);
            widen(k, wide_dy, dy_in, all());
            widen(k, wide_x, x_in, all());
            k.wait_flag(Pipe::Mte3, Pipe::V, 0);

            k.binary(Binary::Mul, product.at(0), wide_dy.at(0), wide_x.at(0), all());
            k.barrier(Barrier::V);
            k.scaled(Scaled::Muls, wide_dx.at(0), product.at(0), scaling.clone(), all());
            k.barrier(Barrier::V);
            k.binary(Binary::Add, sums.at(0), sums.at(0), wide_dx.at(0), all());
            k.binary(Binary::Mul, product.at(0), product.at(0), scale.at(0), all());
            k.barrier(Barrier::V);
            let dot = row_sum(k, product, partial, total, padded);
            let cubed = scaling.clone() * scaling.clone() * scaling.clone();
            let factor = k.let_("factor", (dot * cubed / (dim as f32)).unary(ScalarUnary::Neg));

            k.binary(Binary::Mul, wide_dx.at(0), wide_dy.at(0), scale.at(0), all());
            k.scaled(Scaled::Muls, product.at(0), wide_x.at(0), factor, all());
            k.set_flag(Pipe::V, Pipe::Mte2, 0);
            k.barrier(Barrier::V);
            k.scaled(Scaled::Muls, wide_dx.at(0), wide_dx.at(0), scaling, all());
            k.barrier(Barrier::V);
            k.binary(Binary::Add, wide_dx.at(0), wide_dx.at(0), product.at(0), all());
            if narrow.is_some() {
                k.barrier(Barrier::V);
                round(k, dx_out.at(0), wide_dx.at(0), all());
            }
            k.flag(Pipe::V, Pipe::Mte3, 0);
            write(k, dx.at(at), dx_out.at(0), &count);
            k.set_flag(Pipe::Mte3, Pipe::V, 0);
            k.barrier(Barrier::V);
        });
        k.flag(Pipe::V, Pipe::Mte3, 1);
        write(k, partials.at(range * pitch(shape)), sums.at(0), &pitch(shape).into());
        k.set_flag(Pipe::Mte3, Pipe::V, 1);
    });
    k.wait_flag(Pipe::V, Pipe::Mte2, 0);
    k.wait_flag(Pipe::Mte3, Pipe::V, 0);
    k.wait_flag(Pipe::Mte3, Pipe::V, 1);
    k.finish()
}

/// `dgamma` out of its partial sums: range i and i + 32, then i + 16, down to one. Ranges that are not there are zeros.
///
/// Parameters: `partials` f32 as [`rms_norm_grad`] writes them, `dgamma` \[d\].
///
/// # Errors
/// As of [`super::rms_norm`].
pub fn rms_norm_grad_gamma(arch: Arch, shape: &RmsNorm) -> Result<Program> {
    let RmsNorm { elem, rows, dim, .. } = *shape;
    let name = format!("rms_norm_grad_gamma_{elem}");
    check(arch, shape, &name)?;
    let (_, number) = ranges(rows);
    let mut k = Builder::new(&name, arch, unit(arch));
    k.doc(format!("dgamma out of {number} partial sums of {dim}, {elem}"));
    let partials = k.input("partials", Elem::F32, rms_norm_grad_partials(shape));
    let dgamma = k.output("dgamma", elem, dim);
    let near = k.ub("near", Elem::F32, RANGES * COLUMNS);
    let narrow = (elem == Elem::F16).then(|| k.ub("narrow", elem, COLUMNS));
    let blocks = COLUMNS / Elem::F32.per_block();

    k.set_flag(Pipe::Mte3, Pipe::V, 0);
    k.for_each("column", Scalar::BLOCK * COLUMNS, dim, Scalar::BLOCKS * COLUMNS, |k, column| {
        let columns = k.let_("columns", Scalar::from(COLUMNS).min(Scalar::from(dim) - column.clone()));
        k.wait_flag(Pipe::Mte3, Pipe::V, 0);
        if number < RANGES {
            k.duplicate(near.at(number * COLUMNS), 0.0, Over::count((RANGES - number) * COLUMNS));
        }
        // Results of the task before have left when copies of this one begin.
        k.flag(Pipe::V, Pipe::Mte2, 0);
        let gap = (pitch(shape) - COLUMNS) / Elem::F32.per_block();
        k.copy_runs(near.at(0), partials.at(&column), number, blocks, gap, 0);
        k.flag(Pipe::Mte2, Pipe::V, 0);
        let mut half = RANGES / 2;
        while half > 0 {
            k.barrier(Barrier::V);
            let over = Over::count(half * COLUMNS);
            k.binary(Binary::Add, near.at(0), near.at(0), near.at(half * COLUMNS), over);
            half /= 2;
        }
        let result = match narrow {
            Some(narrow) => {
                k.barrier(Barrier::V);
                round(k, narrow.at(0), near.at(0), Over::count(COLUMNS));
                narrow
            }
            None => near,
        };
        k.flag(Pipe::V, Pipe::Mte3, 0);
        write(k, dgamma.at(column), result.at(0), &columns);
        k.set_flag(Pipe::Mte3, Pipe::V, 0);
    });
    k.wait_flag(Pipe::Mte3, Pipe::V, 0);
    k.finish()
}
