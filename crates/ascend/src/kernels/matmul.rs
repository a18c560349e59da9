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
use super::matmul_shape::{Grouped, Matmul, Matrix, SIDE, check_groups};
use super::matmul_step::{Cube, FIRST, Part, ones};
use super::matmul_store::{Tile, store};
use super::matmul_tiling::{Member, PANEL, Tiling};
use super::refusal;
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{Buf, Builder, Elem, Gm, Pipe, Program, Scalar, ScalarType, Space, Unit, VarId, View};

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
    write(arch, &[Member::new(arch, shape, &name)?], &name, None)
}

/// Several products of one type to one type, which do not depend on each other (A2).
///
/// Parameters: `a`, `b`, `bias` if there is one, `c`, of each in turn. Bits are those of [`matmul`].
///
/// # Errors
/// As of [`matmul`], and `Unsupported` for other types than the first one's, and shapes whose tiles differ.
pub fn matmuls(arch: Arch, shapes: &[Matmul]) -> Result<Program> {
    let types = |shape: &Matmul| (shape.elem, shape.out);
    let name = shapes.first().map(|s| format!("matmuls_{}_{}", s.elem, s.out)).unwrap_or_default();
    let alike = shapes.windows(2).all(|two| types(&two[0]) == types(&two[1]));
    if arch != Arch::A2 || shapes.is_empty() || !alike {
        return Err(refusal(&name, "mm", Rule::Unsupported, "products that are no group".into()));
    }
    let members = shapes.iter().map(|shape| Member::new(arch, shape, &name)).collect::<Result<Vec<_>>>()?;
    write(arch, &members, &name, None)
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
    write(arch, &[Member { shape: *shape, lens, names: ["a", "b"] }], &name, Some(grouped))
}

