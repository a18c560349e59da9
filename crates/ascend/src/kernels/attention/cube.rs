//! The cube core's part: products of queries and keys, and of weights and values.

use super::{CHUNK, Kernel, PRODUCTS, SCORES, SIDE, TILE, Task, WEIGHTS, hear, tell};
use crate::kernel::{
    Barrier, Buf, Builder, Elem, Fixpipe, Layout, Mmad, Pipe, Quant, Scalar, ScalarType, Space, UnitFlag,
    VarId, View,
};
use crate::kernels::matmul_read::read;
use crate::kernels::matmul_step::{Part, load};

/// Places in L1 for chunks of keys and of weights.
const CHUNKS: u64 = 4;
/// Flags between loads into L1 and those into L0: one for each of these places, the values and the queries.
const VALUES: i64 = 4;
const QUERIES: i64 = 5;
/// First flag from the cube unit to loads of L0.
const FIRST: i64 = 3;

/// Buffers and counters.
struct Cube<'a> {
    kernel: &'a Kernel,
    group: Scalar,
    queries: Buf,
    values: Buf,
    chunks: Buf,
    steps: [Buf; 2],
    sums: Buf,
    /// Number of chunks in L1, of steps in L0 and of sums so far.
    rounds: [VarId; 3],
}

/// A tile of keys of a task.
#[derive(Clone)]
struct Tile {
    /// Queries of the two vector cores.
    rows: [Scalar; 2],
    /// Offset of its first key or value.
    place: Scalar,
    /// Number of keys.
    keys: Scalar,
}

pub(super) fn write(k: &mut Builder, kernel: &Kernel) {
    let [width, value_width] = kernel.shape.widths;
    let (elem, rows) = (kernel.shape.elem, kernel.rows);
    let buffer = |k: &mut Builder, name, space, elem, len| k.buffer(name, space, elem, len, None);
    let widest = width.max(value_width).max(CHUNK);
    let cube = Cube {
        kernel,
        group: Scalar::BLOCK,
        queries: buffer(k, "queries_near", Space::L1, elem, 2 * rows * width),
        values: buffer(k, "values_near", Space::L1, elem, TILE * value_width),
        chunks: buffer(k, "chunks", Space::L1, elem, CHUNKS * CHUNK * widest),
        steps: [
            buffer(k, "left_steps", Space::L0a, elem, 2 * rows * widest),
            buffer(k, "right_steps", Space::L0b, elem, 2 * CHUNK * widest),
        ],
        sums: buffer(k, "sums", Space::L0c, Elem::F32, 2 * rows * widest),
        rounds: ["chunk", "l0_step", "sums_round"].map(|name| k.var(name, ScalarType::Int)),
    };
    cube.rounds.iter().for_each(|&round| k.set(round, 0));
    let names = ["before_rows", "before_rows_of_second", "before_place", "before_keys"];
    let before = names.map(|name| k.var(name, ScalarType::Int));
    let tiles = k.var("tiles", ScalarType::Int);
    k.set(tiles, 0);
    before.iter().for_each(|&var| k.set(var, 0));
    let previous =
        Tile { rows: [before[0].into(), before[1].into()], place: before[2].into(), keys: before[3].into() };

    // Flags: places in L1, L0 and L0C may be overwritten.
    (0..=QUERIES).for_each(|id| k.set_flag(Pipe::Mte1, Pipe::Mte2, id));
    for slot in 0..2 {
        k.set_flag(Pipe::M, Pipe::Mte1, FIRST + slot);
        k.set_flag(Pipe::Fix, Pipe::M, slot);
    }
    kernel.tasks(k, &cube.group, |k, task| {
        let rows = [0, 1].map(|core| k.let_("rows", kernel.own(task, core)));
        cube.read_queries(k, task);
        k.for_each("first", 0, &task.keys, TILE, |k, first| {
            let keys = k.let_("tile_keys", Scalar::from(TILE).min(task.keys.clone() - first.clone()));
            let place = |operand: usize| {
                kernel.place(operand, task) + first.clone() * kernel.shape.places[operand].row
            };
            let tile = Tile { rows: rows.clone(), place: place(1), keys: keys.clone() };
            cube.scores(k, &tile, &(tiles % 2));
            // The last scores of a task: the next one's queries may come.
            let last = task.keys.clone().lt(first.clone() + (TILE + 1));
            k.if_(last, |k| k.set_flag(Pipe::Mte1, Pipe::Mte2, QUERIES));
            tell(k, Pipe::Fix, SCORES);
            k.if_(Scalar::from(0).lt(tiles), |k| cube.products(k, &previous, &((tiles + 1) % 2)));
            for (var, value) in before.into_iter().zip([&rows[0], &rows[1], &place(2), &keys]) {
                k.set(var, value);
            }
            k.set(tiles, tiles + 1);
        });
    });
    k.if_(Scalar::from(0).lt(tiles), |k| cube.products(k, &previous, &((tiles + 1) % 2)));
    (0..=QUERIES).for_each(|id| k.wait_flag(Pipe::Mte1, Pipe::Mte2, id));
    for slot in 0..2 {
        k.wait_flag(Pipe::M, Pipe::Mte1, FIRST + slot);
        k.wait_flag(Pipe::Fix, Pipe::M, slot);
    }
}

