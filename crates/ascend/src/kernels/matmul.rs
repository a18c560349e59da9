//! Product of matrices on the cube unit: ATen's `mm`, `bmm`, `addmm`, `baddbmm`, `linear`.
//!
//! A task is a tile of one result. Its sums run over all of k on one core, in ascending order, so the bits are the same
//! for any number of blocks. Panels of the operands go to L1 as columns of fractals, steps of them to L0; two of each
//! are in flight.
//!
//! A bias is a first step of length one: a column of ones times the bias, so that sums begin with it in f32.

use super::matmul_store::{Tile, store};
use super::refusal;
use crate::chip::Arch;
use crate::finding::{Result, Rule};
use crate::kernel::{
    Barrier, Buf, Builder, CopyNdToNz, DataCopy, Elem, Gm, InitConst, LoadData2d, Mmad, Over, Pipe, Program,
    Scalar, ScalarType, Space, Unit, UnitFlag, VarId, View,
};

/// Rows of a tile.
const ROWS: u64 = 128;
/// Columns of a tile.
const COLUMNS: u64 = 256;
/// Columns of fractals along the sums that a panel in L1 has.
const PANEL: u64 = 16;
/// The same of a step in L0.
const STEP: u64 = 4;
/// Rows of a fractal; of 16-bit elements also columns.
pub(super) const SIDE: u64 = 16;
/// Largest size that a dimension, a row's stride or an operand may have.
const LIMIT: u64 = i32::MAX as u64;

/// Place of a matrix in memory, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Matrix {
    /// True where it lies transposed: columns one after the other.
    pub transposed: bool,
    /// From one row (of the transpose, where it is stored) to the next: at least a row's elements.
    pub row: u64,
    /// From one matrix of the batch to the next, in both dimensions of the batch; 0 reads the same one again.
    pub batch: [u64; 2],
}

/// Shapes of [`matmul`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matmul {
    /// Type of a, b and the bias: f16, on A2 also bf16 and f32. Products are exact, sums f32.
    pub elem: Elem,
    /// Type of c: f32, or `elem`, rounded once to nearest even.
    pub out: Elem,
    /// Rows of c.
    pub m: u64,
    /// Columns of c.
    pub n: u64,
    /// Length of the sums.
    pub k: u64,
    /// Sizes of the batch's dimensions; 1 where there are none.
    pub batch: [u64; 2],
    /// Left operand, m × k.
    pub a: Matrix,
    /// Right operand, k × n.
    pub b: Matrix,
    /// Result, m × n.
    pub c: Matrix,
    /// True where a bias of n elements is added to each row.
    pub bias: bool,
}

/// `c[i, j] = Σ a[i, p] · b[p, j] + bias[j]` for every matrix of the batch.
///
/// Parameters: `a`, `b`, `bias` if there is one, `c`. They begin at the first element; lengths are up to the last
/// element that the shapes reach. On 310P `a`, `b` and `bias` have a slack of 16 elements. There rows of
/// less than 16 results are written by one core, element by element.
///
/// # Errors
/// `Unsupported` for other types, for a bias of a transposed result, and for f32 operands whose rows do not run along
/// k: fractals of 16-bit elements alone are transposed on their way to L0. `Range` for empty shapes, sizes beyond i32,
/// strides that are too small, and results whose rows overlap.
pub fn matmul(arch: Arch, shape: &Matmul) -> Result<Program> {
    let name = format!("matmul_{}_{}", shape.elem, shape.out);
    let lens = check(arch, shape, &name)?;
    if shape.c.transposed {
        // The transpose of the result is a product too: of the transposes, in the other order.
        let turn = |x: Matrix| Matrix { transposed: !x.transposed, ..x };
        let turned =
            Matmul { m: shape.n, n: shape.m, a: turn(shape.b), b: turn(shape.a), c: turn(shape.c), ..*shape };
        return write(arch, &turned, &name, [lens[1], lens[0], lens[2]], ["b", "a"]);
    }
    write(arch, shape, &name, lens, ["a", "b"])
}