/// Memory of a product.
struct Operands {
    /// The left and the right operand.
    sides: [Gm; 2],
    bias: Option<Gm>,
    /// Ends of groups.
    ends: Option<Gm>,
    c: Gm,
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

fn write(arch: Arch, members: &[Member], name: &str, grouped: Option<Grouped>) -> Result<Program> {
    let Some(tiling) = Tiling::new(arch, members, grouped.is_some()) else {
        return Err(refusal(name, "mm", Rule::Unsupported, "products whose tiles differ".into()));
    };
    let unit = if arch.split() { Unit::Cube } else { Unit::Whole };
    let mut k = Builder::new(name, arch, unit);
    for Member { shape: Matmul { elem, out, m, n, k: depth, bias, .. }, names, .. } in members {
        let bias = if *bias { " + bias" } else { "" };
        k.doc(format!("c = {} @ {}{bias}: {m} x {n}, sums of {depth}, {elem} to {out}", names[0], names[1]));
    }
    k.doc("sums are f32, in ascending order, each on one core; a result is rounded once");
    let Matmul { elem, out: _, batch, .. } = members[0].shape;
    match grouped {
        Some(Grouped::Rows) => k.doc(format!("rows of a in {} groups, each with a matrix of b", batch[0])),
        Some(Grouped::Sums) => k.doc(format!("terms in {} groups, each with a matrix of c", batch[0])),
        None => {}
    }
    let declared: Vec<Operands> = members.iter().map(|m| operands(&mut k, m, grouped)).collect();

    let Tiling { rows: most, columns: wide, resident, .. } = tiling;
    let c0 = elem.per_block();
    let [panel_len, step_len] = [PANEL, tiling.step].map(|x| x * c0);
    let panels = tiling.sides().map(|x| x * panel_len);
    let steps = tiling.sides().map(|x| x * step_len);
    let panels = [
        k.buffer("a_panels", Space::L1, elem, 2 * panels[0], None),
        k.buffer("b_panels", Space::L1, elem, 2 * panels[1], None),
    ];
    let steps = [
        k.buffer("a_steps", Space::L0a, elem, 2 * steps[0], None),
        k.buffer("b_steps", Space::L0b, elem, 2 * steps[1], None),
    ];
    let sums = k.buffer("sums", Space::L0c, Elem::F32, tiling.sums * most * wide, None);
    let ones = members.iter().any(|m| m.shape.bias).then(|| ones(&mut k, elem, most));
    let rounds = ["panel", "l0_step", "tile_round"].map(|name| k.var(name, ScalarType::Int));
    let cubes: Vec<Cube> = members
        .iter()
        .map(|Member { shape, .. }| {
            let single = grouped == Some(Grouped::Rows) || shape.m % most == 1;
            let store = store(&mut k, shape, tiling.sums, tiling.sides());
            Cube { shape: *shape, tiling, panels, steps, sums, c0, rounds, single, arch, store }
        })
        .collect();

    // Flags: panels, steps and sums may be overwritten.
    for slot in 0..2 {
        k.set_flag(Pipe::Mte1, Pipe::Mte2, slot);
        k.set_flag(Pipe::M, Pipe::Mte1, FIRST + slot);
    }
    if resident {
        (2..4).for_each(|slot| k.set_flag(Pipe::Mte1, Pipe::Mte2, slot));
    }
    cubes[0].store.open(&mut k);
    rounds.iter().for_each(|&round| k.set(round, 0));
    // Panels of the left operand that were read, and the band of rows that the last holds.
    let kept = resident.then(|| {
        let [count, band] = ["left_panel", "band"].map(|name| k.var(name, ScalarType::Int));
        k.set(count, 0);
        k.set(band, -1);
        [count, band]
    });
    let all = cubes.iter().map(Cube::tasks).sum();
    let (mut before, mut bands) = (0, 0);
    for (cube, operands) in cubes.iter().zip(&declared) {
        let work = Work { cube, operands, ones, kept: kept.map(|kept| (kept, bands)), panel_len, step_len };
        match grouped.zip(operands.ends) {
            None => work.tiles(&mut k, before, all),
            Some((grouped, ends)) => work.groups(&mut k, grouped, ends),
        }
        (before, bands) = (before + cube.tasks(), bands + cube.bands());
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
    cubes[0].store.close(&mut k);
    k.finish()
}

/// Parameters of a product, in the caller's order, also where its operands are exchanged.
fn operands(k: &mut Builder, member: &Member, grouped: Option<Grouped>) -> Operands {
    let Member { shape: Matmul { elem, out, n, batch, bias, .. }, lens, names } = *member;
    let mut sides = [Gm { id: crate::kernel::ParamId(0), elem }; 2];
    for side in if names[0] == "a" { [0, 1] } else { [1, 0] } {
        sides[side] = k.input(names[side], elem, lens[side]);
    }
    let bias = bias.then(|| k.input("bias", elem, n));
    let ends = grouped.map(|_| k.input("ends", Elem::I32, batch[0]));
    let c = k.output("c", out, lens[2]);
    if k.arch() == Arch::P310 {
        sides.iter().chain(&bias).for_each(|gm| k.slack(*gm, SIDE));
    }
    Operands { sides, bias, ends, c }
}

/// The tiles of a product.
struct Work<'a> {
    cube: &'a Cube,
    operands: &'a Operands,
    /// A column of ones, where a bias is multiplied by it.
    ones: Option<Buf>,
    /// Panels of the left operand that were read and the band of rows that the last holds, where these stay;
    /// and the number of this product's first band.
    kept: Option<([VarId; 2], u64)>,
    /// Terms of a panel, and of a step.
    panel_len: u64,
    step_len: u64,
}

impl Work<'_> {
    /// The tiles of a product, `before` so many of other products and among `all`.
    fn tiles(&self, k: &mut Builder, before: u64, all: u64) {
        let Cube { shape: Matmul { m, k: depth, batch, .. }, tiling, store, .. } = self.cube;
        let (tasks, each) = (self.cube.tasks(), self.cube.down() * self.cube.across());
        // Block 0 has every task, or each block those that follow each other, or tasks go round the blocks.
        let (first, end, step) = match (store.alone(), tiling.resident) {
            (true, _) => (Scalar::BLOCK * tasks, tasks.into(), Scalar::Int(1)),
            (_, true) => {
                let part = |block: Scalar| match all == tasks {
                    true => block * tasks / Scalar::BLOCKS,
                    false => (block * all / Scalar::BLOCKS - before).max(0).min(tasks),
                };
                (part(Scalar::BLOCK), part(Scalar::BLOCK + 1), 1.into())
            }
            _ if before == 0 => (Scalar::BLOCK, tasks.into(), Scalar::BLOCKS),
            _ => {
                let turn = Scalar::from(before) % Scalar::BLOCKS;
                ((Scalar::BLOCK + Scalar::BLOCKS - turn) % Scalar::BLOCKS, tasks.into(), Scalar::BLOCKS)
            }
        };
        k.for_each("task", first, end, step, |k, task| {
            let several = *batch != [1, 1];
            let matrix = several.then(|| k.let_("matrix", task.clone() / each));
            let tile = k.let_("tile", task.clone() % each);
            let sizes = [(*m).into(), (*depth).into()];
            self.compute(k, Task { number: task, matrix, tile, sizes, before: [None, None] });
        });
    }

