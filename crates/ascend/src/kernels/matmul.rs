//! Product of matrices on the cube unit: ATen's `mm`, `bmm`, `addmm`, `baddbmm`, `linear`.
//!
//! A task is a tile of one result. Its sums run over all of k on one core, in ascending order, so the bits
//! are the same for any number of blocks. Panels of the operands go to L1 as columns of fractals, steps of
//! them to L0 by one instruction for each operand; two of each are in flight. Where sums are short, a core
//! has tiles that follow each other: the left operand's panel stays for those of the same rows, and a tile
//! leaves L0C while the next one is summed.
//!
//! A bias is a first step of length one: a column of ones times the bias, so that sums begin with it in f32.

use super::matmul_read::{Sizes, read, read_across, read_down};
use super::matmul_shape::{Grouped, Matmul, Matrix, SIDE, check, check_groups};
use super::matmul_store::{Tile, store};
use crate::chip::Arch;
use crate::kernel::finding::Result;
use crate::kernel::{
    Barrier, Buf, Builder, Elem, Gm, InitConst, LoadData2d, LoadData3d, Mmad, Over, Pipe, Program, Scalar,
    ScalarType, Space, Unit, UnitFlag, VarId, View,
};

/// Columns of fractals along the sums that a panel in L1 has.
const PANEL: u64 = 16;
/// Cores of the largest chip with cube cores of their own.
const CORES: u64 = 24;
/// First flag from the cube unit to loads of L0.
const FIRST: i64 = 3;

/// Sizes of what a core works on.
#[derive(Clone, Copy)]
struct Tiling {
    /// Rows of a tile.
    rows: u64,
    /// Columns of a tile.
    columns: u64,
    /// Columns of fractals along the sums that a step in L0 has.
    step: u64,
    /// Tiles that fit in L0C: one is summed while the other leaves.
    sums: u64,
    /// True where the left operand's rows of a tile are one panel, which stays for the tiles beside it.
    resident: bool,
}

impl Tiling {
    /// The tiling of a shape that was checked.
    fn new(arch: Arch, shape: &Matmul, grouped: bool) -> Tiling {
        let Matmul { m, n, k, batch, .. } = *shape;
        let of = |rows: u64, columns: u64, resident: bool| {
            let widest = rows.max(columns);
            let step = (1..=PANEL).rev().find(|s| s.is_power_of_two() && s * widest <= 1024);
            let sums = if arch == Arch::A2 && 2 * rows * columns <= 128 * 256 { 2 } else { 1 };
            Tiling { rows, columns, step: step.unwrap_or(1), sums, resident }
        };
        if arch == Arch::P310 {
            return of(128, 256, false);
        }
        if k <= PANEL * shape.elem.per_block() && n > 128 && !grouped {
            return of(128, 128, true);
        }
        if n > 128 {
            return of(128, 256, false);
        }
        if grouped {
            return of(128, 128, false);
        }
        // All columns; rows such that the cores end at the same time. Cycles of 64 terms: the cube's, or the
        // copies' to L0.
        let time = |rows: u64| {
            let tiles = batch[0].saturating_mul(batch[1]).saturating_mul(m.div_ceil(rows));
            tiles.div_ceil(CORES).saturating_mul((2 * rows + 9).max(236 + rows / 2))
        };
        of((1..=16).map(|i| i * SIDE).min_by_key(|&rows| time(rows)).unwrap_or(128), 128, false)
    }

    const fn sides(&self) -> [u64; 2] {
        [self.rows, self.columns]
    }
}

