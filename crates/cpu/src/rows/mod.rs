//! Row programs: the one mechanism for pointwise chains, norms, softmax, losses, reductions and updates.
//!
//! A program is checked against its operands ([`check`]) and scheduled ([`schedule`](mod@schedule)). It is
//! cut into phases at its reductions, and into tiles that fit the first-level cache and blocks that threads
//! take. Then it is interpreted, operation by operation on tiles ([`interpret`]). On x86-64 with AVX2 it is
//! compiled to machine code (`x86`), to the same bits. `ARCHITECTURE.md` in this folder has a figure, the
//! cost model and rejected variants.
//!
//! Numbers: floats are computed in f32, or in f64 if an f64 takes part, and rounded to memory once, to
//! nearest even. Integers are in i64, exactly. Sums of f32 over a row are taken in 32 lanes of at most 128
//! terms each. Sums over rows are in pieces of at most 128 rows; their totals are carried on in f64. Sums
//! over columns that are not contiguous are in f64 throughout. So a sum of `n` f32 is off by at most
//! `min(n, 134) · 2⁻²⁴ · Σ|x|`, plus one rounding of the result, plus f64 noise. All divisions depend on
//! sizes and layouts alone: results have the same bits on any number of threads and in every tier.

mod check;
mod code;
pub(crate) mod interpret;
mod schedule;
mod space;
#[cfg(test)]
mod tests;
mod types;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::tier::Tier;
use crate::view::{View, ViewMut};
use check::{Checked, Site};
use code::{Code, Kind, Op, slot_class};
use headwater_core::diagnostic::Result;
use headwater_core::plan::{ALIGN, Plan};
use headwater_core::row::RowProgram;
use interpret::dispatch;
use interpret::loops::{self, LANES};
pub(crate) use interpret::scratch::{Scratch, ScratchSize};
use schedule::schedule;
use space::{Axis, count};

/// Bytes of vector registers that a tile should not exceed, so that they stay in the first-level cache.
const FIRST_LEVEL: usize = 24 << 10;
/// Bytes up to which vectors are kept for whole rows, in the second.
const SECOND_LEVEL: usize = 256 << 10;
/// Rows of at most so many columns are reduced in one piece, so that a sum does not depend on what else a
/// program computes. The target says so to passes.
pub(crate) const WHOLE: usize = loops::CHUNK;
/// Programs that move more bytes than this use non-temporal stores: nothing of the results would still be in
/// the caches when they are read.
const STREAM: usize = 32 << 20;
/// Rows that are summed in f32 before their sums are added up in f64.
const SUMMED: usize = 128;
/// Elements worth handing to a thread.
const GRAIN: usize = 1 << 15;
/// Programs that read along one axis and write along the other: bytes of a tile's columns as they are
/// written.
const RUN: usize = 256;
/// Columns of a block of such a program.
const TRANSPOSED: usize = 256;
/// Fewer blocks than this are too few for many threads: long rows are then cut as well.
const FEW: usize = 16;

/// A compiled program.
#[derive(Debug)]
pub(crate) struct Program {
    rows: Vec<Axis>,
    cols: Vec<Axis>,
    sites: Vec<Site>,
    operands: usize,
    tiling: Tiling,
    code: Code,
    /// Results are written by non-temporal stores.
    stream: bool,
    tier: Tier,
    /// The phases as machine code, where there is such for this tier and all that they do.
    #[cfg(target_arch = "x86_64")]
    machine: Option<x86::Machine>,
    /// Byte offset of each register in a thread's buffer, of each reduction's accumulators, and the buffer's
    /// size.
    homes: Vec<usize>,
    fold_homes: Vec<usize>,
    buffer: usize,
}

/// The cut of the space.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tiling {
    /// Rows are contiguous in a tile; otherwise columns do.
    across: bool,
    /// Largest tile.
    tile_rows: usize,
    tile_cols: usize,
    /// The part that a thread takes at a time.
    block_rows: usize,
    block_cols: usize,
    /// Rows are cut into several blocks, whose reductions are combined between phases.
    split: bool,
}

impl Program {
    /// Compiles a program for the operands of a step of a plan.
    ///
    /// # Errors
    /// `Plan` if the program is ill-formed, would leave a segment, or overlaps what it must not.
    pub(crate) fn new(
        plan: &Plan,
        program: &RowProgram,
        reads: &[&View],
        writes: &[ViewMut],
        tier: Tier,
    ) -> Result<Program> {
        let source = Checked::new(plan, program, reads, writes)?;
        let table = dispatch::table(tier);
        let stream = source.bytes() > STREAM;
        let kept = schedule(&source, &table, true, stream);
        let (code, tiling) = match Tiling::choose(&source, &kept) {
            Some(tiling) => (kept, tiling),
            None => {
                let code = schedule(&source, &table, false, stream);
                let tiling = Tiling::choose(&source, &code).expect("any tiling will do without keeping");
                (code, tiling)
            }
        };
        let mut program = Program {
            rows: source.rows,
            cols: source.cols,
            sites: source.sites,
            operands: source.operands,
            tiling,
            code,
            stream,
            tier,
            #[cfg(target_arch = "x86_64")]
            machine: None,
            homes: Vec::new(),
            fold_homes: Vec::new(),
            buffer: 0,
        };
        #[cfg(target_arch = "x86_64")]
        if tier >= Tier::Avx2 {
            program.assemble(reads.len());
        }
        program.lay_out();
        Ok(program)
    }