impl Cube<'_> {
    /// Reads a task's queries.
    fn read_queries(&self, k: &mut Builder, task: &Task) {
        let [width, _] = self.kernel.shape.widths;
        let row = self.kernel.shape.places[0].row;
        let from = self.kernel.operands[0].at(self.kernel.place(0, task) + task.first.clone() * row);
        k.wait_flag(Pipe::Mte1, Pipe::Mte2, QUERIES);
        let pitch = (2 * self.kernel.rows).into();
        read(k, self.queries.at(0), from, &task.queries, &width.into(), row, &pitch);
        k.flag(Pipe::Mte2, Pipe::Mte1, QUERIES);
    }

    /// Reads rows into the next place for a chunk, and lets `work` use it.
    fn chunk(
        &self,
        k: &mut Builder,
        fetch: impl FnOnce(&mut Builder, View),
        work: impl FnOnce(&mut Builder, View),
    ) {
        let [_, right] = self.steps;
        let slot = k.let_("chunk_slot", self.rounds[0] % CHUNKS);
        let place = self.chunks.at(slot.clone() * (right.len / 2));
        k.wait_flag(Pipe::Mte1, Pipe::Mte2, slot.clone());
        fetch(k, place.clone());
        k.flag(Pipe::Mte2, Pipe::Mte1, slot.clone());
        work(k, place);
        k.set_flag(Pipe::Mte1, Pipe::Mte2, slot);
        k.set(self.rounds[0], self.rounds[0] + 1);
    }

    /// Scores of a tile.
    fn scores(&self, k: &mut Builder, tile: &Tile, place: &Scalar) {
        let [width, _] = self.kernel.shape.widths;
        let (rows, row) = (self.kernel.rows, self.kernel.shape.places[1].row);
        k.for_each("key", 0, &tile.keys, CHUNK, |k, key| {
            let columns = k.let_("columns", Scalar::from(CHUNK).min(tile.keys.clone() - key.clone()));
            let fractals = k.let_("fractals", columns.clone().div_ceil(SIDE as i64));
            let from = self.kernel.operands[1].at(tile.place.clone() + key.clone() * row);
            let fetch = |k: &mut Builder, to: View| {
                read(k, to, from, &columns, &width.into(), row, &(fractals.clone() * SIDE));
            };
            self.chunk(k, fetch, |k, keys| {
                for core in 0..2 {
                    let own = &tile.rows[core as usize];
                    k.if_(Scalar::from(0).lt(own.clone()), |k| {
                        let left = Part::Tile {
                            src: self.queries.at(0),
                            rows: 2 * rows,
                            columns: width,
                            from: [(core * rows).into(), 0.into()],
                            tile: [own.clone().div_ceil(SIDE as i64) * SIDE, width.into()],
                            transpose: false,
                        };
                        let right = Part::Run {
                            src: keys.clone(),
                            start: 0.into(),
                            count: fractals.clone() * (width / SIDE),
                            transpose: false,
                        };
                        self.step(k, [left, right], [own, &columns, &width.into()], 1.into());
                        let to = self.kernel.ring(&self.group, place, core) * TILE + key.clone();
                        self.store(k, self.kernel.scores.at(to), [own, &columns], TILE);
                    });
                }
            });
        });
    }

    /// Products of a tile's weights and values.
    fn products(&self, k: &mut Builder, tile: &Tile, place: &Scalar) {
        let [_, width] = self.kernel.shape.widths;
        let (rows, row) = (self.kernel.rows, self.kernel.shape.places[2].row);
        k.wait_flag(Pipe::Mte1, Pipe::Mte2, VALUES);
        let from = self.kernel.operands[2].at(&tile.place);
        read(k, self.values.at(0), from, &tile.keys, &width.into(), row, &TILE.into());
        k.flag(Pipe::Mte2, Pipe::Mte1, VALUES);
        hear(k, Pipe::Mte2, WEIGHTS);
        for core in 0..2 {
            let own = &tile.rows[core as usize];
            k.if_(Scalar::from(0).lt(own.clone()), |k| {
                let high = k.let_("high", own.clone().div_ceil(SIDE as i64) * SIDE);
                let from = k.let_("weights_place", self.kernel.ring(&self.group, place, core) * TILE);
                k.for_each("term", 0, &tile.keys, CHUNK, |k, term| {
                    let terms = k.let_("terms", Scalar::from(CHUNK).min(tile.keys.clone() - term.clone()));
                    let deep = terms.clone().div_ceil(SIDE as i64) * SIDE;
                    let from = self.kernel.weights.at(from.clone() + term.clone());
                    let fetch =
                        |k: &mut Builder, to: View| read(k, to, from, own, &terms, TILE, &rows.into());
                    self.chunk(k, fetch, |k, weights| {
                        let left = Part::Tile {
                            src: weights,
                            rows,
                            columns: CHUNK,
                            from: [0.into(), 0.into()],
                            tile: [high.clone(), deep.clone()],
                            transpose: false,
                        };
                        let right = Part::Tile {
                            src: self.values.at(0),
                            rows: TILE,
                            columns: width,
                            from: [term.clone(), 0.into()],
                            tile: [deep, width.into()],
                            // Fractals on their way to L0B are transposed in any case.
                            transpose: false,
                        };
                        let init = term.eq(0);
                        self.step(k, [left, right], [own, &width.into(), &terms], init);
                    });
                });
                let to = self.kernel.ring(&self.group, place, core) * width;
                self.store(k, self.kernel.products.at(to), [own, &width.into()], width);
            });
        }
        k.set_flag(Pipe::Mte1, Pipe::Mte2, VALUES);
        tell(k, Pipe::Fix, PRODUCTS);
    }

    /// A product of rows, columns and terms onto sums, which it begins where `init` is not 0.
    fn step(&self, k: &mut Builder, operands: [Part; 2], sizes: [&Scalar; 3], init: Scalar) {
        let slot = k.let_("step_slot", self.rounds[1] % 2);
        k.wait_flag(Pipe::M, Pipe::Mte1, slot.clone() + FIRST);
        let places = self.steps.map(|x| x.at(slot.clone() * (x.len / 2)));
        for (part, to) in operands.into_iter().zip(&places) {
            load(k, to, part);
        }
        k.flag(Pipe::Mte1, Pipe::M, slot.clone());
        let sums = k.let_("sums_slot", self.rounds[2] % 2);
        k.if_(init.clone(), |k| k.wait_flag(Pipe::Fix, Pipe::M, sums.clone()));
        let [m, n, terms] = sizes.map(Clone::clone);
        // Products of few fractals do not wait for each other's sums.
        let few = (m.clone() / SIDE * (n.clone() / SIDE)).lt(10);
        k.if_(few, |k| k.barrier(Barrier::M));
        let [a, b] = places;
        k.issue(Mmad {
            c: self.sums.at(sums * (self.sums.len / 2)),
            a,
            b,
            bias: None,
            m,
            n,
            k: terms,
            init,
            unit_flag: UnitFlag::Off,
            hf32: false,
        });
        k.set_flag(Pipe::M, Pipe::Mte1, slot + FIRST);
        k.set(self.rounds[1], self.rounds[1] + 1);
    }

    /// Writes sums of rows and columns.
    fn store(&self, k: &mut Builder, dst: View, [rows, columns]: [&Scalar; 2], pitch: u64) {
        let slot = k.let_("stored", self.rounds[2] % 2);
        k.flag(Pipe::M, Pipe::Fix, slot.clone());
        k.issue(Fixpipe {
            dst,
            src: self.sums.at(slot.clone() * (self.sums.len / 2)),
            n: columns.clone(),
            m: rows.clone(),
            src_stride: rows.clone().div_ceil(SIDE as i64) * SIDE,
            dst_stride: pitch.into(),
            layout: Layout::Nd,
            quant: Quant::Off,
            relu: false,
            unit_flag: UnitFlag::Off,
            atomic: None,
        });
        k.set_flag(Pipe::Fix, Pipe::M, slot);
        k.set(self.rounds[2], self.rounds[2] + 1);
    }
}