/// Buffers and counters that the statements of a kernel share.
struct Cube {
    shape: Matmul,
    /// Two panels of each operand in L1, one behind the other.
    panels: [Buf; 2],
    /// Two steps of each operand in L0.
    steps: [Buf; 2],
    sums: Buf,
    /// Columns of a fractal: elements in 32 bytes.
    c0: u64,
    /// Number of panels, of steps so far.
    rounds: [VarId; 2],
}

/// Sizes of a tile, as scalars.
struct Sizes {
    rows: Scalar,
    columns: Scalar,
    /// Fractals of rows and columns.
    fractals: [Scalar; 2],
}

/// Fractals of an operand in L1 that a step takes: `outer × inner` of them, in L0's order.
struct Steps {
    src: View,
    outer: Scalar,
    inner: Scalar,
    start: Scalar,
    strides: [Scalar; 2],
    transpose: bool,
}

fn write(arch: Arch, shape: &Matmul, name: &str, lens: [u64; 3], names: [&str; 2]) -> Result<Program> {
    let Matmul { elem, out, m, n, k: depth, batch, .. } = *shape;
    let unit = if arch.split() { Unit::Cube } else { Unit::Whole };
    let mut k = Builder::new(name, arch, unit);
    let bias_text = if shape.bias { " + bias" } else { "" };
    k.doc(format!("c = {} @ {}{bias_text}: {m} x {n}, sums of {depth}, {elem} to {out}", names[0], names[1]));
    k.doc("sums are f32, in ascending order, each on one core; a result is rounded once");
    let mut operands = [Gm { id: crate::kernel::ParamId(0), elem }; 2];
    // The parameters are in the caller's order, also where the product is turned round.
    for side in if names[0] == "a" { [0, 1] } else { [1, 0] } {
        operands[side] = k.input(names[side], elem, lens[side]);
    }
    let bias = shape.bias.then(|| k.input("bias", elem, n));
    let c = k.output("c", out, lens[2]);
    if arch == Arch::P310 {
        operands.iter().chain(&bias).for_each(|gm| k.slack(*gm, SIDE));
    }

    let c0 = elem.per_block();
    let [panel_len, step_len] = [PANEL, STEP].map(|x| x * c0);
    let panels = [ROWS, COLUMNS].map(|x| x * panel_len);
    let steps = [ROWS, COLUMNS].map(|x| x * step_len);
    let panels = [
        k.buffer("a_panels", Space::L1, elem, 2 * panels[0], None),
        k.buffer("b_panels", Space::L1, elem, 2 * panels[1], None),
    ];
    let steps = [
        k.buffer("a_steps", Space::L0a, elem, 2 * steps[0], None),
        k.buffer("b_steps", Space::L0b, elem, 2 * steps[1], None),
    ];
    let sums = k.buffer("sums", Space::L0c, Elem::F32, ROWS * COLUMNS, None);
    let ones = shape.bias.then(|| ones(&mut k, elem));
    let rounds = ["panel", "l0_step"].map(|name| k.var(name, ScalarType::Int));
    let cube = Cube { shape: *shape, panels, steps, sums, c0, rounds };
    // Fractals of 32 bits are not transposed: the bias is read as a column.
    let down_bias = c0 != SIDE;
    let store = &store(&mut k, shape, sums, [ROWS, COLUMNS]);

    // Flags: panels, steps and sums may be overwritten.
    for slot in 0..2 {
        k.set_flag(Pipe::Mte1, Pipe::Mte2, slot);
        k.set_flag(Pipe::M, Pipe::Mte1, slot);
    }
    store.open(&mut k);
    rounds.iter().for_each(|&round| k.set(round, 0));

    // On 310P a last block of 32 bytes overlaps the one before it: a tile has at least one whole block.
    let ragged = arch == Arch::P310 && n % SIDE != 0;
    let width = if ragged { COLUMNS / 2 } else { COLUMNS };
    let across = if ragged { (n / width).max(1) } else { n.div_ceil(width) };
    let down = m.div_ceil(ROWS);
    let tasks = batch[0] * batch[1] * down * across;
    // Block 0 has every task, or tasks go round the blocks.
    let (first, step) = match store.alone() {
        true => (Scalar::BLOCK * tasks, Scalar::Int(1)),
        false => (Scalar::BLOCK, Scalar::BLOCKS),
    };
    k.for_each("task", first, tasks, step, |k, task| {
        let several = batch != [1, 1];
        let matrix = several.then(|| k.let_("matrix", task.clone() / (down * across)));
        let tile = k.let_("tile", task % (down * across));
        let row = k.let_("row", tile.clone() / across * ROWS);
        let column = k.let_("column", tile.clone() % across * width);
        let rows = k.let_("rows", Scalar::from(ROWS).min(Scalar::from(m) - row.clone()));
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

        if let (Some(bias), Some(ones)) = (bias, ones) {
            let slot = cube.panel_slot(k);
            let panel = cube.panels[1].at(slot.clone() * (COLUMNS * panel_len));
            match down_bias {
                true => {
                    let height = fractals[1].clone() * SIDE;
                    read(k, panel.clone(), bias.at(&column), &columns, &1.into(), 1, &height);
                }
                false => read_across(k, panel.clone(), bias.at(&column), &1.into(), &sizes, n, &SIDE.into()),
            }
            k.flag(Pipe::Mte2, Pipe::Mte1, slot.clone());
            let a = Steps {
                src: ones.at(0),
                outer: fractals[0].clone(),
                inner: 1.into(),
                start: 0.into(),
                strides: [1.into(), 1.into()],
                transpose: false,
            };
            let b = cube.right(panel, down_bias, &sizes, &1.into(), &0.into(), &1.into());
            cube.step(k, store, &sizes, [a, b], &1.into(), 1.into());
            cube.panel_done(k, slot);
        }
        k.for_each("deep", 0, depth, panel_len, |k, deep| {
            let len = k.let_("len", Scalar::from(panel_len).min(Scalar::from(depth) - deep.clone()));
            let pitch = len.clone().div_ceil(SIDE as i64) * SIDE;
            // Rows of the panel of an operand whose rows in memory are along k.
            let used = shape.a.transposed || !shape.b.transposed;
            let pitch = if used { k.let_("pitch", pitch) } else { pitch };
            let slot = cube.panel_slot(k);
            let left = cube.panels[0].at(slot.clone() * (ROWS * panel_len));
            let right = cube.panels[1].at(slot.clone() * (COLUMNS * panel_len));
            let from = operands[0].at(place(&shape.a, &row, &deep));
            match shape.a.transposed {
                true => read(k, left.clone(), from, &len, &rows, shape.a.row, &pitch),
                false => {
                    let height = fractals[0].clone() * SIDE;
                    read(k, left.clone(), from.clone(), &rows, &len, shape.a.row, &height);
                    if m % ROWS == 1 {
                        // The cube unit reads a single row otherwise than two.
                        k.if_(rows.clone().eq(1), |k| {
                            read(k, left.add(c0), from, &rows, &len, shape.a.row, &height);
                        });
                    }
                }
            }
            let from = operands[1].at(place(&shape.b, &deep, &column));
            match shape.b.transposed {
                true => {
                    let height = fractals[1].clone() * SIDE;
                    read_down(k, right.clone(), from, &len, &sizes, shape, &height);
                }
                false => read_across(k, right.clone(), from, &len, &sizes, shape.b.row, &pitch),
            }
            k.flag(Pipe::Mte2, Pipe::Mte1, slot.clone());
            k.for_each("inside", 0, len.clone(), step_len, |k, at| {
                let count = k.let_("count", Scalar::from(step_len).min(len.clone() - at.clone()));
                let take = k.let_("take", count.clone().div_ceil(c0 as i64));
                let first = k.let_("first", at.clone() / c0);
                let pitch = pitch.clone() / SIDE;
                let a = cube.left(left.clone(), &sizes, &pitch, &first, &take);
                let b = cube.right(right.clone(), shape.b.transposed, &sizes, &pitch, &first, &take);
                let init = if shape.bias { 0.into() } else { (deep.clone() + at).eq(0) };
                cube.step(k, store, &sizes, [a, b], &count, init);
            });
            cube.panel_done(k, slot);
        });
        let at = c.at(place(&shape.c, &row, &column));
        store.write(
            k,
            &Tile { at, rows, columns, pitch: fractals[0].clone() * SIDE, fractals: fractals[1].clone() },
        );
    });
    for slot in 0..2 {
        k.wait_flag(Pipe::Mte1, Pipe::Mte2, slot);
        k.wait_flag(Pipe::M, Pipe::Mte1, slot);
    }
    store.close(&mut k);
    k.finish()
}

