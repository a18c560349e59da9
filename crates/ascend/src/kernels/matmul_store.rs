//! Results of products out of L0C into memory, as each chip has it.

use super::matmul_shape::{Matmul, SIDE};
use crate::chip::Arch;
use crate::kernel::{
    Barrier, Buf, Builder, CacheFlush, CopyL0c, DataCopy, Elem, Fixpipe, Layout, Pipe, Quant, Scalar,
    UnitFlag, View,
};

/// The way of results to memory.
pub(super) struct Store {
    arch: Arch,
    /// Tiles that fit in L0C.
    slots: u64,
    /// On 310P: a tile of results in UB, columns of fractals as in L0C.
    out: Option<Buf>,
    /// Columns of the result, and elements from one row to the next.
    n: u64,
    row: u64,
}

/// A tile of results.
pub(super) struct Tile {
    /// Its sums in L0C, and their place's number.
    pub from: View,
    pub slot: Scalar,
    /// Its first element in memory.
    pub at: View,
    pub rows: Scalar,
    pub columns: Scalar,
    /// Rows that a column of fractals has in L0C.
    pub pitch: Scalar,
    /// Columns of fractals.
    pub fractals: Scalar,
}

/// Declares what the way takes, for tiles of `size` in so many places of L0C.
pub(super) fn store(k: &mut Builder, shape: &Matmul, slots: u64, size: [u64; 2]) -> Store {
    let arch = k.arch();
    let out = (arch == Arch::P310).then(|| k.ub("results", shape.out, size[0] * size[1]));
    Store { arch, slots, out, n: shape.n, row: shape.c.row }
}

impl Store {
    /// True where one core writes everything: rows are shorter than 32 bytes of f16, and written by the
    /// scalar unit, whose lines cores must not share.
    pub fn alone(&self) -> bool {
        self.arch == Arch::P310 && self.n < SIDE
    }

    /// Columns that products have. On 310P the fractal at the end is whole.
    pub fn columns(&self, columns: Scalar) -> Scalar {
        match self.arch == Arch::P310 && !self.alone() {
            true => columns.div_ceil(SIDE as i64) * SIDE,
            false => columns,
        }
    }

    fn pipe(&self) -> Pipe {
        if self.arch == Arch::A2 { Pipe::Fix } else { Pipe::V }
    }

    /// Pipe that takes results out of UB (310P).
    fn last(&self) -> Pipe {
        if self.alone() { Pipe::S } else { Pipe::Mte3 }
    }

    /// Flags before the first tile.
    pub fn open(&self, k: &mut Builder) {
        (0..self.slots).for_each(|slot| k.set_flag(self.pipe(), Pipe::M, slot));
        if self.out.is_some() {
            k.set_flag(self.last(), Pipe::V, 0);
        }
    }

    /// Waits for them after the last.
    pub fn close(&self, k: &mut Builder) {
        (0..self.slots).for_each(|slot| k.wait_flag(self.pipe(), Pipe::M, slot));
        if self.out.is_some() {
            k.wait_flag(self.last(), Pipe::V, 0);
        }
    }

    /// Lets the cube unit wait until the sums of a place may be overwritten.
    pub fn free(&self, k: &mut Builder, slot: &Scalar) {
        k.wait_flag(self.pipe(), Pipe::M, slot);
    }

    /// Writes a tile when its sums are done.
    pub fn write(&self, k: &mut Builder, tile: &Tile) {
        k.flag(Pipe::M, self.pipe(), &tile.slot);
        match self.out {
            None => {
                let quant = match tile.at.elem {
                    Elem::F16 => Quant::F16,
                    Elem::BF16 => Quant::BF16,
                    _ => Quant::Off,
                };
                k.issue(Fixpipe {
                    dst: tile.at.clone(),
                    src: tile.from.clone(),
                    n: tile.columns.clone(),
                    m: tile.rows.clone(),
                    src_stride: tile.pitch.clone(),
                    dst_stride: self.row.into(),
                    layout: Layout::Nd,
                    quant,
                    relu: false,
                    unit_flag: UnitFlag::Off,
                    atomic: None,
                });
            }
            Some(out) => {
                k.wait_flag(self.last(), Pipe::V, 0);
                k.issue(CopyL0c {
                    dst: out.at(0),
                    src: tile.from.clone(),
                    blocks: 1.into(),
                    len: tile.pitch.clone() / SIDE * tile.fractals.clone(),
                    src_gap: 0.into(),
                    dst_gap: 0.into(),
                    relu: false,
                });
                k.flag(Pipe::V, self.last(), 0);
                match self.alone() {
                    true => self.write_singly(k, out, tile),
                    false => self.write_rows(k, out, tile),
                }
                k.set_flag(self.last(), Pipe::V, 0);
            }
        }
        k.set_flag(self.pipe(), Pipe::M, &tile.slot);
    }

    /// Rows of whole blocks. A last block that is partial has been computed as the row's last 16 elements.
    fn write_rows(&self, k: &mut Builder, out: Buf, tile: &Tile) {
        let blocks = SIDE / out.elem.per_block();
        let copy = |k: &mut Builder, from: Scalar, column: Scalar, runs: Scalar| {
            k.for_each("r", 0, &tile.rows, 1, |k, r| {
                k.issue(DataCopy {
                    dst: tile.at.add(r.clone() * self.row + column),
                    src: out.at(from + r * SIDE),
                    blocks: runs,
                    len: blocks.into(),
                    src_gap: (tile.pitch.clone() - 1) * blocks,
                    dst_gap: 0.into(),
                    atomic: None,
                });
            });
        };
        let whole = k.let_("whole", tile.columns.clone() / SIDE);
        copy(k, 0.into(), 0.into(), whole.clone());
        if !self.n.is_multiple_of(SIDE) {
            k.if_((tile.columns.clone() % SIDE).ne(0), |k| {
                k.barrier(Barrier::Mte3);
                let from = whole * tile.pitch.clone() * SIDE;
                copy(k, from, tile.columns.clone() - SIDE, 1.into());
            });
        }
    }

    /// Elements by the scalar unit, each of them out of its cache at once.
    fn write_singly(&self, k: &mut Builder, out: Buf, tile: &Tile) {
        k.for_each("r", 0, &tile.rows, 1, |k, r| {
            k.for_each("j", 0, &tile.columns, 1, |k, j| {
                let to = tile.at.add(r.clone() * self.row + j.clone());
                let value = k.load("element", out.at(r * SIDE + j));
                k.store(to.clone(), value);
                k.issue(CacheFlush { line: to });
            });
        });
    }
}
