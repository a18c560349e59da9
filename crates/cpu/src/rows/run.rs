//! Runs compiled programs: blocks over threads, tiles within blocks, operations over tiles.
//!
//! Soundness: `source` has checked that every element reached by the axes lies in its segment, that results lie apart, and
//! that a result overlaps an input only element by element. Blocks are disjoint parts of the space, so threads write
//! different elements; what one writes another reads only if it is the same element, that is, never.

use super::Program;
use super::compile::{Kind, Op, Reg};
use super::loops::{combine, identity};
use super::ops::{Move, Ty};
use super::space::{Axis, Runs, count};
use crate::memory::CpuMemory;
use crate::pool::{Pool, Shared};
use headwater_core::diagnostic::Result;
use std::ops::Range;

/// What programs work in besides their operands: a buffer for each thread, and partial results. Made when a plan is loaded,
/// large enough for each of its programs.
#[derive(Debug)]
pub(crate) struct Scratch {
    threads: Vec<Worker>,
    partial: CpuMemory,
}

/// Sizes of a [`Scratch`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScratchSize {
    buffer: usize,
    registers: usize,
    partial: usize,
}

/// What one thread works in.
#[derive(Debug)]
struct Worker {
    buffer: CpuMemory,
    /// Where each register is at the moment: in the buffer or in an operand.
    at: Vec<Shared<u8>>,
    rows: Runs,
    cols: Runs,
}

impl ScratchSize {
    /// Enough for both.
    pub fn max(self, other: ScratchSize) -> ScratchSize {
        ScratchSize {
            buffer: self.buffer.max(other.buffer),
            registers: self.registers.max(other.registers),
            partial: self.partial.max(other.partial),
        }
    }
}

impl Scratch {
    /// Scratch memory for programs up to a size.
    ///
    /// # Errors
    /// `Device` if there is not enough memory.
    pub fn new(size: ScratchSize, threads: usize) -> Result<Scratch> {
        let worker = |_| {
            let at = Vec::with_capacity(size.registers);
            Ok(Worker {
                buffer: CpuMemory::new(size.buffer)?,
                at,
                rows: Runs::default(),
                cols: Runs::default(),
            })
        };
        let threads = (0..threads).map(worker).collect::<Result<Vec<Worker>>>()?;
        Ok(Scratch { threads, partial: CpuMemory::new(size.partial)? })
    }

    /// Makes room for a program's index arithmetic, so that runs do not allocate.
    pub fn reserve(&mut self, p: &Program) {
        for w in &mut self.threads {
            w.rows.reserve(&p.rows, p.operands, p.tiling.tile_rows);
            w.cols.reserve(&p.cols, p.operands, p.tiling.tile_cols);
        }
    }
}

/// What a block does.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// Everything.
    Whole,
    /// Reductions of one phase over some columns; their accumulators are the result.
    Phase(usize),
    /// After all reductions: row scalars and their stores.
    Rest,
}

/// Partial results in shared memory, in cells of 8 bytes.
#[derive(Clone, Copy)]
struct Cells {
    base: Shared<u8>,
    rows: usize,
    col_blocks: usize,
    cols: usize,
    folds: usize,
}

impl Cells {
    /// Accumulator of a reduction for a row and a block of columns; block 0 later holds the result.
    fn fold(&self, fold: usize, block: usize, row: usize) -> *mut [u8; 8] {
        let at = (fold * self.col_blocks + block) * self.rows + row;
        self.base.get().wrapping_add(8 * at).cast()
    }

    /// Column sums of a block of rows.
    fn sum(&self, sum: usize, row_blocks: usize, block: usize, col: usize) -> *mut u8 {
        let at = self.folds * self.col_blocks * self.rows + (sum * row_blocks + block) * self.cols + col;
        self.base.get().wrapping_add(8 * at)
    }
}

/// One run: where the segments are, and shared memory.
#[derive(Clone, Copy)]
struct Run<'a> {
    p: &'a Program,
    bases: &'a [Shared<u8>],
    cells: Cells,
    row_blocks: usize,
}

