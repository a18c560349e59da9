//! Products with few rows or few columns (GEMV and its kin) whose operands have `k` along memory: dot
//! products, without packing.

use super::microkernel::Operand;
use super::microkernel::dot::{DOT_COLS, DOT_ROWS, DotTile};
use super::product::Product;
use super::{GRAIN, Size, Start};
use crate::element::Wide;
use crate::pool::Pool;
use std::ops::Range;

/// Rows or columns up to which dot products are faster than packing.
const FEW: usize = 16;

/// True if dot products are the method for this product.
pub(super) fn takes<T: Operand, O: Operand<Wide = T::Wide>>(p: &Product<T, O>) -> bool {
    p.a.cs == 1 && p.b.rs == 1 && p.size.m.min(p.size.n) <= FEW
}

/// Computes the product on all threads: the longer side of the output is divided.
///
/// # Safety
/// As `gemm`, for this product.
pub(super) unsafe fn parallel<T: Operand, O: Operand<Wide = T::Wide>>(p: &Product<T, O>, pool: &Pool) {
    let Size { m, n, k } = p.size;
    let (long, short) = (m.max(n), m.min(n));
    // Few rows are bound by memory: pieces are smaller than those of work in registers.
    let piece = (GRAIN / 4 / (short * k).max(1)).max(1).next_multiple_of(DOT_ROWS * DOT_COLS);
    pool.each(long.div_ceil(piece), |g| {
        let part = g * piece..long.min((g + 1) * piece);
        // SAFETY: the caller's promise; parts are disjoint.
        unsafe { if m > n { tiles(p, part, 0..n) } else { tiles(p, 0..m, part) } };
    });
}

/// Some rows and columns of the product on one thread.
///
/// # Safety
/// As `gemm`, for these elements.
pub(super) unsafe fn tiles<T: Operand, O: Operand<Wide = T::Wide>>(
    p: &Product<T, O>,
    rows: Range<usize>,
    cols: Range<usize>,
) {
    let mut out = [T::Wide::ZERO; DOT_ROWS * DOT_COLS];
    for j in cols.clone().step_by(DOT_COLS) {
        for i in rows.clone().step_by(DOT_ROWS) {
            let (m, n) = (DOT_ROWS.min(rows.end - i), DOT_COLS.min(cols.end - j));
            let (a, b) = (p.a.at(i, 0), p.b.at(0, j));
            let d = DotTile { rows: m, cols: n, k: p.size.k, a: a.ptr, ars: a.rs, b: b.ptr, brs: b.cs };
            // SAFETY: rows and columns of the operands; elements of the output and of the bias.
            unsafe {
                (p.kernels.dot)(&d, &mut out);
                for i2 in 0..m {
                    for j2 in 0..n {
                        let (sum, c) = (out[i2 * DOT_COLS + j2], p.c.at(i + i2, j + j2).ptr);
                        *c = O::narrow(match p.start {
                            Start::Zero => sum,
                            Start::Output => (*c).widen() + sum,
                            Start::Bias(v) => *v.at(0, j + j2).ptr + sum,
                        });
                    }
                }
            }
        }
    }
}