/// `c[i, j] = Σ a[i, p] · b[p, j] + bias[j]` for every matrix of the batch.
///
/// Parameters: `a`, `b`, `bias` if there is one, `c`. They begin at the first element; lengths are up to the
/// last element that the shapes reach. On 310P `a`, `b` and `bias` have a slack of 16 elements. There rows of
/// less than 16 results are written by one core, element by element.
///
/// # Errors
/// `Unsupported` for other types, for a bias of a transposed result, and for f32 operands whose rows do not
/// run along k: fractals of 16-bit elements alone are transposed on their way to L0. `Range` for empty
/// shapes, sizes beyond i32, strides that are too small, and results whose rows overlap.
pub fn matmul(arch: Arch, shape: &Matmul) -> Result<Program> {
    let name = format!("matmul_{}_{}", shape.elem, shape.out);
    let lens = check(arch, shape, &name, SIDE)?;
    if shape.c.transposed {
        // The transpose of the result is a product too: of the transposes, in the other order.
        let turn = |x: Matrix| Matrix { transposed: !x.transposed, ..x };
        let turned =
            Matmul { m: shape.n, n: shape.m, a: turn(shape.b), b: turn(shape.a), c: turn(shape.c), ..*shape };
        return write(arch, &turned, &name, [lens[1], lens[0], lens[2]], ["b", "a"], None);
    }
    write(arch, shape, &name, lens, ["a", "b"], None)
}

/// Products of groups of rows, each with a matrix of its own: ATen's `_grouped_mm`, and its gradient by the
/// weight.
///
/// Parameters: `a`, `b`, `ends`, i32, one for each group, `c`. A group has the rows from the end of the one
/// before it, 0 for the first, to its own. Ends ascend up to the number of rows; who launches the kernel
/// proves it. Rows of no group ([`Grouped::Rows`]) and results of groups without rows ([`Grouped::Sums`])
/// stay as they are.
///
/// # Errors
/// As of [`matmul`], and `Unsupported` for a bias, a transposed result, and more than one dimension of
/// groups.
pub fn grouped_matmul(arch: Arch, shape: &Matmul, grouped: Grouped) -> Result<Program> {
    let name = format!("grouped_matmul_{}_{}", shape.elem, shape.out);
    let lens = check_groups(arch, shape, grouped, &name, SIDE)?;
    write(arch, shape, &name, lens, ["a", "b"], Some(grouped))
}

/// Buffers and counters that the statements of a kernel share.
struct Cube {
    shape: Matmul,
    tiling: Tiling,
    /// Two panels of each operand in L1, contiguous.
    panels: [Buf; 2],
    /// Two steps of each operand in L0.
    steps: [Buf; 2],
    sums: Buf,
    /// Columns of a fractal: elements in 32 bytes.
    c0: u64,
    /// Number of panels, of steps and of tiles so far.
    rounds: [VarId; 3],
    /// True if a tile may have a single row.
    single: bool,
}

/// A task: a tile of a result.
struct Task {
    /// Number among all tiles.
    number: Scalar,
    /// The matrix of the batch, if there are several.
    matrix: Option<Scalar>,
    /// Number among the tiles of the matrix.
    tile: Scalar,
    /// Rows of the matrix, and terms of a sum.
    sizes: [Scalar; 2],
    /// Rows, and terms, before those of the group.
    before: [Option<Scalar>; 2],
}

/// An operand's part of a step, on its way from L1 to L0 in one instruction.
pub(super) enum Part {
    /// `count` contiguous fractals, from `start` on.
    Run { src: View, start: Scalar, count: Scalar, transpose: bool },
    /// A tile of a matrix in columns of fractals, of `rows` rows each: `tile` rows and columns from `from`
    /// on.
    Tile { src: View, rows: u64, columns: u64, from: [Scalar; 2], tile: [Scalar; 2], transpose: bool },
}