    /// The tiles of groups of rows or terms. They go round the blocks, on from group to group.
    fn groups(&self, k: &mut Builder, grouped: Grouped, ends: Gm) {
        let Cube { shape: Matmul { m, k: depth, batch, .. }, tiling, store, .. } = self.cube;
        let (down, across) = (self.cube.down(), self.cube.across());
        let [before, turn] = ["before", "turn"].map(|name| k.var(name, ScalarType::Int));
        k.set(before, 0);
        k.set(turn, 0);
        k.for_each("group", 0, batch[0], 1, |k, group| {
            let end = k.load("end", ends.at(&group));
            let len = k.let_("group_rows", end.clone() - before);
            let high = match grouped {
                Grouped::Rows => len.clone().div_ceil(tiling.rows as i64),
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
                    Grouped::Rows => ([len.clone(), (*depth).into()], [own, None]),
                    Grouped::Sums => ([(*m).into(), len.clone()], [None, own]),
                };
                self.compute(
                    k,
                    Task { number: tile.clone(), matrix: Some(group.clone()), tile, sizes, before },
                );
            });
            k.set(turn, (Scalar::Var(turn) + tiles) % Scalar::BLOCKS);
            k.set(before, end);
        });
    }

    /// Computes a tile.
    fn compute(&self, k: &mut Builder, at: Task) {
        let Work { cube, operands, panel_len, step_len, .. } = *self;
        let Cube { shape, tiling, c0, store, single, .. } = cube;
        let (Matmul { n, batch, .. }, c0) = (*shape, *c0);
        let Tiling { rows: most, columns: wide, resident, .. } = *tiling;
        let (across, width, panels_len) = (cube.across(), cube.width(), most * panel_len);
        // Fractals of 32 bits are not transposed: the bias is read as a column.
        let down_bias = c0 != SIDE;
        let Task { number: task, matrix, tile, sizes: [height, depth], before } = at;
        let (row, column) = match tiling.downward {
            true => (tile.clone() % cube.down(), tile.clone() / cube.down()),
            false => (tile.clone() / across, tile.clone() % across),
        };
        let (row, column) = (k.let_("row", row * most), k.let_("column", column * width));
        let rows = k.let_("rows", Scalar::from(most).min(height - row.clone()));
        let row = match &before[0] {
            Some(before) => k.let_("own_row", before.clone() + row),
            None => row,
        };
        let left = Scalar::from(n) - column.clone();
        let columns = match cube.is_ragged() {
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
            let from = operands.sides[0].at(place(&shape.a, &row, deep));
            match shape.a.transposed {
                true => read(k, to.clone(), from, len, &rows, shape.a.row, &panel_len.into()),
                false => {
                    let height = Scalar::from(most);
                    read(k, to.clone(), from.clone(), &rows, len, shape.a.row, &height);
                    if *single {
                        // The cube unit reads a single row otherwise than two.
                        k.if_(rows.clone().eq(1), |k| {
                            read(k, to.add(c0), from, &rows, len, shape.a.row, &height);
                        });
                    }
                }
            }
        };
        let near = self.kept.map(|([count, band], bands)| {
            let now = match bands {
                0 => k.let_("now", task.clone() / across),
                _ => k.let_("now", task.clone() / across + bands),
            };
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
        if let (Some(bias), Some(ones)) = (operands.bias, self.ones) {
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
            cube.step(k, &sizes, [a, b], &1.into(), 1.into());
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
            let from = operands.sides[1].at(place(&shape.b, &deep, &column));
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
                cube.step(k, &sizes, [a, b], &count, init);
            });
            cube.panel_done(k, slot);
        });
        let at = operands.c.at(place(&shape.c, &row, &column));
        let slot = cube.sums_slot();
        let from = cube.sums_of(&slot);
        let pitch = fractals[0].clone() * SIDE;
        store.write(k, &Tile { from, slot, at, rows, columns, pitch, fractals: fractals[1].clone() });
        k.set(cube.rounds[2], cube.rounds[2] + 1);
    }
}
