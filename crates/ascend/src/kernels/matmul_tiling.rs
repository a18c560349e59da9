//! Tiles of products: the sizes that a core works on.

use super::matmul_shape::{Matmul, Matrix, SIDE, check};
use crate::chip::Arch;
use crate::kernel::finding::Result;

/// Columns of fractals along the sums that a panel in L1 has.
pub(super) const PANEL: u64 = 16;
/// Cores of the largest chip with cube cores of their own.
const CORES: u64 = 24;

/// Sizes of what a core works on.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    /// Rows of a tile.
    pub rows: u64,
    /// Columns of a tile.
    pub columns: u64,
    /// Columns of fractals along the sums that a step in L0 has.
    pub step: u64,
    /// Tiles that fit in L0C: one is summed while the other leaves.
    pub sums: u64,
    /// True where the left operand's rows of a tile are one panel, which stays for the tiles beside it.
    pub resident: bool,
}

impl Tiling {
    /// The tiling of shapes that were checked; `None` if they have none in common.
    pub fn new(arch: Arch, members: &[Member], grouped: bool) -> Option<Tiling> {
        let shapes = || members.iter().map(|m| &m.shape);
        let of = |rows: u64, columns: u64, resident: bool| {
            let widest = rows.max(columns);
            let step = (1..=PANEL).rev().find(|s| s.is_power_of_two() && s * widest <= 1024);
            let sums = if arch == Arch::A2 && 2 * rows * columns <= 128 * 256 { 2 } else { 1 };
            Tiling { rows, columns, step: step.unwrap_or(1), sums, resident }
        };
        if arch == Arch::P310 {
            return Some(of(128, 256, false));
        }
        let wide = |shape: &Matmul| shape.n > 128;
        let short = |shape: &Matmul| shape.k <= PANEL * shape.elem.per_block() && wide(shape) && !grouped;
        match [shapes().all(short), shapes().any(short), shapes().all(wide), shapes().any(wide)] {
            [true, ..] => return Some(of(128, 128, true)),
            [false, true, ..] => return None,
            [_, _, true, _] => return Some(of(128, 256, false)),
            [_, _, false, true] => return None,
            _ => {}
        }
        if grouped {
            return Some(of(128, 128, false));
        }
        // All columns; rows such that the cores end at the same time. Cycles of 64 terms: the cube's, or the
        // copies' to L0.
        let time = |rows: u64| {
            let tiles = |s: &Matmul| s.batch[0].saturating_mul(s.batch[1]).saturating_mul(s.m.div_ceil(rows));
            let tiles = shapes().map(tiles).fold(0, u64::saturating_add);
            tiles.div_ceil(CORES).saturating_mul((2 * rows + 9).max(236 + rows / 2))
        };
        Some(of((1..=16).map(|i| i * SIDE).min_by_key(|&rows| time(rows)).unwrap_or(128), 128, false))
    }

    pub const fn sides(&self) -> [u64; 2] {
        [self.rows, self.columns]
    }
}

/// A product of a kernel.
pub(super) struct Member {
    pub shape: Matmul,
    /// Elements that each of a, b and c reaches.
    pub lens: [u64; 3],
    /// Names of the left and the right operand.
    pub names: [&'static str; 2],
}

impl Member {
    /// A product that is checked.
    pub fn new(arch: Arch, shape: &Matmul, name: &str) -> Result<Member> {
        let lens = check(arch, shape, name, SIDE)?;
        if !shape.c.transposed {
            return Ok(Member { shape: *shape, lens, names: ["a", "b"] });
        }
        // The transpose of the result is a product too: of the transposes, in the other order.
        let turn = |x: Matrix| Matrix { transposed: !x.transposed, ..x };
        let turned =
            Matmul { m: shape.n, n: shape.m, a: turn(shape.b), b: turn(shape.a), c: turn(shape.c), ..*shape };
        Ok(Member { shape: turned, lens: [lens[1], lens[0], lens[2]], names: ["b", "a"] })
    }
}
