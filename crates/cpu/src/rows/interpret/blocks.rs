//! Runs scheduled programs: blocks over threads, tiles within blocks, operations over tiles.
//!
//! Soundness: `check` has found that every element reached by the axes is in its segment. It has found that
//! results are disjoint, and that a result overlaps an input only element by element. Blocks are disjoint
//! parts of the space, so threads write different elements. No thread reads what another writes, for that
//! would be the same element.

use super::loops::{combine, fence, identity};
use super::run::{Place, Run};
use super::scratch::{Cells, SUMS, Scratch, ScratchSize, Worker};
use super::tile::{Line, Tile, fill};
use crate::pool::{Pool, Shared};
use crate::rows::Program;
use crate::rows::code::{Kind, Op};
use crate::rows::space::count;
use crate::rows::types::Ty;
use std::ops::Range;

/// The work of a block.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// Everything.
    Whole,
    /// Reductions of one phase over some columns; their accumulators are the result.
    Phase(usize),
    /// After all reductions: row scalars and their stores.
    Rest,
}

impl Program {
    /// The workspace of this program.
    pub(crate) fn scratch(&self) -> ScratchSize {
        let sums = self.sum_width() * self.code.sums.len() * self.row_blocks() * count(&self.cols);
        ScratchSize {
            buffer: self.buffer,
            context: self.context(),
            registers: self.code.regs.len(),
            operands: self.operands,
            partial: 8 * self.split_cells() + sums,
        }
    }

    fn context(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        return self.machine.as_ref().map_or(0, |m| m.context);
        #[cfg(not(target_arch = "x86_64"))]
        0
    }

    /// Bytes of a column sum, of the widest.
    fn sum_width(&self) -> usize {
        self.code.sums.iter().map(|s| s.ty.size()).max().unwrap_or(0)
    }

    fn split_cells(&self) -> usize {
        if self.tiling.split { self.code.folds.len() * self.col_blocks() * count(&self.rows) } else { 0 }
    }

    fn row_blocks(&self) -> usize {
        count(&self.rows).div_ceil(self.tiling.block_rows)
    }

    fn col_blocks(&self) -> usize {
        // Rows without columns still have their scalars.
        count(&self.cols).div_ceil(self.tiling.block_cols).max(1)
    }

    /// Runs the program once.
    ///
    /// # Safety
    /// `bases` are the segments of the plan this was compiled for, at least of their sizes, and used by
    /// nobody else meanwhile. `scratch` is at least of this program's size.
    pub(crate) unsafe fn run(&self, bases: &[Shared<u8>], pool: &Pool, scratch: &mut Scratch) {
        let (rows, cols) = (count(&self.rows), count(&self.cols));
        let (row_blocks, col_blocks) = (self.row_blocks(), self.col_blocks());
        let t = &self.tiling;
        let folds = if t.split { self.code.folds.len() } else { 0 };
        let (base, width) = (Shared(scratch.partial.base()), self.sum_width());
        let cells = Cells { base, rows, col_blocks, cols, folds, width };
        let run = Run { p: self, bases, cells, row_blocks };
        let blocks = |part: Part, scratch: &mut Scratch| {
            let col_blocks = if part == Part::Rest { 1 } else { col_blocks };
            let n = row_blocks * col_blocks;
            pool.each_with(n, &mut scratch.threads, |b, worker| {
                let (rb, cb) = (b / col_blocks, b % col_blocks);
                let part_of =
                    |block: usize, size: usize, all: usize| block * size..((block + 1) * size).min(all);
                // SAFETY: the caller's promise; blocks are disjoint.
                unsafe {
                    run.block(
                        &mut worker[0],
                        part,
                        part_of(rb, t.block_rows, rows),
                        part_of(cb, t.block_cols, cols),
                    );
                }
            });
        };
        if t.split {
            for phase in 0..self.code.vector.len() {
                blocks(Part::Phase(phase), scratch);
                // SAFETY: `blocks` has waited for all of them.
                unsafe { run.combine(phase, pool) };
            }
            blocks(Part::Rest, scratch);
        } else {
            blocks(Part::Whole, scratch);
        }
        if !self.code.sums.is_empty() {
            pool.each_with(cols.div_ceil(SUMS), &mut scratch.threads, |b, worker| {
                // SAFETY: as above; all partial sums are written.
                unsafe { run.store_sums(&mut worker[0], b * SUMS..((b + 1) * SUMS).min(cols)) }
            });
        }
    }
}

