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
    /// True if tiles follow each other down the result, otherwise across: cores that run at the same time
    /// share what comes from HBM.
    pub downward: bool,
}

impl Tiling {
    /// The tiling of shapes that were checked; `None` if they have none in common.
    pub fn new(arch: Arch, members: &[Member], grouped: bool) -> Option<Tiling> {
        let shapes = || members.iter().map(|m| &m.shape);
        let of = |rows: u64, columns: u64, resident: bool| {
            let widest = rows.max(columns);
            let step = (1..=PANEL).rev().find(|s| s.is_power_of_two() && s * widest <= 1024);
            let sums = if arch == Arch::A2 && 2 * rows * columns <= 128 * 256 { 2 } else { 1 };
            Tiling { rows, columns, step: step.unwrap_or(1), sums, resident, downward: false }
        };
        if arch == Arch::P310 {
            return Some(of(128, 256, false));
        }
        let wide = |shape: &Matmul| shape.n > 128;
        let short = |shape: &Matmul| shape.k <= PANEL * shape.elem.per_block() && wide(shape) && !grouped;
        match [shapes().all(short), shapes().any(short), shapes().all(wide), shapes().any(wide)] {
            [true, ..] => return Some(of(128, 128, true)),
            [false, true, ..] => return None,
            [_, _, true, _] if grouped => return Some(of(128, 256, false)),
            [_, _, true, _] => {
                let ([rows, columns], downward) = shortest(members);
                return Some(Tiling { downward, ..of(rows, columns, false) });
            }
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

/// The tile that takes least time for wide products on A2, and whether tiles follow each other downward.
fn shortest(members: &[Member]) -> ([u64; 2], bool) {
    let sides = || (1..=16).map(|i| i * SIDE);
    let tiles = sides().flat_map(|rows| sides().map(move |columns| [rows, columns]));
    // Two panels of each operand, and a column of ones, fit in L1; sums in L0C.
    let fits = |&[rows, columns]: &[u64; 2]| rows + columns <= 480 && rows * columns <= 128 * 256;
    // Ties go to the order in which neighbouring tiles share panels of the larger operand.
    let deep = members.iter().map(|m| m.shape.n).sum::<u64>() > members.iter().map(|m| m.shape.m).sum();
    let all = tiles.filter(fits).flat_map(|tile| [(tile, deep), (tile, !deep)]);
    let least = all.min_by(|a, b| cycles(members, a.0, a.1).total_cmp(&cycles(members, b.0, b.1)));
    least.unwrap_or(([128, 256], false))
}

/// Cycles of products by such tiles, at the rates of the timing model: panels of the operands come to L1
/// while the ones before are multiplied, two in flight. What L2 does not hold comes from HBM: each operand
/// once, or once for each row or column of tiles where it is too large for L2.
fn cycles(members: &[Member], [rows, columns]: [u64; 2], downward: bool) -> f64 {
    let [r, c, cores, depth] = [rows, columns, CORES, PANEL].map(|x| x as f64);
    let (mut tiles, mut panels, mut cold, mut wide) = (0.0, 0.0, 0.0, 0.0f64);
    for Member { shape: Matmul { elem, m, n, k, batch, .. }, .. } in members {
        let [m, n, k, size] = [*m, *n, *k, elem.size()].map(|x| x as f64);
        let number = batch[0] as f64 * batch[1] as f64;
        let (down, across) = ((m / r).ceil(), (n / c).ceil());
        let own = number * down * across;
        let again = |bytes: f64, times: f64| if bytes > LARGE && own > cores { bytes * times } else { bytes };
        let [a, b] = [number * m * k * size, number * k * n * size];
        cold += if downward { again(a, across) + b } else { a + again(b, down) };
        (tiles, panels) = (tiles + own, panels + own * (k * size / 32.0 / depth).ceil());
        wide = wide.max(size);
    }
    // Tiles go round the cores: the last round may leave some idle.
    let (rounds, active) = ((tiles / cores).ceil(), cores.min(tiles));
    let panels = panels / tiles * rounds;
    // A panel: the cube's cycles, 16 rows and columns in one, of f32 in two, or the copies' to L0.
    let cube = depth * (r * c / 256.0 * if wide > 2.0 { 2.0 } else { 1.0 } + 2.0);
    let computes = cube.max(depth * (0.46 * c + 0.125 * r));
    let (rate, latency) = (f64::min(160.0, 2700.0 / active), 752.0);
    let reads = (r + c) * 32.0 * depth / rate + cold / active / panels * (1.0 / 32.0 - 1.0 / rate);
    let panel = computes.max(reads).max((computes + reads + latency) / 2.0);
    let store = r * c * 2.0 / 58.5;
    let waits = if 2 * rows * columns <= 128 * 256 { 1.0 } else { rounds };
    panels * panel + store * waits + reads + latency
}

/// Bytes of an operand that L2 does not hold beside others.
const LARGE: f64 = (96 << 20) as f64;

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
