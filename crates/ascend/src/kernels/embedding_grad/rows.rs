//! Rows of results on their way to the table, rounded to its type.

use super::super::copies::write_rows;
use super::part::Partition;
use crate::chip::Arch;
use crate::kernel::{
    Access, AtomicOp, Barrier, Binary, Buf, Builder, Elem, Gm, Over, Pipe, Round, Scalar, ScalarBinary,
    Scaled, View,
};

/// The rounding of f32 to a table's type: to nearest, ties to even.
pub(super) const fn rounding(arch: Arch) -> Round {
    match arch {
        Arch::A2 => Round::Rint,
        // The chip's own, as no rounding is named.
        Arch::P310 => Round::None,
    }
}

/// The table, as rows are written to it.
pub(super) struct Table {
    gm: Gm,
    /// A block for the end of the table, if rows are not a multiple of a block.
    last: Option<Buf>,
}

/// Rows of a tile: the first row and column, how many, and where they are in UB.
pub(super) struct Rows<'a> {
    pub row: &'a Scalar,
    pub column: &'a Scalar,
    pub rows: &'a Scalar,
    pub columns: &'a Scalar,
    pub from: View,
}

impl Table {
    /// The parameter `grad_table` and what it needs in UB.
    pub fn declare(k: &mut Builder, part: &Partition) -> Table {
        let elem = part.shape.elem;
        let len = part.shape.rows * part.shape.dim;
        let access = if part.ragged { Access::InOut } else { Access::Out };
        let gm = k.pointer("grad_table", access, elem, len);
        let last = part.ragged.then(|| k.ub("last", elem, elem.per_block()));
        Table { gm, last }
    }

    /// Writes rows; where they are not a multiple of a block, onto zeros. Vector and scalar unit no longer
    /// use them.
    pub fn write(&self, k: &mut Builder, part: &Partition, rows: &Rows) {
        let dim = part.shape.dim;
        let to = |row: Scalar| self.gm.at(row * dim + rows.column.clone());
        let Some(last) = self.last else {
            let to = to(rows.row.clone());
            return write_rows(k, to, rows.from.clone(), rows.rows, rows.columns, [dim, part.pitch]);
        };
        // A block that several rows share has zeros where others have theirs. After the table's last whole
        // block a row ends with the block that ends with the table.
        let block = last.elem.per_block();
        let end = part.shape.rows * dim;
        k.for_each("row", 0, rows.rows.clone(), 1, |k, i| {
            let from = rows.from.add(i.clone() * part.pitch);
            let to = k.let_("to_element", to(rows.row.clone() + i).offset);
            let whole = k.let_("whole", rows.columns.clone().div_ceil(block as i64) * block);
            let fits = (to.clone() + whole.clone()).binary(ScalarBinary::Le, end);
            let whole = k.let_("inside", whole - (Scalar::from(1) - fits.clone()) * block);
            k.if_(whole.clone().ne(0), |k| {
                k.copy_atomic(self.gm.at(&to), from.clone(), whole.clone(), AtomicOp::Add);
            });
            k.if_(fits.eq(0), |k| {
                k.flag(Pipe::V, Pipe::S, 1);
                for i in 0..block {
                    k.store(last.at(i), 0.0);
                }
                k.for_each("i", whole.clone(), rows.columns.clone(), 1, |k, i| {
                    let value = k.load("value", from.add(&i));
                    k.store(last.at(to + i - (end - block)), value);
                });
                k.flag(Pipe::S, Pipe::Mte3, 1);
                k.copy_atomic(self.gm.at(end - block), last.at(0), block, AtomicOp::Add);
                k.flag(Pipe::Mte3, Pipe::S, 1);
                // The vector unit may say again that it is done.
                k.flag(Pipe::S, Pipe::V, 1);
            });
        });
    }
}

/// Rounds `count` sums into `narrow`.
pub(super) fn round(k: &mut Builder, narrow: View, sums: View, count: Scalar) {
    let rounding = rounding(k.arch());
    k.cast(narrow.strided(1, 4), sums, rounding, Over::Count(count));
}

/// Adds a row of gradients to a row of sums. `wide` can hold a row in f32, where the chip adds no such
/// elements.
pub(super) fn add(k: &mut Builder, sum: View, gradient: View, wide: Option<Buf>, columns: &Scalar) {
    let over = || Over::Count(columns.clone());
    match (gradient.elem, wide) {
        // The product with 1 is exact: one rounding, of the sum.
        (Elem::F16, _) => k.scaled(Scaled::Axpy, sum, gradient.strided(1, 4), 1.0, over()),
        (Elem::BF16, Some(wide)) => {
            k.cast(wide.at(0), gradient.strided(1, 4), Round::None, over());
            k.barrier(Barrier::V);
            k.binary(Binary::Add, sum.clone(), sum, wide.at(0), over());
        }
        _ => k.binary(Binary::Add, sum.clone(), sum, gradient, over()),
    }
}
