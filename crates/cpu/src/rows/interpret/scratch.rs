//! Memory of a run besides its operands: a buffer for each thread, and partial results.

use crate::memory::CpuMemory;
use crate::pool::Shared;
use crate::rows::Program;
use crate::rows::space::Runs;
use headwater_core::diagnostic::Result;

/// Columns whose partial sums are added up at a time.
pub(super) const SUMS: usize = 512;

/// The workspace of programs besides their operands: a buffer for each thread, and partial results. Made when
/// a plan is loaded, large enough for each of its programs.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(super) threads: Vec<Worker>,
    pub(super) partial: CpuMemory,
}

/// Sizes of a [`Scratch`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScratchSize {
    pub(super) buffer: usize,
    pub(super) context: usize,
    pub(super) registers: usize,
    pub(super) operands: usize,
    pub(super) partial: usize,
}

/// The workspace of one thread.
#[derive(Debug)]
pub(in crate::rows) struct Worker {
    pub(in crate::rows) buffer: CpuMemory,
    /// The context that machine code works on besides operands.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "there is no machine code"))]
    pub(in crate::rows) context: CpuMemory,
    /// The place of each register at the moment: in the buffer or in an operand.
    pub(in crate::rows) at: Vec<Shared<u8>>,
    /// The place of the part of each operand whose layout in memory is that of a tile in registers; null for
    /// others.
    pub(in crate::rows) parts: Vec<Shared<u8>>,
    pub(in crate::rows) rows: Runs,
    pub(in crate::rows) cols: Runs,
}

impl ScratchSize {
    /// Enough for both.
    pub fn max(self, other: ScratchSize) -> ScratchSize {
        ScratchSize {
            buffer: self.buffer.max(other.buffer),
            context: self.context.max(other.context),
            registers: self.registers.max(other.registers),
            operands: self.operands.max(other.operands),
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
            Ok(Worker {
                buffer: CpuMemory::new(size.buffer)?,
                context: CpuMemory::new(size.context)?,
                at: Vec::with_capacity(size.registers),
                // Machine code has one for each register kept, too.
                parts: Vec::with_capacity(size.operands + size.registers),
                rows: Runs::default(),
                cols: Runs::default(),
            })
        };
        let threads = (0..threads).map(worker).collect::<Result<Vec<Worker>>>()?;
        Ok(Scratch { threads, partial: CpuMemory::new(size.partial)? })
    }

    /// Reserves capacity for a program's index arithmetic, so that runs do not allocate.
    pub fn reserve(&mut self, p: &Program) {
        // Sums over rows are stored so many at a time.
        let stored = if p.code.sums.is_empty() { 0 } else { SUMS };
        let cols = p.tiling.tile_cols.max(stored);
        for w in &mut self.threads {
            w.rows.reserve(&p.rows, p.operands, p.tiling.tile_rows);
            w.cols.reserve(&p.cols, p.operands, cols);
        }
    }
}

/// Partial results in shared memory: of reductions in cells of 8 bytes, and column sums.
#[derive(Clone, Copy)]
pub(super) struct Cells {
    pub(super) base: Shared<u8>,
    pub(super) rows: usize,
    pub(super) col_blocks: usize,
    pub(super) cols: usize,
    pub(super) folds: usize,
    /// Bytes of a column sum.
    pub(super) width: usize,
}

impl Cells {
    /// Accumulator of a reduction for a row and a block of columns; block 0 later holds the result.
    pub(super) fn fold(&self, fold: usize, block: usize, row: usize) -> *mut [u8; 8] {
        let at = (fold * self.col_blocks + block) * self.rows + row;
        self.base.get().wrapping_add(8 * at).cast()
    }

    /// Column sums of a block of rows.
    pub(super) fn sum(&self, sum: usize, row_blocks: usize, block: usize) -> *mut u8 {
        let folds = 8 * self.folds * self.col_blocks * self.rows;
        self.base.get().wrapping_add(folds + self.width * (sum * row_blocks + block) * self.cols)
    }
}