fn write(
    arch: Arch,
    shape: &Matmul,
    name: &str,
    lens: [u64; 3],
    names: [&str; 2],
    grouped: Option<Grouped>,
) -> Result<Program> {
    let Matmul { elem, out, m, n, k: depth, batch, .. } = *shape;
    let unit = if arch.split() { Unit::Cube } else { Unit::Whole };
    let mut k = Builder::new(name, arch, unit);
    let bias_text = if shape.bias { " + bias" } else { "" };
    k.doc(format!("c = {} @ {}{bias_text}: {m} x {n}, sums of {depth}, {elem} to {out}", names[0], names[1]));
    k.doc("sums are f32, in ascending order, each on one core; a result is rounded once");
    match grouped {
        Some(Grouped::Rows) => k.doc(format!("rows of a in {} groups, each with a matrix of b", batch[0])),
        Some(Grouped::Sums) => k.doc(format!("terms in {} groups, each with a matrix of c", batch[0])),
        None => {}
    }
    let mut operands = [Gm { id: crate::kernel::ParamId(0), elem }; 2];
    // The parameters are in the caller's order, also where the product's operands are swapped.
    for side in if names[0] == "a" { [0, 1] } else { [1, 0] } {
        operands[side] = k.input(names[side], elem, lens[side]);
    }
    let bias = shape.bias.then(|| k.input("bias", elem, n));
    let ends = grouped.map(|_| k.input("ends", Elem::I32, batch[0]));
    let c = k.output("c", out, lens[2]);
    if arch == Arch::P310 {
        operands.iter().chain(&bias).for_each(|gm| k.slack(*gm, SIDE));
    }

    let tiling = Tiling::new(arch, shape, grouped.is_some());
    let Tiling { rows: most, columns: wide, resident, .. } = tiling;
    let c0 = elem.per_block();
    let [panel_len, step_len] = [PANEL, tiling.step].map(|x| x * c0);
    let panels = tiling.sides().map(|x| x * panel_len);
    let steps = tiling.sides().map(|x| x * step_len);
    let panels_len = panels[0];
    let panels = [
        k.buffer("a_panels", Space::L1, elem, 2 * panels[0], None),
        k.buffer("b_panels", Space::L1, elem, 2 * panels[1], None),
    ];
    let steps = [
        k.buffer("a_steps", Space::L0a, elem, 2 * steps[0], None),
        k.buffer("b_steps", Space::L0b, elem, 2 * steps[1], None),
    ];
    let sums = k.buffer("sums", Space::L0c, Elem::F32, tiling.sums * most * wide, None);
    let ones = shape.bias.then(|| ones(&mut k, elem, most));
    let rounds = ["panel", "l0_step", "tile_round"].map(|name| k.var(name, ScalarType::Int));
    let single = grouped == Some(Grouped::Rows) || m % most == 1;
    let cube = Cube { shape: *shape, tiling, panels, steps, sums, c0, rounds, single };
    // Fractals of 32 bits are not transposed: the bias is read as a column.
    let down_bias = c0 != SIDE;
    let store = &store(&mut k, shape, tiling.sums, tiling.sides());

    // Flags: panels, steps and sums may be overwritten.
    for slot in 0..2 {
        k.set_flag(Pipe::Mte1, Pipe::Mte2, slot);
        k.set_flag(Pipe::M, Pipe::Mte1, FIRST + slot);
    }
    if resident {
        (2..4).for_each(|slot| k.set_flag(Pipe::Mte1, Pipe::Mte2, slot));
    }
    store.open(&mut k);
    rounds.iter().for_each(|&round| k.set(round, 0));
    // Panels of the left operand that were read, and the band of rows that the last holds.
    let kept = resident.then(|| {
        let [count, band] = ["left_panel", "band"].map(|name| k.var(name, ScalarType::Int));
        k.set(count, 0);
        k.set(band, -1);
        [count, band]
    });

    // On 310P a last block of 32 bytes overlaps the one before it: a tile has at least one whole block.
    let ragged = arch == Arch::P310 && n % SIDE != 0;
    let width = if ragged { wide / 2 } else { wide };
    let across = if ragged { (n / width).max(1) } else { n.div_ceil(width) };
    let down = m.div_ceil(most);
    let compute = |k: &mut Builder, at: Task| {
        let Task { number: task, matrix, tile, sizes: [height, depth], before } = at;
        let row = k.let_("row", tile.clone() / across * most);
        let column = k.let_("column", tile.clone() % across * width);
        let rows = k.let_("rows", Scalar::from(most).min(height - row.clone()));
        let row = match &before[0] {
            Some(before) => k.let_("own_row", before.clone() + row),
            None => row,
        };
        let left = Scalar::from(n) - column.clone();
        let columns = match ragged {
            // The last tile has what is left, up to twice the width.
            true => {
                let last = (tile % across).eq(across - 1);
                last.clone() * left + (Scalar::from(1) - last) * width
            }
            false => Scalar::from(width).min(left),
        };
        let columns = k.let_("columns", columns);
        let fractals = [&rows, &columns].map(|x| x.clone().div_ceil(SIDE as i64));
        let fractals = [k.let_("row_fractals", &fractals[0]), k.let_("column_fractals", &fractals[1])];
        let sizes = Sizes { rows: rows.clone(), columns: columns.clone(), fractals: fractals.clone() };
        let place = |x: &Matrix, down: &Scalar, right: &Scalar| {
            let start = matrix.iter().flat_map(|matrix| {
                let indices = [matrix.clone() / batch[1], matrix.clone() % batch[1]];
                indices.into_iter().zip(x.batch)
            });
            let start = start.filter(|(_, stride)| *stride > 0);
            let start = start.fold(Scalar::Int(0), |sum, (index, stride)| sum + index * stride);
            let (row, column) = if x.transposed { (right, down) } else { (down, right) };
            start + row.clone() * x.row + column.clone()
        };

        let read_left = |k: &mut Builder, to: &View, deep: &Scalar, len: &Scalar| {
            let from = operands[0].at(place(&shape.a, &row, deep));
            match shape.a.transposed {
                true => read(k, to.clone(), from, len, &rows, shape.a.row, &panel_len.into()),
                false => {
                    let height = Scalar::from(most);
                    read(k, to.clone(), from.clone(), &rows, len, shape.a.row, &height);
                    if single {
                        // The cube unit reads a single row otherwise than two.
                        k.if_(rows.clone().eq(1), |k| {
                            read(k, to.add(c0), from, &rows, len, shape.a.row, &height);
                        });
                    }
                }
            }
        };
        let near = kept.map(|[count, band]| {
            let now = k.let_("now", task.clone() / across);
            k.if_(now.clone().ne(band), |k| {
                let slot = k.let_("next_left", count % 2);
                let before = Scalar::from(3) - slot.clone();
                k.if_(Scalar::from(0).lt(count), |k| k.set_flag(Pipe::Mte1, Pipe::Mte2, before));
                k.wait_flag(Pipe::Mte1, Pipe::Mte2, slot.clone() + 2);
                read_left(k, &cube.panels[0].at(slot.clone() * panels_len), &0.into(), &depth);
                k.flag(Pipe::Mte2, Pipe::Mte1, slot + 2);
                k.set(count, count + 1);
                k.set(band, now);
            });
            k.let_("left_slot", (count + 1) % 2)
        });
        if let (Some(bias), Some(ones)) = (bias, ones) {
            let slot = cube.panel_slot(k);
            let panel = cube.panels[1].at(slot.clone() * (wide * panel_len));
            match down_bias {
                true => {
                    let height = fractals[1].clone() * SIDE;
                    read(k, panel.clone(), bias.at(&column), &columns, &1.into(), 1, &height);
                }
                false => read_across(k, panel.clone(), bias.at(&column), &1.into(), &sizes, n, &SIDE.into()),
            }
            k.flag(Pipe::Mte2, Pipe::Mte1, slot.clone());
            let run = |src: View, count: &Scalar, transpose: bool| Part::Run {
                src,
                start: 0.into(),
                count: count.clone(),
                transpose,
            };
            let a = run(ones.at(0), &fractals[0], false);
            let b = run(panel, &fractals[1], !down_bias);
            cube.step(k, store, &sizes, [a, b], &1.into(), 1.into());
            cube.panel_done(k, slot);
        }
        k.for_each("deep", 0, depth.clone(), panel_len, |k, first| {
            let len = k.let_("len", Scalar::from(panel_len).min(depth - first.clone()));
            let deep = match &before[1] {
                Some(before) => k.let_("own_term", before.clone() + first.clone()),
                None => first.clone(),
            };
            let slot = cube.panel_slot(k);
            let left = cube.panels[0].at(near.clone().unwrap_or(slot.clone()) * panels_len);
            let right = cube.panels[1].at(slot.clone() * (wide * panel_len));
            if !resident {
                read_left(k, &left, &deep, &len);
            }
            let from = operands[1].at(place(&shape.b, &deep, &column));
            match shape.b.transposed {
                true => {
                    let height = fractals[1].clone() * SIDE;
                    read_down(k, right.clone(), from, &len, &sizes, shape, &height);
                }
                false => {
                    read_across(k, right.clone(), from, &len, &sizes, shape.b.row, &panel_len.into());
                }
            }
            k.flag(Pipe::Mte2, Pipe::Mte1, slot.clone());
            k.for_each("inside", 0, len.clone(), step_len, |k, at| {
                let count = k.let_("count", Scalar::from(step_len).min(len.clone() - at.clone()));
                let take = k.let_("take", count.clone().div_ceil(c0 as i64));
                let a = cube.left(left.clone(), &sizes, &at, &take);
                let b = cube.right(right.clone(), &sizes, &at, &take);
                let init = if shape.bias { 0.into() } else { (first.clone() + at).eq(0) };
                cube.step(k, store, &sizes, [a, b], &count, init);
            });
            cube.panel_done(k, slot);
        });
        let at = c.at(place(&shape.c, &row, &column));
        let slot = cube.sums_slot();
        let from = cube.sums_of(&slot);
        let pitch = fractals[0].clone() * SIDE;
        store.write(k, &Tile { from, slot, at, rows, columns, pitch, fractals: fractals[1].clone() });
        k.set(rounds[2], rounds[2] + 1);
    };
    match grouped.zip(ends) {
        None => {
            let tasks = batch[0] * batch[1] * down * across;
            // Block 0 has every task, or each block those that follow each other, or tasks go round the
            // blocks.
            let (first, end, step) = match (store.alone(), resident) {
                (true, _) => (Scalar::BLOCK * tasks, tasks.into(), Scalar::Int(1)),
                (_, true) => {
                    let part = |block: Scalar| block * tasks / Scalar::BLOCKS;
                    (part(Scalar::BLOCK), part(Scalar::BLOCK + 1), 1.into())
                }
                _ => (Scalar::BLOCK, tasks.into(), Scalar::BLOCKS),
            };
            k.for_each("task", first, end, step, |k, task| {
                let several = batch != [1, 1];
                let matrix = several.then(|| k.let_("matrix", task.clone() / (down * across)));
                let tile = k.let_("tile", task.clone() % (down * across));
                let sizes = [m.into(), depth.into()];
                compute(k, Task { number: task, matrix, tile, sizes, before: [None, None] });
            });
        }
        Some((grouped, ends)) => {
            // Tiles go round the blocks, on from group to group.
            let [before, turn] = ["before", "turn"].map(|name| k.var(name, ScalarType::Int));
            k.set(before, 0);
            k.set(turn, 0);
            k.for_each("group", 0, batch[0], 1, |k, group| {
                let end = k.load("end", ends.at(&group));
                let len = k.let_("group_rows", end.clone() - before);
                let high = match grouped {
                    Grouped::Rows => len.clone().div_ceil(most as i64),
                    Grouped::Sums => Scalar::from(0).lt(len.clone()) * down,
                };
                let tiles = k.let_("tiles", high * across);
                let (first, step) = match store.alone() {
                    true => (Scalar::BLOCK * tiles.clone(), Scalar::Int(1)),
                    false => ((Scalar::BLOCK + Scalar::BLOCKS - turn) % Scalar::BLOCKS, Scalar::BLOCKS),
                };
                k.for_each("tile", first, tiles.clone(), step, |k, tile| {
                    let own = Some(Scalar::Var(before));
                    let (sizes, before) = match grouped {
                        Grouped::Rows => ([len.clone(), depth.into()], [own, None]),
                        Grouped::Sums => ([m.into(), len.clone()], [None, own]),
                    };
                    compute(
                        k,
                        Task { number: tile.clone(), matrix: Some(group.clone()), tile, sizes, before },
                    );
                });
                k.set(turn, (Scalar::Var(turn) + tiles) % Scalar::BLOCKS);
                k.set(before, end);
            });
        }
    }
    for slot in 0..2 {
        k.wait_flag(Pipe::Mte1, Pipe::Mte2, slot);
        k.wait_flag(Pipe::M, Pipe::Mte1, FIRST + slot);
    }
    if let Some([count, _]) = kept {
        let last = (count + 1) % 2;
        k.if_(Scalar::from(0).lt(count), |k| k.set_flag(Pipe::Mte1, Pipe::Mte2, last + 2));
        (2..4).for_each(|slot| k.wait_flag(Pipe::Mte1, Pipe::Mte2, slot));
    }
    store.close(&mut k);
    k.finish()
}

