//! The row-program evaluator: the one mechanism for pointwise chains, norms, softmax, losses, reductions and updates.
//!
//! A program is checked against its operands (`source`), cut into phases and loops (`compile`), divided into tiles that fit
//! the first-level cache and blocks that threads take (here), and run (`run`). The loops themselves (`loops`, `real`,
//! `math`) are plain Rust, compiled for every tier (`ops`).
//!
//! Numbers: floats are computed in f32, or in f64 if an f64 takes part, and rounded to memory once, to nearest even;
//! integers in i64, exactly. Sums of f32 over a row are taken in 32 lanes of at most 128 terms each, whose total is carried
//! on in f64; sums over rows, and over columns that do not lie next to each other, are in f64 throughout. So a sum of `n`
//! f32 is off by at most `min(n, 134) · 2⁻²⁴ · Σ|x|`, plus one rounding of the result, plus f64 noise. All divisions depend
//! on sizes and layouts alone: results have the same bits on any number of threads and in every tier.

mod compile;
mod loops;
pub(crate) mod math;
mod ops;
mod real;
mod run;
mod source;
mod space;
#[cfg(test)]
mod tests;

use crate::tier::Tier;
use crate::view::{View, ViewMut};
use compile::{Code, Kind, Op, compile};
use headwater_core::diagnostic::Result;
use headwater_core::plan::{ALIGN, Plan};
use headwater_core::row::RowProgram;
pub(crate) use run::{Scratch, ScratchSize};
use source::{Site, Source};
use space::{Axis, count};

/// Bytes of vector registers that a tile should not exceed, so that they stay in the first-level cache, and those up to
/// which whole rows are still kept, in the second.
const FIRST_LEVEL: usize = 32 << 10;
const SECOND_LEVEL: usize = 256 << 10;
/// Elements worth handing to a thread.
const GRAIN: usize = 1 << 15;
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
    /// Byte offset of each register in a thread's buffer, of each reduction's accumulators, and the buffer's size.
    homes: Vec<usize>,
    fold_homes: Vec<usize>,
    buffer: usize,
}

/// How the space is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tiling {
    /// Rows lie next to each other in a tile; otherwise columns do.
    across: bool,
    /// Largest tile.
    tile_rows: usize,
    tile_cols: usize,
    /// What a thread takes at a time.
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
        let source = Source::new(plan, program, reads, writes)?;
        let table = ops::table(tier);
        let kept = compile(&source, &table, true);
        let (code, tiling) = match Tiling::choose(&source, &kept, true) {
            Some(tiling) => (kept, tiling),
            None => {
                let code = compile(&source, &table, false);
                let tiling =
                    Tiling::choose(&source, &code, false).expect("any tiling will do without keeping");
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
            homes: Vec::new(),
            fold_homes: Vec::new(),
            buffer: 0,
        };
        program.lay_out();
        Ok(program)
    }

    /// Gives every register its bytes in a thread's buffer.
    fn lay_out(&mut self) {
        let (rows, tile) = (self.tiling.tile_rows, self.tiling.tile_rows * self.tiling.tile_cols);
        let mut at = 0;
        let mut take = |bytes: usize| {
            at += bytes.next_multiple_of(ALIGN);
            at - bytes.next_multiple_of(ALIGN)
        };
        let slots: Vec<Vec<usize>> = [1, 4, 8]
            .iter()
            .zip(self.code.slots)
            .map(|(size, n)| (0..n).map(|_| take(size * tile)).collect())
            .collect();
        self.homes = (self.code.regs.iter())
            .map(|r| match r.kind {
                Kind::Scalar => take(r.ty.size() * rows),
                Kind::Constant(_) => take(r.ty.size() * tile),
                Kind::Vector(slot) => slots[compile::slot_class(r.ty)][slot],
            })
            .collect();
        self.fold_homes = self.code.folds.iter().map(|_| take(8 * rows)).collect();
        self.buffer = at;
    }
}

impl Tiling {
    /// Chooses the tiling; `None` if `keep` asks for whole rows in a tile and they are too long.
    fn choose(source: &Source, code: &Code, keep: bool) -> Option<Tiling> {
        let (rows, cols) = (count(&source.rows).max(1), count(&source.cols).max(1));
        let across = source.across();
        let phases = code.vector.len();
        // Elements of a tile; even parts of a long row are multiples of whole vectors.
        let tile = (FIRST_LEVEL / code.width().max(1)).clamp(256, 4096) / 64 * 64;
        let even = |n: usize, most: usize| n.div_ceil(n.div_ceil(most)).next_multiple_of(64).min(n);
        let whole = phases > 1 && code.width() * cols * if across { 16 } else { 1 } <= SECOND_LEVEL;
        let (tile_rows, tile_cols) = if across {
            let r = even(rows, if whole { (tile / cols).max(16) } else { 512 }.min(512));
            (r, if whole { cols } else { (tile / r).clamp(1, cols) })
        } else if source.crosswise() {
            let c = cols.min(64);
            (even(rows, tile / c), c)
        } else if cols <= tile || whole {
            ((tile / cols).clamp(1, rows), cols)
        } else {
            (1, even(cols, tile))
        };
        let (folds, sums) = (!code.folds.is_empty(), !code.sums.is_empty());
        let large = rows * cols >= 4 * GRAIN;
        let most = if large { rows.div_ceil(FEW) } else { rows };
        let mut block_rows = ((GRAIN / cols).min(most) / tile_rows * tile_rows).max(tile_rows);
        if sums {
            block_rows = rows.div_ceil(32).max(8);
        }
        let split = folds && !sums && rows.div_ceil(block_rows) < FEW && large;
        if split {
            block_rows = tile_rows;
        }
        // Row scalars are stored by one block alone: by the last part of a split program, or the block of the whole row.
        let stores = code.scalar.iter().flatten().any(|op| matches!(op, Op::Store { .. }));
        let block_cols = if split || !(folds || stores) {
            (GRAIN / block_rows / tile_cols * tile_cols).max(tile_cols)
        } else {
            cols.next_multiple_of(tile_cols)
        };
        let fits = !keep || phases == 1 || (tile_cols == cols && !split);
        fits.then_some(Tiling { across, tile_rows, tile_cols, block_rows, block_cols, split })
    }
}
