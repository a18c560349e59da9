//! One run of a program: its segments, shared memory, and the rows it is at.

use super::scratch::Cells;
use crate::pool::Shared;
use crate::rows::Program;

/// One run: where the segments are, and shared memory.
#[derive(Clone, Copy)]
pub(in crate::rows) struct Run<'a> {
    pub(in crate::rows) p: &'a Program,
    pub(super) bases: &'a [Shared<u8>],
    pub(super) cells: Cells,
    pub(super) row_blocks: usize,
}

/// Rows of a tile, and which blocks they belong to.
pub(in crate::rows) struct Place {
    pub(in crate::rows) row: usize,
    pub(in crate::rows) rows: usize,
    pub(in crate::rows) col_block: usize,
}

impl Run<'_> {
    /// First byte of an operand's index 0, and the bytes of an element.
    pub(in crate::rows) fn memory(&self, operand: usize) -> (*mut u8, isize) {
        let site = &self.p.sites[operand];
        let base = self.bases[site.place.segment].get().wrapping_add(site.place.byte);
        (base, site.dtype.size() as isize)
    }

    /// Partial sums of the block of rows that contains `row`, from a column on.
    pub(in crate::rows) fn sum_cells(&self, sum: usize, row: usize, col: usize) -> *mut u8 {
        let block = self.cells.sum(sum, self.row_blocks, row / self.p.tiling.block_rows);
        block.wrapping_add(self.p.code.sums[sum].ty.size() * col)
    }

    /// Reductions of a phase, and where their accumulators are in the buffer.
    pub(in crate::rows) fn folds(&self, phase: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let folds = self.p.code.folds.iter().zip(&self.p.fold_homes).enumerate();
        folds.filter(move |(_, (f, _))| f.phase == phase).map(|(i, (_, &home))| (i, home))
    }
}
