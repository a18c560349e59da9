//! A tile's sums: panels of the operands in L1, steps of them in L0, and the cube unit.

use super::matmul_read::Sizes;
use super::matmul_shape::{Matmul, SIDE};
use super::matmul_store::Store;
use super::matmul_tiling::{PANEL, Tiling};
use crate::chip::Arch;
use crate::kernel::{
    Barrier, Buf, Builder, Elem, InitConst, LoadData2d, LoadData3d, Mmad, Over, Pipe, Scalar, Space,
    UnitFlag, VarId, View,
};

/// First flag from the cube unit to loads of L0.
pub(super) const FIRST: i64 = 3;

/// Buffers and counters that the statements of a kernel share.
pub(super) struct Cube {
    pub shape: Matmul,
    pub tiling: Tiling,
    /// Two panels of each operand in L1, contiguous.
    pub panels: [Buf; 2],
    /// Two steps of each operand in L0.
    pub steps: [Buf; 2],
    pub sums: Buf,
    /// Columns of a fractal: elements in 32 bytes.
    pub c0: u64,
    /// Number of panels, of steps and of tiles so far.
    pub rounds: [VarId; 3],
    /// True if a tile may have a single row.
    pub single: bool,
    pub arch: Arch,
    pub store: Store,
}

/// An operand's part of a step, on its way from L1 to L0 in one instruction.
pub(super) enum Part {
    /// `count` contiguous fractals, from `start` on.
    Run { src: View, start: Scalar, count: Scalar, transpose: bool },
    /// A tile of a matrix in columns of fractals, of `rows` rows each: `tile` rows and columns from `from`
    /// on.
    Tile { src: View, rows: u64, columns: u64, from: [Scalar; 2], tile: [Scalar; 2], transpose: bool },
}

impl Cube {
    /// True where a last block of 32 bytes overlaps the one before it (310P): a tile has at least one whole
    /// block.
    pub fn is_ragged(&self) -> bool {
        self.arch == Arch::P310 && !self.shape.n.is_multiple_of(SIDE)
    }

    /// Columns from one tile to the next.
    pub fn width(&self) -> u64 {
        if self.is_ragged() { self.tiling.columns / 2 } else { self.tiling.columns }
    }

    /// Tiles in a row of them.
    pub fn across(&self) -> u64 {
        let (n, width) = (self.shape.n, self.width());
        if self.is_ragged() { (n / width).max(1) } else { n.div_ceil(width) }
    }

    /// Rows of tiles of a matrix.
    pub fn down(&self) -> u64 {
        self.shape.m.div_ceil(self.tiling.rows)
    }

    /// Rows of tiles of all matrices.
    pub fn bands(&self) -> u64 {
        self.shape.batch[0] * self.shape.batch[1] * self.down()
    }

    /// Tiles of all matrices.
    pub fn tasks(&self) -> u64 {
        self.bands() * self.across()
    }

    /// The place of the tile's sums in L0C.
    pub fn sums_slot(&self) -> Scalar {
        if self.tiling.sums == 1 { 0.into() } else { self.rounds[2] % self.tiling.sums }
    }

    pub fn sums_of(&self, slot: &Scalar) -> View {
        self.sums.at(slot.clone() * (self.tiling.rows * self.tiling.columns))
    }

    /// The slot of the next panels, as soon as it is free.
    pub fn panel_slot(&self, k: &mut Builder) -> Scalar {
        let slot = k.let_("panel_slot", self.rounds[0] % 2);
        k.wait_flag(Pipe::Mte1, Pipe::Mte2, slot.clone());
        slot
    }

    pub fn panel_done(&self, k: &mut Builder, slot: Scalar) {
        k.set_flag(Pipe::Mte1, Pipe::Mte2, slot);
        k.set(self.rounds[0], self.rounds[0] + 1);
    }

    /// The left operand's part of a step: `take` columns of fractals along k from `at` on.
    pub fn left(&self, src: View, sizes: &Sizes, at: &Scalar, take: &Scalar) -> Part {
        let (own, along) = (sizes.fractals[0].clone() * SIDE, take.clone() * self.c0);
        let panel = PANEL * self.c0;
        match self.shape.a.transposed {
            true => Part::Tile {
                src,
                rows: panel,
                columns: self.tiling.rows,
                from: [at.clone(), 0.into()],
                tile: [along, own],
                transpose: true,
            },
            false => Part::Tile {
                src,
                rows: self.tiling.rows,
                columns: panel,
                from: [0.into(), at.clone()],
                tile: [own, along],
                transpose: false,
            },
        }
    }