/// Rows of a tile, and which blocks they belong to.
struct Place {
    row: usize,
    rows: usize,
    col_block: usize,
}

/// One dimension of a tile: the runs of its indices, and the axis they are cut along.
#[derive(Clone, Copy)]
struct Line<'a> {
    runs: &'a Runs,
    axis: Option<&'a Axis>,
    len: usize,
}

impl Line<'_> {
    fn step(&self, operand: usize) -> isize {
        self.axis.map_or(0, |a| a.steps[operand])
    }
}

/// A tile: its elements lie in registers slow index by slow index.
#[derive(Clone, Copy)]
struct Tile<'a> {
    slow: Line<'a>,
    fast: Line<'a>,
}

impl Tile<'_> {
    fn len(&self) -> usize {
        self.slow.len * self.fast.len
    }

    /// Offset of an operand's elements, if they lie in memory as in a register.
    fn alike(&self, operand: usize) -> Option<isize> {
        let one = |l: &Line| l.runs.lens.len() == 1;
        let (slow, fast) = (self.slow, self.fast);
        let fast_alike = fast.len == 1 || (one(&fast) && fast.step(operand) == 1);
        let slow_alike = slow.len == 1 || (one(&slow) && slow.step(operand) == fast.len as isize);
        (fast_alike && slow_alike).then(|| slow.runs.start(operand) + fast.runs.start(operand))
    }
}

