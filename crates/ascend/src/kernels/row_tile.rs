//! Tiles of whole rows in UB, computed in f32, and sums over each of their rows, for kernels of norms.
//!
//! A sum over a row is a fixed tree whatever tile the row is in.

use crate::chip::Arch;
use crate::kernel::{Barrier, Buf, Builder, Elem, Over, Reduction, Round, Scalar, Space, View};

/// Longest row, in elements: its sum is a tree over blocks, repeats and a block.
pub(super) const LONGEST: u64 = 4096;
/// Most rows of a tile: their sums are one block.
const TALLEST: u64 = 8;
/// Most elements of a tile: 255 repeats.
const LARGEST: u64 = 255 * 64;
/// Bytes of UB beside tiles, rows and sums over blocks: single sums, and what alignment leaves free.
const BESIDE: u64 = 3 << 10;
/// Least tiles of a kernel, as long as rows are enough: more than any chip has cores.
const TILES: u64 = 64;

/// The shape of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowTile {
    /// From one row to the next, in elements: whole repeats. A row's end is padded with zeros.
    pub pitch: u64,
    /// Rows, at most.
    pub rows: u64,
    /// Repeats that the sums of a row's blocks make.
    parts: u64,
}

impl RowTile {
    /// Tiles of as many of `rows` rows of `dim` elements as fit in UB in addition to the sums, where each
    /// element of a tile takes `bytes` bytes, and each of a row `more` besides.
    pub fn new(arch: Arch, [rows, dim]: [u64; 2], bytes: u64, more: u64) -> RowTile {
        let parts = dim.div_ceil(512).next_power_of_two();
        let pitch = dim.next_multiple_of(Elem::F32.per_repeat() * parts);
        let room = arch.capacity(Space::Ub) - BESIDE;
        // Sums over blocks of eight, and over blocks of those.
        let sums = |len: u64| len / 2 + len / 16;
        let fits = |n: &u64| {
            let len = n * pitch;
            len <= LARGEST && len * bytes + sums(len) + pitch * more <= room && *n <= rows / TILES
        };
        let rows = [TALLEST, TALLEST / 2, TALLEST / 4].into_iter().find(fits).unwrap_or(1);
        RowTile { pitch, rows, parts }
    }

    /// Elements.
    pub const fn len(&self) -> u64 {
        self.rows * self.pitch
    }

    /// Rows of a tile, of which `left` are left.
    pub fn members(&self, k: &mut Builder, left: Scalar) -> Scalar {
        if self.rows == 1 { 1.into() } else { k.let_("members", left.min(self.rows)) }
    }

    /// All elements of so many rows.
    pub fn over(&self, rows: &Scalar) -> Over {
        Over::count(rows.clone() * self.pitch)
    }

    /// Row by row: its number, and its place in tiles.
    pub fn each(&self, k: &mut Builder, rows: &Scalar, mut write: impl FnMut(&mut Builder, Scalar, Scalar)) {
        match self.rows {
            1 => write(k, 0.into(), 0.into()),
            _ => k.for_each("row", 0, rows, 1, |k, row| write(k, row.clone(), row * self.pitch)),
        }
    }
}

/// Accumulators for sums over the rows of a tile.
pub(super) struct RowSums {
    tile: RowTile,
    blocks: Buf,
    parts: Buf,
    /// A sum for each row.
    pub sums: Buf,
}

impl RowSums {
    /// Declares the accumulators, and clears some of them: a barrier has to come before sums.
    pub fn new(k: &mut Builder, tile: RowTile) -> RowSums {
        let blocks = k.ub("block_sums", Elem::F32, (tile.len() / 8).next_multiple_of(64));
        let parts = k.ub("part_sums", Elem::F32, (tile.len() / 64).next_multiple_of(TALLEST * 8));
        let sums = k.ub("sums", Elem::F32, TALLEST);
        // Zeros stay between a row's parts where these are spread over a block.
        k.duplicate(parts.at(0), 0.0, Over::count(parts.len));
        RowSums { tile, blocks, parts, sums }
    }

    /// Sums over `rows` rows of `of`, trees of neighbours: over each block, again over blocks of those where
    /// a row has whole repeats of them, and over what is left, in parts where that is more than a repeat.
    /// They have 12 levels at most. A barrier has come before.
    pub fn add(&self, k: &mut Builder, of: View, rows: &Scalar) {
        let RowTile { pitch, parts, .. } = self.tile;
        let blocks = |k: &mut Builder, to: Buf, from: View, n: u64| {
            k.reduce(Reduction::BlockSum, to.at(0), from, 64, rows.clone() * (n / 64), 1);
            k.barrier(Barrier::V);
        };
        let (mut from, mut n) = (self.blocks, pitch / 8);
        blocks(k, from, of, pitch);
        if n > 64 && n % 64 == 0 {
            blocks(k, self.parts, from.at(0), n);
            (from, n) = (self.parts, n / 8);
        }
        if n <= 64 {
            let from = from.at(0).strided(1, (n / 8) as u32);
            return k.reduce(Reduction::WholeSum, self.sums.at(0), from, n, rows, 1);
        }
        let width = n / parts;
        let from = from.at(0).strided(1, (width / 8) as u32);
        let apart = (8 / parts) as u32;
        k.reduce(Reduction::WholeSum, self.parts.at(0), from, width, rows.clone() * parts, apart);
        k.barrier(Barrier::V);
        k.reduce(Reduction::BlockSum, self.sums.at(0), self.parts.at(0), rows.clone() * 8, 1, 1);
    }
}

/// Converts f16 to f32.
pub(super) fn widen(k: &mut Builder, to: View, from: View, over: Over) {
    k.cast(to, from.strided(1, 4), Round::None, over);
}

/// Converts f32 to f16, to nearest, ties to even.
pub(super) fn round(k: &mut Builder, to: View, from: View, over: Over) {
    // 310P rounds so where no rounding is named.
    let rounding = if k.arch() == Arch::A2 { Round::Rint } else { Round::None };
    k.cast(to.strided(1, 4), from, rounding, over);
}