impl Cube {
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

    /// Fractals of the left operand, `take` along k from `first`; `pitch` fractals of k are in the panel.
    fn left(&self, src: View, sizes: &Sizes, pitch: &Scalar, first: &Scalar, take: &Scalar) -> Steps {
        let rows = sizes.fractals[0].clone();
        let transpose = self.shape.a.transposed;
        let (start, strides) = match transpose {
            true => (first.clone(), [pitch.clone(), 1.into()]),
            false => (first.clone() * rows.clone(), [1.into(), rows.clone()]),
        };
        Steps { src, outer: rows, inner: take.clone(), start, strides, transpose }
    }

    /// The same of the right operand.
    fn right(
        &self,
        src: View,
        transposed: bool,
        sizes: &Sizes,
        pitch: &Scalar,
        first: &Scalar,
        take: &Scalar,
    ) -> Steps {
        let columns = sizes.fractals[1].clone();
        let (start, strides) = match transposed {
            true => (first.clone() * columns.clone(), [columns.clone(), 1.into()]),
            false => (first.clone(), [1.into(), pitch.clone()]),
        };
        Steps { src, outer: take.clone(), inner: columns, start, strides, transpose: !transposed }
    }

    /// A product of `count` terms onto the sums, which it begins where `init` is not 0.
    fn step(
        &self,
        k: &mut Builder,
        store: &super::matmul_store::Store,
        sizes: &Sizes,
        operands: [Steps; 2],
        count: &Scalar,
        init: Scalar,
    ) {
        let slot = k.let_("step_slot", self.rounds[1] % 2);
        k.wait_flag(Pipe::M, Pipe::Mte1, slot.clone());
        let lens = [ROWS, COLUMNS].map(|x| x * STEP * self.c0);
        let places = [0, 1].map(|i| self.steps[i].at(slot.clone() * lens[i]));
        for (steps, to) in operands.into_iter().zip(&places) {
            load(k, to, steps);
        }
        k.flag(Pipe::Mte1, Pipe::M, slot.clone());
        k.if_(init.clone(), |k| store.free(k));
        // One row is two, of which the second is not used.
        let rows = if self.shape.m % ROWS == 1 { sizes.rows.clone().max(2) } else { sizes.rows.clone() };
        let columns = store.columns(sizes.columns.clone());
        // Products of few fractals do not wait for each other's sums.
        let few = (rows.clone() / SIDE * (columns.clone() / SIDE)).lt(10);
        k.if_(few, |k| k.barrier(Barrier::M));
        let [a, b] = places;
        k.issue(Mmad {
            c: self.sums.at(0),
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
        k.set_flag(Pipe::M, Pipe::Mte1, slot);
        k.set(self.rounds[1], self.rounds[1] + 1);
    }
}

/// Fractals from L1 to L0.
fn load(k: &mut Builder, to: &View, x: Steps) {
    let Steps { src, outer, inner, start, strides: [apart, stride], transpose } = x;
    let fractal = SIDE * to.elem.per_block();
    k.for_each("o", 0, outer, 1, |k, o| {
        k.issue(LoadData2d {
            dst: to.add(o.clone() * inner.clone() * fractal),
            src,
            start: start + o * apart,
            repeat: inner,
            src_stride: stride,
            dst_gap: 0.into(),
            transpose,
        });
    });
}

/// A column of ones as the left operand, in L1.
fn ones(k: &mut Builder, elem: Elem) -> Buf {
    let len = ROWS * elem.per_block();
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

/// Copies `rows × columns` elements into columns of fractals in L1, each of `pitch` rows.
///
/// Behind the last column of a row stands anything up to the fractal's end: it reaches no result.
fn read(k: &mut Builder, to: View, from: View, rows: &Scalar, columns: &Scalar, row: u64, pitch: &Scalar) {
    let c0 = to.elem.per_block();
    let blocks = columns.clone().div_ceil(c0 as i64);
    let each_row = |k: &mut Builder, copy: &dyn Fn(View, View) -> crate::kernel::Instr| {
        k.for_each("r", 0, rows, 1, |k, r| k.issue(copy(to.add(r.clone() * c0), from.add(r * row))));
    };
    let run = |dst: View, src: View, blocks: Scalar, src_gap: Scalar, dst_gap: Scalar| DataCopy {
        dst,
        src,
        blocks,
        len: 1.into(),
        src_gap,
        dst_gap,
        atomic: None,
    };
    let fractals = |dst: View, src: View, n: Scalar, src_row: u64| CopyNdToNz {
        dst,
        src,
        matrices: 1.into(),
        n,
        d: columns.clone(),
        src_matrix: 0.into(),
        src_row: src_row.into(),
        dst_c0: pitch.clone(),
        dst_row: 1.into(),
        dst_matrix: 0.into(),
    };
    match k.arch() {
        Arch::A2 if row <= 65535 => k.issue(fractals(to, from, rows.clone(), row)),
        Arch::A2 => each_row(k, &|dst, src| fractals(dst, src, 1.into(), 1).into()),
        Arch::P310 if row.is_multiple_of(c0) && row / c0 <= 65536 => k.for_each("c", 0, blocks, 1, |k, c| {
            let dst = to.add(c.clone() * pitch.clone() * c0);
            k.issue(run(dst, from.add(c * c0), rows.clone(), (row / c0 - 1).into(), 0.into()));
        }),
        Arch::P310 => {
            each_row(k, &|dst, src| run(dst, src, blocks.clone(), 0.into(), pitch.clone() - 1).into())
        }
    }
}

/// The right operand as it lies: `depth` rows. On 310P the last 16 columns of a tile are read again, as a fractal of
/// their own, where they are no whole one.
fn read_across(
    k: &mut Builder,
    to: View,
    from: View,
    depth: &Scalar,
    sizes: &Sizes,
    row: u64,
    pitch: &Scalar,
) {
    let columns = &sizes.columns;
    if k.arch() == Arch::A2 {
        return read(k, to, from, depth, columns, row, pitch);
    }
    let whole = columns.clone() / SIDE * SIDE;
    k.if_(columns.clone().lt(SIDE), |k| read(k, to.clone(), from.clone(), depth, columns, row, pitch));
    k.if_(Scalar::from(SIDE - 1).lt(columns.clone()), |k| {
        read(k, to.clone(), from.clone(), depth, &whole, row, pitch);
        k.if_((columns.clone() % SIDE).ne(0), |k| {
            let (to, from) = (to.add(whole.clone() * pitch.clone()), from.add(columns.clone() - SIDE));
            read(k, to, from, depth, &SIDE.into(), row, pitch);
        });
    });
}

/// The right operand, transposed in memory: rows are its columns. On 310P its last 16 columns are read again likewise.
fn read_down(
    k: &mut Builder,
    to: View,
    from: View,
    depth: &Scalar,
    sizes: &Sizes,
    shape: &Matmul,
    pitch: &Scalar,
) {
    let (columns, row) = (&sizes.columns, shape.b.row);
    read(k, to.clone(), from.clone(), columns, depth, row, pitch);
    if k.arch() == Arch::P310 && shape.n >= SIDE && !shape.n.is_multiple_of(SIDE) {
        let whole = columns.clone() / SIDE * SIDE;
        k.if_((columns.clone() % SIDE).ne(0), |k| {
            // Rows of the first copy lie there.
            k.barrier(Barrier::Mte2);
            let (to, from) = (to.add(whole * SIDE), from.add((columns.clone() - SIDE) * row));
            read(k, to, from, &SIDE.into(), depth, row, pitch);
        });
    }
}

/// Elements that each pointer reaches.
fn check(arch: Arch, shape: &Matmul, name: &str) -> Result<[u64; 3]> {
    let Matmul { elem, out, m, n, k, batch, a, b, c, bias } = *shape;
    let fail = |rule, message| Err(refusal(name, "mm", rule, message));
    let types = elem == Elem::F16 || (matches!(elem, Elem::BF16 | Elem::F32) && arch == Arch::A2);
    if !types || !(out == Elem::F32 || out == elem) {
        return fail(
            Rule::Unsupported,
            format!("{elem} to {out} is no product that the kernel has on {arch}"),
        );
    }
    // Fractals of 32 bits keep their rows: these have to run along k.
    let along = [a.transposed, !b.transposed];
    if elem == Elem::F32 && along != [false; 2] {
        return fail(Rule::Unsupported, "rows of an f32 operand do not run along k".into());
    }
    if bias && c.transposed {
        return fail(Rule::Unsupported, "the result is transposed and has a bias".into());
    }
    for (what, size) in
        [("rows", m), ("columns", n), ("terms of a sum", k), ("batch", batch[0]), ("batch", batch[1])]
    {
        if !(1..=LIMIT).contains(&size) {
            return fail(Rule::Range, format!("{what}: {size}, outside 1 to {LIMIT}"));
        }
    }
    let mut lens = [0; 3];
    for ((name, x, rows, columns), len) in
        [("a", a, m, k), ("b", b, k, n), ("c", c, m, n)].into_iter().zip(&mut lens)
    {
        let (rows, columns) = if x.transposed { (columns, rows) } else { (rows, columns) };
        if x.row < columns || x.row > LIMIT {
            return fail(Rule::Range, format!("rows of {name} are {} apart, {columns} elements each", x.row));
        }
        let matrix = (rows - 1).checked_mul(x.row).and_then(|x| x.checked_add(columns));
        let outer = (batch[0] - 1).checked_mul(x.batch[0]);
        let inner = (batch[1] - 1).checked_mul(x.batch[1]);
        let total = matrix.zip(outer).zip(inner).and_then(|((m, o), i)| m.checked_add(o)?.checked_add(i));
        *len = match total {
            Some(len) if len <= i64::MAX as u64 / 16 => len,
            _ => return fail(Rule::Range, format!("{name} does not fit in memory")),
        };
        let dims = [(batch[0], x.batch[0]), (batch[1], x.batch[1]), (rows, x.row), (columns, 1)];
        if name == "c" && !distinct(dims) {
            return fail(
                Rule::Range,
                format!("results overlap: rows {} apart, matrices {:?}", x.row, x.batch),
            );
        }
    }
    if batch[0]
        .checked_mul(batch[1])
        .and_then(|x| x.checked_mul(m.div_ceil(ROWS))?.checked_mul(n.div_ceil(SIDE)))
        .is_none_or(|x| x > i64::MAX as u64 / 4)
    {
        return fail(Rule::Range, "there are too many tiles".into());
    }
    Ok(lens)
}

/// True where elements of dimensions (size, stride) have places of their own: each stride beyond all smaller ones'
/// reach.
fn distinct(mut dims: [(u64, u64); 4]) -> bool {
    dims.sort_by_key(|&(_, stride)| stride);
    let mut reach = 0u64;
    dims.into_iter().filter(|&(size, _)| size > 1).all(|(size, stride)| {
        let free = stride > reach;
        reach = reach.saturating_add((size - 1).saturating_mul(stride));
        free
    })
}