    /// True if its phases are machine code.
    fn assembled(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.machine.is_some();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Bytes between the rows of a register that machine code keeps: in whole groups of columns, of four
    /// bytes each.
    fn whole_groups(&self) -> usize {
        4 * count(&self.cols).next_multiple_of(LANES)
    }

    /// Gives every register its bytes in a thread's buffer.
    fn lay_out(&mut self) {
        let (rows, tile) = (self.tiling.tile_rows, self.tiling.tile_rows * self.tiling.tile_cols);
        let cols = count(&self.cols);
        let vectors = !self.assembled();
        let mut at = 0;
        let mut take = |bytes: usize| {
            at += bytes.next_multiple_of(ALIGN);
            at - bytes.next_multiple_of(ALIGN)
        };
        let slots: Vec<Vec<usize>> = [1, 4, 8]
            .iter()
            .zip(self.code.slots)
            // Machine code holds vectors in registers.
            .map(|(size, n)| (0..n).map(|_| take(if vectors { size * tile } else { 0 })).collect())
            .collect();
        self.homes = (self.code.regs.iter())
            .map(|r| match r.kind {
                Kind::Scalar => take(r.ty.size() * rows),
                Kind::Constant { wide, .. } => {
                    take(r.ty.size().max(8) * if wide && vectors { tile } else { rows })
                }
                Kind::Vector(slot) => slots[slot_class(r.ty)][slot],
                Kind::Kept if vectors => take(r.ty.size() * cols * rows),
                // Columns that begin in the middle of a group end in one.
                Kind::Kept => take(self.whole_groups() * rows + 4 * LANES),
            })
            .collect();
        self.fold_homes = self.code.folds.iter().map(|_| take(8 * rows)).collect();
        self.buffer = at;
    }
}

impl Tiling {
    /// Chooses the tiling; `None` if rows are too long for what the code keeps of them.
    fn choose(source: &Checked, code: &Code) -> Option<Tiling> {
        let (rows, cols) = (count(&source.rows).max(1), count(&source.cols).max(1));
        let across = source.across();
        // Elements of a tile; even parts of a long row are multiples of whole vectors.
        let tile = (FIRST_LEVEL / code.width().max(1)).clamp(256, 4096) / 64 * 64;
        let even = |n: usize, most: usize| n.div_ceil(n.div_ceil(most)).next_multiple_of(64).min(n);
        let (tile_rows, tile_cols) = if across {
            let kept = SECOND_LEVEL / (code.kept() * cols).max(1);
            let r = even(rows, kept.clamp(16, 512));
            (r, (tile / r).clamp(1, cols))
        } else if source.crosswise() {
            let width = source.sites.last().map_or(1, |s| s.dtype.size());
            let c = cols.min(RUN / width);
            (even(rows, tile / c), c)
        } else if cols <= tile || cols <= WHOLE && !code.folds.is_empty() {
            ((tile / cols).clamp(1, rows), cols)
        } else {
            // The cut of long rows decides the order of their sums, which only sizes may.
            (1, even(cols, if code.folds.is_empty() { tile } else { WHOLE }))
        };
        let (folds, sums) = (!code.folds.is_empty(), !code.sums.is_empty());
        let large = rows * cols >= 4 * GRAIN;
        let most = if large { rows.div_ceil(FEW) } else { rows };
        let mut block_rows = ((GRAIN / cols).min(most) / tile_rows * tile_rows).max(tile_rows);
        if sums {
            block_rows = rows.div_ceil(32).clamp(8, SUMMED);
        }
        let split = folds && !sums && rows.div_ceil(block_rows) < FEW && large;
        if split {
            block_rows = tile_rows;
        }
        // Row scalars are stored by one block alone: by the last part of a split program, or the block of the
        // whole row.
        let stores = code.scalar.iter().flatten().any(|op| matches!(op, Op::Store { .. }));
        let block_cols = if split || !(folds || stores) {
            (GRAIN / block_rows / tile_cols * tile_cols).max(tile_cols)
        } else {
            cols.next_multiple_of(tile_cols)
        };
        let (block_rows, block_cols) = match !across && source.crosswise() && !folds && !sums && !stores {
            // Blocks with long sides in both directions: pages are left when all of some lines of them was
            // used.
            true => {
                let each = (rows * cols / (64 * TRANSPOSED)).clamp(GRAIN / TRANSPOSED, 512);
                ((each / tile_rows).max(1) * tile_rows, (TRANSPOSED / tile_cols).max(1) * tile_cols)
            }
            false => (block_rows, block_cols),
        };
        let fits = code.kept() == 0 || (code.kept() * cols * tile_rows <= SECOND_LEVEL && !split);
        fits.then_some(Tiling { across, tile_rows, tile_cols, block_rows, block_cols, split })
    }
}
