//! Operands of products out of memory into L1, as each chip has it.

use super::matmul_shape::{Matmul, SIDE};
use crate::chip::Arch;
use crate::kernel::{Barrier, Builder, CopyNdToNz, DataCopy, Scalar, View};

/// Sizes of a tile, as scalars.
pub(super) struct Sizes {
    pub rows: Scalar,
    pub columns: Scalar,
    /// Fractals of rows and columns.
    pub fractals: [Scalar; 2],
}

/// Copies `rows × columns` elements into columns of fractals in L1, each of `pitch` rows.
///
/// The content after a row's last column up to the fractal's end is undefined: it reaches no result.
pub(super) fn read(
    k: &mut Builder,
    to: View,
    from: View,
    rows: &Scalar,
    columns: &Scalar,
    row: u64,
    pitch: &Scalar,
) {
    let c0 = to.elem.per_block();
    let blocks = columns.clone().div_ceil(c0 as i64);
    let each_row = |k: &mut Builder, copy: &dyn Fn(View, View) -> crate::kernel::Instr| {
        k.for_each("r", 0, rows, 1, |k, r| k.issue(copy(to.add(r.clone() * c0), from.add(r * row))));
    };
    let run = |dst: View, src: View, blocks: Scalar, src_gap: Scalar, dst_gap: Scalar| DataCopy {
        dst,
        src,
        blocks,
        len: 1.into(),
        src_gap,
        dst_gap,
        atomic: None,
    };
    let fractals = |dst: View, src: View, n: Scalar, src_row: u64| CopyNdToNz {
        dst,
        src,
        matrices: 1.into(),
        n,
        d: columns.clone(),
        src_matrix: 0.into(),
        src_row: src_row.into(),
        dst_c0: pitch.clone(),
        dst_row: 1.into(),
        dst_matrix: 0.into(),
    };
    match k.arch() {
        Arch::A2 if row <= 65535 => k.issue(fractals(to, from, rows.clone(), row)),
        Arch::A2 => each_row(k, &|dst, src| fractals(dst, src, 1.into(), 1).into()),
        Arch::P310 if row.is_multiple_of(c0) && row / c0 <= 65536 => k.for_each("c", 0, blocks, 1, |k, c| {
            let dst = to.add(c.clone() * pitch.clone() * c0);
            k.issue(run(dst, from.add(c * c0), rows.clone(), (row / c0 - 1).into(), 0.into()));
        }),
        Arch::P310 => {
            each_row(k, &|dst, src| run(dst, src, blocks.clone(), 0.into(), pitch.clone() - 1).into())
        }
    }
}

/// The right operand in its own layout: `depth` rows. On 310P the last 16 columns of a tile are read again,
/// as a fractal of their own, where they are not a whole one.
pub(super) fn read_across(
    k: &mut Builder,
    to: View,
    from: View,
    depth: &Scalar,
    sizes: &Sizes,
    row: u64,
    pitch: &Scalar,
) {
    let columns = &sizes.columns;
    if k.arch() == Arch::A2 {
        return read(k, to, from, depth, columns, row, pitch);
    }
    let whole = columns.clone() / SIDE * SIDE;
    k.if_(columns.clone().lt(SIDE), |k| read(k, to.clone(), from.clone(), depth, columns, row, pitch));
    k.if_(Scalar::from(SIDE - 1).lt(columns.clone()), |k| {
        read(k, to.clone(), from.clone(), depth, &whole, row, pitch);
        k.if_((columns.clone() % SIDE).ne(0), |k| {
            let (to, from) = (to.add(whole.clone() * pitch.clone()), from.add(columns.clone() - SIDE));
            read(k, to, from, depth, &SIDE.into(), row, pitch);
        });
    });
}

/// The right operand, transposed in memory: rows are its columns. On 310P its last 16 columns are read again
/// likewise.
pub(super) fn read_down(
    k: &mut Builder,
    to: View,
    from: View,
    depth: &Scalar,
    sizes: &Sizes,
    shape: &Matmul,
    pitch: &Scalar,
) {
    let (columns, row) = (&sizes.columns, shape.b.row);
    read(k, to.clone(), from.clone(), columns, depth, row, pitch);
    if k.arch() == Arch::P310 && shape.n >= SIDE && !shape.n.is_multiple_of(SIDE) {
        let whole = columns.clone() / SIDE * SIDE;
        k.if_((columns.clone() % SIDE).ne(0), |k| {
            // That range has rows of the first copy.
            k.barrier(Barrier::Mte2);
            let (to, from) = (to.add(whole * SIDE), from.add((columns.clone() - SIDE) * row));
            read(k, to, from, &SIDE.into(), depth, row, pitch);
        });
    }
}