impl Program {
    /// What this program works in.
    pub(crate) fn scratch(&self) -> ScratchSize {
        let cells = self.split_cells() + self.code.sums.len() * self.row_blocks() * count(&self.cols);
        ScratchSize { buffer: self.buffer, registers: self.code.regs.len(), partial: 8 * cells }
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
    /// `bases` are the segments of the plan this was compiled for, at least of their sizes, and used by nobody else
    /// meanwhile; `scratch` is at least of this program's size.
    pub(crate) unsafe fn run(&self, bases: &[Shared<u8>], pool: &Pool, scratch: &mut Scratch) {
        let (rows, cols) = (count(&self.rows), count(&self.cols));
        let (row_blocks, col_blocks) = (self.row_blocks(), self.col_blocks());
        let t = &self.tiling;
        let folds = if t.split { self.code.folds.len() } else { 0 };
        let cells = Cells { base: Shared(scratch.partial.base()), rows, col_blocks, cols, folds };
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
            if let Kind::Constant(bytes) = reg.kind {
                // SAFETY: a constant's place holds a tile of its type.
                unsafe {
                    fill(
                        w.at[r].get(),
                        reg.ty.size(),
                        &raw const bytes as *const u8,
                        t.tile_rows * t.tile_cols,
                    )
                };
            }
        }
        if part == Part::Whole {
            for sum in 0..p.code.sums.len() {
                let cells = self.sum_cells(sum, rows.start, cols.start);
                // SAFETY: the cells of this block.
                unsafe { cells.write_bytes(0, 8 * cols.len()) };
            }
        }
        let phases = p.code.vector.len();
        for row in rows.clone().step_by(t.tile_rows) {
            let place =
                Place { row, rows: t.tile_rows.min(rows.end - row), col_block: cols.start / t.block_cols };
            w.rows.cut(&p.rows, p.operands, row, place.rows);
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
    }

    /// Partial sums of the block of rows that `row` lies in, from a column on.
    fn sum_cells(&self, sum: usize, row: usize, col: usize) -> *mut u8 {
        self.cells.sum(sum, self.row_blocks, row / self.p.tiling.block_rows, col)
    }

    /// First byte of an operand's index 0, and the bytes of an element.
    fn memory(&self, operand: usize) -> (*mut u8, isize) {
        let site = &self.p.sites[operand];
        let base = self.bases[site.place.segment].get().wrapping_add(site.place.byte);
        (base, site.dtype.size() as isize)
    }

    /// Moves a tile between a register of elements of `size` bytes and an operand.
    ///
    /// # Safety
    /// The operand may be read (or written) at the tile's indices; the register holds a tile.
    unsafe fn transfer(
        &self,
        tile: &Tile,
        operand: usize,
        f: Move,
        register: *mut u8,
        size: usize,
        load: bool,
    ) {
        let (base, width) = self.memory(operand);
        let (slow, fast) = (tile.slow.step(operand), tile.fast.step(operand));
        let mut register = register;
        for (outer, rows) in tile.slow.runs.of(operand) {
            for i in 0..rows as isize {
                let row = outer + i * slow;
                for (inner, n) in tile.fast.runs.of(operand) {
                    let memory = base.wrapping_offset((row + inner) * width);
                    // SAFETY: the caller's promise.
                    unsafe { if load { f(memory, register, fast, n) } else { f(register, memory, fast, n) } }
                    register = register.wrapping_add(n * size);
                }
            }
        }
    }

    /// Row scalars before phase `q`, for all rows of a tile.
    ///
    /// # Safety
    /// As [`Run::block`].
    unsafe fn scalar_code(&self, w: &mut Worker, q: usize, place: &Place, part: Part) {
        let rows = Line { runs: &w.rows, axis: self.p.rows.last(), len: place.rows };
        // The columns stand still at the first.
        w.cols.cut(&[], self.p.operands, 0, 1);
        let tile = Tile { slow: Line { runs: &w.cols, axis: None, len: 1 }, fast: rows };
        for op in &self.p.code.scalar[q] {
            // Stores are left to the last part.
            if !(matches!(op, Op::Store { .. }) && matches!(part, Part::Phase(_))) {
                // SAFETY: as for this function.
                unsafe { self.op(op, &mut w.at, w.buffer.base(), &tile, place, 0) };
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
        for col in cols.clone().step_by(t.tile_cols) {
            let n = t.tile_cols.min(cols.end - col);
            w.cols.cut(&p.cols, p.operands, col, n);
            let rows = Line { runs: &w.rows, axis: p.rows.last(), len: place.rows };
            let cols = Line { runs: &w.cols, axis: p.cols.last(), len: n };
            let tile =
                if t.across { Tile { slow: cols, fast: rows } } else { Tile { slow: rows, fast: cols } };
            for op in &p.code.vector[q] {
                // SAFETY: as for this function.
                unsafe { self.op(op, &mut w.at, buffer, &tile, place, col) };
            }
        }
    }

    /// One operation on a tile.
    ///
    /// # Safety
    /// As [`Run::block`]; the registers in `at` are valid for the tile.
    unsafe fn op(
        &self,
        op: &Op,
        at: &mut [Shared<u8>],
        buffer: *mut u8,
        tile: &Tile,
        place: &Place,
        col: usize,
    ) {
        let p = self.p;
        let home = |r: Reg| buffer.wrapping_add(p.homes[r]);
        let size = |r: Reg| p.code.regs[r].ty.size();
        // Where an operand's part lies, if it lies like a register.
        let alike = |operand: usize| {
            let (base, width) = self.memory(operand);
            tile.alike(operand).map(|o| base.wrapping_offset(o * width))
        };
        // SAFETY: registers hold a tile of their type, in the buffer or in an operand laid out like one; no loop's result
        // lies over its arguments (`compile` gives it a slot of its own, or an operand that overlaps no input).
        unsafe {
            match *op {
                Op::Load { operand, f, out, alias } => match alike(operand).filter(|_| alias) {
                    Some(memory) => at[out] = Shared(memory),
                    None => {
                        at[out] = Shared(home(out));
                        self.transfer(tile, operand, f, home(out), size(out), true);
                    }
                },
                Op::Count { operand, out } => {
                    at[out] = Shared(home(out));
                    let mut next = home(out).cast::<i64>();
                    let (slow, fast) = (tile.slow.step(operand), tile.fast.step(operand));
                    for (outer, rows) in tile.slow.runs.of(operand) {
                        for i in 0..rows as isize {
                            for (inner, n) in tile.fast.runs.of(operand) {
                                for k in 0..n as isize {
                                    *next = (outer + i * slow + inner + k * fast) as i64;
                                    next = next.wrapping_add(1);
                                }
                            }
                        }
                    }
                }
                Op::Map { f, args, out, direct } => {
                    at[out] = Shared(direct.and_then(alike).unwrap_or_else(|| home(out)));
                    let arg = |r: Reg| at.get(r).map_or(std::ptr::null(), |a| a.get().cast_const());
                    f(args.map(arg), at[out].get(), tile.len());
                }
                Op::Expand { from, out } => {
                    let (from, size) = (at[from], size(out));
                    let (along, times) = if p.tiling.across {
                        (tile.fast.len, tile.slow.len)
                    } else {
                        (tile.slow.len, tile.fast.len)
                    };
                    if times == 1 {
                        // One column: the row scalars are the tile.
                        at[out] = from;
                        return;
                    }
                    at[out] = Shared(home(out));
                    if p.tiling.across {
                        for i in 0..times {
                            let to = home(out).wrapping_add(i * along * size);
                            from.get().copy_to_nonoverlapping(to, along * size);
                        }
                    } else {
                        for i in 0..along {
                            fill(
                                home(out).wrapping_add(i * times * size),
                                size,
                                from.get().wrapping_add(i * size),
                                times,
                            );
                        }
                    }
                }
                Op::Fold { fold, from } => {
                    let acc = buffer.wrapping_add(p.fold_homes[fold]);
                    let folding = &p.code.folds[fold];
                    let f = if p.tiling.across { folding.slow } else { folding.fast };
                    f(at[from].get(), tile.slow.len, tile.fast.len, acc);
                }
                Op::Sum { sum, from } => {
                    let cells = self.sum_cells(sum, place.row, col);
                    (p.code.sums[sum].fold)(at[from].get(), tile.slow.len, tile.fast.len, cells);
                }
                Op::Store { operand, f, from } => {
                    let from = (at[from].get(), size(from));
                    if alike(operand) != Some(from.0) {
                        self.transfer(tile, operand, f, from.0, from.1, false);
                    }
                }
            }
        }
    }

    /// Reductions of a phase, and where their accumulators are in the buffer.
    fn folds(&self, phase: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let folds = self.p.code.folds.iter().zip(&self.p.fold_homes).enumerate();
        folds.filter(move |(_, (f, _))| f.phase == phase).map(|(i, (_, &home))| (i, home))
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
                let cells = self.cells.sum(i, self.row_blocks, block, cols.start).cast_const();
                // SAFETY: partial sums of these columns, written by their block.
                unsafe {
                    if sum.ty == Ty::I64 {
                        let cells = std::slice::from_raw_parts(cells.cast::<i64>(), cols.len());
                        total.iter_mut().zip(cells).for_each(|(t, c)| *t = t.wrapping_add(*c));
                    } else {
                        let cells = std::slice::from_raw_parts(cells.cast::<f64>(), cols.len());
                        let add = |t: i64, c: f64| (f64::from_bits(t as u64) + c).to_bits() as i64;
                        total.iter_mut().zip(cells).for_each(|(t, c)| *t = add(*t, *c));
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

/// Columns whose partial sums are added up at a time.
const SUMS: usize = 512;

/// Writes the same element of `size` bytes `n` times.
///
/// # Safety
/// `to` holds `n` such elements, `from` one; both are aligned to it.
unsafe fn fill(to: *mut u8, size: usize, from: *const u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => std::slice::from_raw_parts_mut(to, n).fill(*from),
            4 => {
                std::slice::from_raw_parts_mut(to.cast::<u32>(), n).fill(from.cast::<u32>().read_unaligned())
            }
            _ => {
                std::slice::from_raw_parts_mut(to.cast::<u64>(), n).fill(from.cast::<u64>().read_unaligned())
            }
        }
    }
}