impl Cube {
    /// The place of the tile's sums in L0C.
    fn sums_slot(&self) -> Scalar {
        if self.tiling.sums == 1 { 0.into() } else { self.rounds[2] % self.tiling.sums }
    }

    fn sums_of(&self, slot: &Scalar) -> View {
        self.sums.at(slot.clone() * (self.tiling.rows * self.tiling.columns))
    }

    /// The slot of the next panels, as soon as it is free.
    fn panel_slot(&self, k: &mut Builder) -> Scalar {
        let slot = k.let_("panel_slot", self.rounds[0] % 2);
        k.wait_flag(Pipe::Mte1, Pipe::Mte2, slot.clone());
        slot
    }

    fn panel_done(&self, k: &mut Builder, slot: Scalar) {
        k.set_flag(Pipe::Mte1, Pipe::Mte2, slot);
        k.set(self.rounds[0], self.rounds[0] + 1);
    }

    /// The left operand's part of a step: `take` columns of fractals along k from `at` on.
    fn left(&self, src: View, sizes: &Sizes, at: &Scalar, take: &Scalar) -> Part {
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
    fn right(&self, src: View, sizes: &Sizes, at: &Scalar, take: &Scalar) -> Part {
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
    fn step(
        &self,
        k: &mut Builder,
        store: &super::matmul_store::Store,
        sizes: &Sizes,
        operands: [Part; 2],
        count: &Scalar,
        init: Scalar,
    ) {
        let slot = k.let_("step_slot", self.rounds[1] % 2);
        k.wait_flag(Pipe::M, Pipe::Mte1, slot.clone() + FIRST);
        let lens = self.tiling.sides().map(|x| x * self.tiling.step * self.c0);
        let places = [0, 1].map(|i| self.steps[i].at(slot.clone() * lens[i]));
        for (part, to) in operands.into_iter().zip(&places) {
            load(k, to, part);
        }
        k.flag(Pipe::Mte1, Pipe::M, slot.clone());
        let sums = k.let_("sums_slot", self.sums_slot());
        k.if_(init.clone(), |k| store.free(k, &sums));
        // One row is two, of which the second is not used.
        let rows = if self.single { sizes.rows.clone().max(2) } else { sizes.rows.clone() };
        let columns = store.columns(sizes.columns.clone());
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
fn ones(k: &mut Builder, elem: Elem, rows: u64) -> Buf {
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