impl Run<'_> {
    /// One block of the space. The partial sums and accumulators it writes are its own.
    ///
    /// # Safety
    /// That of [`Program::run`]; blocks run at the same time are disjoint.
    unsafe fn block(&self, w: &mut Worker, part: Part, rows: Range<usize>, cols: Range<usize>) {
        let (p, t) = (self.p, &self.p.tiling);
        w.at.clear();
        w.at.resize(p.homes.len(), Shared(std::ptr::null_mut()));
        let buffer = w.buffer.base();
        for (r, reg) in p.code.regs.iter().enumerate() {
            w.at[r] = Shared(buffer.wrapping_add(p.homes[r]));
            if let Kind::Constant { bytes, wide } = reg.kind {
                // Machine code has them among its own constants.
                let n = if wide && !p.assembled() { t.tile_rows * t.tile_cols } else { t.tile_rows };
                // SAFETY: a constant's place holds so many elements of its type.
                unsafe { fill(w.at[r].get(), reg.ty.size(), &raw const bytes as *const u8, n) };
            }
        }
        if part == Part::Whole {
            for sum in 0..p.code.sums.len() {
                let cells = self.sum_cells(sum, rows.start, cols.start);
                // SAFETY: the cells of this block.
                unsafe { cells.write_bytes(0, p.code.sums[sum].ty.size() * cols.len()) };
            }
        }
        let phases = p.code.vector.len();
        for row in rows.clone().step_by(t.tile_rows) {
            let place =
                Place { row, rows: t.tile_rows.min(rows.end - row), col_block: cols.start / t.block_cols };
            w.rows.cut(&p.rows, p.operands, row, place.rows);
            #[cfg(target_arch = "x86_64")]
            if let Some(machine) = &p.machine
                && part == Part::Whole
                // SAFETY: as for this function.
                && unsafe { machine.rows(self, w, &place, &cols) }
            {
                continue;
            }
            for q in 0..=phases {
                // SAFETY: as for this function.
                unsafe {
                    self.scalar_code(w, q, &place, part);
                    match part {
                        _ if q == phases => {}
                        Part::Whole => {
                            self.phase(w, q, &place, cols.clone());
                            self.finish(w, q, &place);
                        }
                        Part::Phase(phase) if q == phase => {
                            self.phase(w, q, &place, cols.clone());
                            self.hand_in(w, q, &place);
                            break;
                        }
                        Part::Phase(_) | Part::Rest => {
                            self.fetch(w, q, &place);
                            self.finish(w, q, &place);
                        }
                    }
                }
            }
        }
        if p.stream {
            fence();
        }
    }

    /// Row scalars before phase `q`, for all rows of a tile.
    ///
    /// # Safety
    /// As [`Run::block`].
    unsafe fn scalar_code(&self, w: &mut Worker, q: usize, place: &Place, part: Part) {
        let rows = Line { runs: &w.rows, axis: self.p.rows.last(), len: place.rows };
        if self.p.code.scalar[q].is_empty() {
            return;
        }
        // The columns remain at the first.
        w.cols.cut(&[], self.p.operands, 0, 1);
        let tile = Tile { slow: Line { runs: &w.cols, axis: None, len: 1 }, fast: rows };
        for op in &self.p.code.scalar[q] {
            // Stores are left to the last part.
            if !(matches!(op, Op::Store { .. }) && matches!(part, Part::Phase(_))) {
                // SAFETY: as for this function.
                unsafe { self.op(op, &mut w.at, &[], w.buffer.base(), &tile, place, 0) };
            }
        }
    }

    /// Code of phase `q` on the tiles of some rows.
    ///
    /// # Safety
    /// As [`Run::block`].
    unsafe fn phase(&self, w: &mut Worker, q: usize, place: &Place, cols: Range<usize>) {
        let (p, t) = (self.p, &self.p.tiling);
        let buffer = w.buffer.base();
        for (fold, home) in self.folds(q) {
            let folding = &p.code.folds[fold];
            let ty = folding.ty.accumulator();
            let first = identity(ty, folding.op);
            // SAFETY: the accumulators' place, one for each row.
            unsafe { fill(buffer.wrapping_add(home), ty.size(), &raw const first as *const u8, place.rows) };
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(machine) = &p.machine {
            // SAFETY: as for this function.
            return unsafe { machine.phase(self, w, q, place, cols) };
        }
        for col in cols.clone().step_by(t.tile_cols) {
            let n = t.tile_cols.min(cols.end - col);
            w.cols.cut(&p.cols, p.operands, col, n);
            for (r, reg) in p.code.regs.iter().enumerate().filter(|(_, reg)| reg.kind == Kind::Kept) {
                let before = (col - cols.start) * place.rows * reg.ty.size();
                w.at[r] = Shared(buffer.wrapping_add(p.homes[r] + before));
            }
            let rows = Line { runs: &w.rows, axis: p.rows.last(), len: place.rows };
            let cols = Line { runs: &w.cols, axis: p.cols.last(), len: n };
            let tile =
                if t.across { Tile { slow: cols, fast: rows } } else { Tile { slow: rows, fast: cols } };
            w.parts.clear();
            w.parts.extend(
                (0..p.sites.len()).map(|o| Shared(self.part(&tile, o).unwrap_or(std::ptr::null_mut()))),
            );
            for op in &p.code.vector[q] {
                // SAFETY: as for this function.
                unsafe { self.op(op, &mut w.at, &w.parts, buffer, &tile, place, col) };
            }
        }
    }

    /// Makes registers of the accumulators of a phase.
    ///
    /// # Safety
    /// As [`Run::block`].
    unsafe fn finish(&self, w: &mut Worker, phase: usize, place: &Place) {
        let buffer = w.buffer.base();
        for (fold, home) in self.folds(phase) {
            let folding = &self.p.code.folds[fold];
            // SAFETY: accumulators and register hold a number for each row.
            unsafe { (folding.finish)(buffer.wrapping_add(home), w.at[folding.out].get(), 1, place.rows) };
        }
    }

    /// Puts the accumulators of a phase where those of other blocks can be added.
    ///
    /// # Safety
    /// As [`Run::block`].
    unsafe fn hand_in(&self, w: &mut Worker, phase: usize, place: &Place) {
        let buffer = w.buffer.base();
        for (fold, home) in self.folds(phase) {
            let size = self.p.code.folds[fold].ty.accumulator().size();
            for i in 0..place.rows {
                let mut cell = [0; 8];
                // SAFETY: one accumulator for each row; the cell is this block's.
                unsafe {
                    let from = buffer.wrapping_add(home + i * size);
                    from.copy_to_nonoverlapping(cell.as_mut_ptr(), size);
                    *self.cells.fold(fold, place.col_block, place.row + i) = cell;
                }
            }
        }
    }

    /// Combines what the blocks of columns handed in, in their order.
    ///
    /// # Safety
    /// All blocks of the phase have run, none runs now.
    unsafe fn combine(&self, phase: usize, pool: &Pool) {
        const ROWS: usize = 64;
        for (fold, _) in self.folds(phase) {
            let folding = &self.p.code.folds[fold];
            pool.each(self.cells.rows.div_ceil(ROWS), |b| {
                for row in b * ROWS..((b + 1) * ROWS).min(self.cells.rows) {
                    // SAFETY: cells of this reduction and row, which no other thread uses.
                    unsafe {
                        let mut total = *self.cells.fold(fold, 0, row);
                        for block in 1..self.cells.col_blocks {
                            combine(folding.ty, folding.op, &mut total, *self.cells.fold(fold, block, row));
                        }
                        *self.cells.fold(fold, 0, row) = total;
                    }
                }
            });
        }
    }

    /// Takes back the combined accumulators of a phase.
    ///
    /// # Safety
    /// As [`Run::block`]; the phase was combined.
    unsafe fn fetch(&self, w: &mut Worker, phase: usize, place: &Place) {
        let buffer = w.buffer.base();
        for (fold, home) in self.folds(phase) {
            let size = self.p.code.folds[fold].ty.accumulator().size();
            for i in 0..place.rows {
                // SAFETY: one accumulator for each row; nobody writes cells of a combined phase.
                unsafe {
                    let cell = self.cells.fold(fold, 0, place.row + i).cast::<u8>();
                    cell.copy_to_nonoverlapping(buffer.wrapping_add(home + i * size), size);
                }
            }
        }
    }

    /// Adds up the partial sums of some columns, block of rows by block of rows, and stores them.
    ///
    /// # Safety
    /// That of [`Program::run`]; all blocks have run; no other thread stores these columns.
    unsafe fn store_sums(&self, w: &mut Worker, cols: Range<usize>) {
        let p = self.p;
        w.rows.cut(&[], p.operands, 0, 1);
        w.cols.cut(&p.cols, p.operands, cols.start, cols.len());
        for (i, sum) in p.code.sums.iter().enumerate() {
            let mut total = [0i64; SUMS];
            for block in 0..self.row_blocks {
                let row = block * p.tiling.block_rows;
                let cells = self.sum_cells(i, row, cols.start).cast_const();
                let add = |t: &mut i64, x: f64| *t = (f64::from_bits(*t as u64) + x).to_bits() as i64;
                for (c, t) in total[..cols.len()].iter_mut().enumerate() {
                    // SAFETY: partial sums of these columns, written by their block.
                    unsafe {
                        match sum.ty {
                            Ty::F32 => add(t, *cells.cast::<f32>().add(c) as f64),
                            Ty::F64 => add(t, *cells.cast::<f64>().add(c)),
                            _ => *t = t.wrapping_add(*cells.cast::<i64>().add(c)),
                        }
                    }
                }
            }
            let tile = Tile {
                slow: Line { runs: &w.rows, axis: None, len: 1 },
                fast: Line { runs: &w.cols, axis: p.cols.last(), len: cols.len() },
            };
            // SAFETY: the result was checked to hold the columns.
            unsafe { self.transfer(&tile, sum.operand, sum.store, total.as_mut_ptr().cast(), 8, false) };
        }
    }
}