    /// The right operand's.
    pub fn right(&self, src: View, sizes: &Sizes, at: &Scalar, take: &Scalar) -> Part {
        let columns = sizes.fractals[1].clone();
        match self.shape.b.transposed {
            true => Part::Run {
                src,
                start: at.clone() / self.c0 * columns.clone(),
                count: take.clone() * columns,
                transpose: false,
            },
            false => Part::Tile {
                src,
                rows: PANEL * self.c0,
                columns: self.tiling.columns,
                from: [at.clone(), 0.into()],
                tile: [take.clone() * self.c0, columns * SIDE],
                // Fractals on their way to L0B are transposed in any case.
                transpose: false,
            },
        }
    }

    /// A product of `count` terms onto the sums, which it begins where `init` is not 0.
    pub fn step(&self, k: &mut Builder, sizes: &Sizes, operands: [Part; 2], count: &Scalar, init: Scalar) {
        let slot = k.let_("step_slot", self.rounds[1] % 2);
        k.wait_flag(Pipe::M, Pipe::Mte1, slot.clone() + FIRST);
        let lens = self.tiling.sides().map(|x| x * self.tiling.step * self.c0);
        let places = [0, 1].map(|i| self.steps[i].at(slot.clone() * lens[i]));
        for (part, to) in operands.into_iter().zip(&places) {
            load(k, to, part);
        }
        k.flag(Pipe::Mte1, Pipe::M, slot.clone());
        let sums = k.let_("sums_slot", self.sums_slot());
        k.if_(init.clone(), |k| self.store.free(k, &sums));
        // One row is two, of which the second is not used.
        let rows = if self.single { sizes.rows.clone().max(2) } else { sizes.rows.clone() };
        let columns = self.store.columns(sizes.columns.clone());
        // Products of few fractals do not wait for each other's sums.
        let few = (rows.clone() / SIDE * (columns.clone() / SIDE)).lt(10);
        k.if_(few, |k| k.barrier(Barrier::M));
        let [a, b] = places;
        k.issue(Mmad {
            c: self.sums_of(&sums),
            a,
            b,
            bias: None,
            m: rows,
            n: columns,
            k: count.clone(),
            init,
            unit_flag: UnitFlag::Off,
            hf32: false,
        });
        k.set_flag(Pipe::M, Pipe::Mte1, slot + FIRST);
        k.set(self.rounds[1], self.rounds[1] + 1);
    }
}

/// A part of a step from L1 to L0.
pub(super) fn load(k: &mut Builder, to: &View, part: Part) {
    let dst = to.clone();
    match part {
        Part::Run { src, start, count, transpose } => k.issue(LoadData2d {
            dst,
            src,
            start,
            repeat: count,
            src_stride: 1.into(),
            dst_gap: 0.into(),
            transpose,
        }),
        Part::Tile { src, rows, columns, from: [down, right], tile: [m, along], transpose } => {
            // An image of one row, and a filter of one point.
            k.issue(LoadData3d {
                dst,
                src,
                size: [1, rows as u32],
                channels: columns.into(),
                k: along,
                m,
                k_start: right,
                m_start: down,
                stride: [1, 1],
                filter: [1, 1],
                dilation: [1, 1],
                pad: [0; 4],
                pad_value: 0.into(),
                transpose,
                pro: k.arch() == Arch::P310,
            });
        }
    }
}

/// A column of ones as the left operand, in L1.
pub(super) fn ones(k: &mut Builder, elem: Elem, rows: u64) -> Buf {
    let len = rows * elem.per_block();
    let ones = k.buffer("ones", Space::L1, elem, len, None);
    match k.arch() {
        Arch::A2 => {
            let units = (len / elem.per_block()).into();
            k.issue(InitConst {
                dst: ones.at(0),
                repeat: 1.into(),
                len: units,
                gap: 0.into(),
                value: 1.0.into(),
            });
            k.flag(Pipe::Mte2, Pipe::Mte1, 0);
        }
        Arch::P310 => {
            let source = k.ub("ones_source", elem, len);
            k.duplicate(source.at(0), 1.0, Over::count(len));
            k.flag(Pipe::V, Pipe::Mte3, 0);
            k.copy(ones.at(0), source.at(0), len);
            k.flag(Pipe::Mte3, Pipe::Mte1, 0);
        }
    }
    ones
}
