//! Attention by cooperating cube and vector cores, with an online softmax (A2; Dao 2022, "FlashAttention").
//!
//! A group of a cube core and its two vector cores has a task: a band of queries of one head, half of it for
//! each vector core. Keys come in tiles. The cube writes a tile's scores, f32, into a ring in memory; the
//! vector cores write its weights, `exp(score - maximum so far)`, into another; the cube writes their product
//! with the values into a third. The vector cores add products up in f32, scaled down when a maximum has
//! grown, and divide at the end. The cube is one tile ahead, also from task to task. A row is summed in the
//! order of its tiles, whatever core has it: the bits are the same for any number of blocks.
//!
//! Three flags between cores order all accesses to the rings of two places. Scores of a tile overwrite those
//! of the tile two before it: the cube has then waited for that tile's weights, which were computed from
//! them. The same goes for weights and for products, by the flag that comes next.

mod cube;
mod vector;

use super::refusal;
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{Builder, CrossSet, CrossWait, Elem, Gm, ParamKind, Pipe, Program, Scalar, Unit};

/// Keys of a tile.
const TILE: u64 = 512;
/// Keys of a chunk: so many columns of scores, and terms of a product, are computed by one instruction.
const CHUNK: u64 = 128;
/// Rows of a fractal.
const SIDE: u64 = 16;
/// Most queries of a vector core.
const MOST: u64 = 128;
/// Largest size of a head.
const WIDEST: u64 = 128;
/// Longest row that copies into fractals step over.
const LONGEST: u64 = 65535;
/// Largest size of an operand in elements.
const LIMIT: u64 = i32::MAX as u64;

/// Scores, weights and products of a tile are in memory.
const SCORES: i64 = 0;
const WEIGHTS: i64 = 1;
const PRODUCTS: i64 = 2;

/// Place of rows in memory: elements from one row, head and sample to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadRows {
    /// From one row to the next.
    pub row: u64,
    /// From one head to the next.
    pub head: u64,
    /// From one sample to the next.
    pub sample: u64,
}

/// Shapes of [`attention()`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// Type of all operands but the largest scores and denominators: f16 or bf16.
    pub elem: Elem,
    /// Number of samples.
    pub samples: u64,
    /// Heads of queries, keys and values; the first is a multiple of the others.
    pub heads: [u64; 3],
    /// Number of queries and of keys.
    pub lens: [u64; 2],
    /// Elements of a query or key, and of a value.
    pub widths: [u64; 2],
    /// Places of queries, keys, values and results.
    pub places: [HeadRows; 4],
    /// From one head and sample of the largest scores, and of the denominators, to the next; rows are
    /// contiguous.
    pub numbers: [u64; 2],
    /// Factor on the scores.
    pub scale: f32,
    /// True if query i sees the keys up to i alone.
    pub causal: bool,
    /// Most blocks that are launched: cube cores.
    pub blocks: u64,
}

impl Attention {
    /// Queries of a vector core: of multiples of 16 the one that takes least by an estimate.
    pub fn rows(&self) -> u64 {
        let [queries, keys] = self.lens;
        let matrices = self.samples.saturating_mul(self.heads[0]);
        let time = |rows: u64| {
            let rounds = matrices.saturating_mul(queries.div_ceil(2 * rows)).div_ceil(self.blocks.max(1));
            // Cycles of 64 scores on the vector unit, and 2700 bytes a cycle of L2: scores and weights go
            // there and back, keys and values are read for each band. 3000 cycles a task until its pipes are
            // full.
            let vector = rounds as f64 * rows as f64 * keys as f64 * 12.0 / 64.0;
            let bytes = 12.0 + self.widths.iter().sum::<u64>() as f64 / rows as f64;
            let memory = matrices as f64 * queries as f64 * keys as f64 * bytes / 2700.0;
            vector.max(memory) + 3000.0 * rounds as f64
        };
        // The cube unit reads a single row otherwise than two.
        let all = (1..=MOST / SIDE).rev().map(|i| i * SIDE).filter(|rows| queries % rows != 1);
        all.min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap_or(SIDE)
    }

    /// Elements of the workspace for scores, likewise for weights, and for products.
    pub fn rings(&self) -> [u64; 2] {
        let rows = self.blocks * 4 * self.rows();
        [rows * TILE, rows * self.widths[1]]
    }

    /// Tasks: bands of queries of all heads.
    pub fn tasks(&self) -> u64 {
        self.samples * self.heads[0] * self.lens[0].div_ceil(2 * self.rows())
    }
}

/// `softmax(scale · q · kᵀ) · v` of every head, and each row's largest score and sum of exponentials less
/// that.
///
/// Parameters: the address to synchronise by; `q`, `k`, `v`, `out`; `largest` and `denominators`, f32;
/// `scores` \[blocks, 2, band, 512\] f32, `weights` likewise in the operands' type, `products` \[blocks, 2,
/// band, width of a value\] f32: workspace.
///
/// # Errors
/// `Unsupported` for another chip or types. `Range` for empty shapes, heads that are no multiples of 16
/// elements or have more than 128, rows whose stride is too large, operands beyond i32 and a single query.
pub fn attention(arch: Arch, shape: &Attention) -> Result<Program> {
    let name = format!("attention_{}", shape.elem);
    check(arch, shape, &name)?;
    let Attention { elem, samples, heads, lens, widths, places, causal, .. } = *shape;
    let (rows, rings) = (shape.rows(), shape.rings());
    let mut k = Builder::new(&name, arch, Unit::Cube);
    let seen = if causal { ", keys up to the query's position" } else { "" };
    k.doc(format!(
        "out = softmax({:e} q k^T) v: {samples} x {} heads, {} queries and {} keys of {}, values of {}, {elem}{seen}",
        shape.scale, heads[0], lens[0], lens[1], widths[0], widths[1]
    ));
    k.doc(format!("online softmax over tiles of {TILE} keys; {rows} queries to a vector core"));
    k.param("sync_address", ParamKind::Sync);
    let counts = [heads[0], heads[1], heads[2], heads[0]];
    let long = [lens[0], lens[1], lens[1], lens[0]];
    let wide = [widths[0], widths[0], widths[1], widths[1]];
    let reach = |i: usize| {
        let HeadRows { row, head, sample } = places[i];
        (samples - 1) * sample + (counts[i] - 1) * head + (long[i] - 1) * row + wide[i]
    };
    let numbers = (samples - 1) * shape.numbers[1] + (heads[0] - 1) * shape.numbers[0] + lens[0];
    let kernel = Kernel {
        shape: *shape,
        rows,
        operands: [k.input("q", elem, reach(0)), k.input("k", elem, reach(1)), k.input("v", elem, reach(2))],
        out: k.output("out", elem, reach(3)),
        numbers: ["largest", "denominators"].map(|name| k.output(name, Elem::F32, numbers)),
        scores: k.workspace("scores", Elem::F32, rings[0]),
        weights: k.workspace("weights", elem, rings[0]),
        products: k.workspace("products", Elem::F32, rings[1]),
    };
    cube::write(&mut k, &kernel);
    k.part(Unit::Vector);
    vector::write(&mut k, &kernel);
    k.finish()
}

/// Refuses shapes that the kernel cannot have.
fn check(arch: Arch, shape: &Attention, name: &str) -> Result<()> {
    let fail = |rule, message: String| Err(refusal(name, "attention", rule, message));
    let Attention { elem, samples, heads, lens, widths, places, blocks, .. } = *shape;
    if !arch.split() {
        return fail(Rule::Unsupported, format!("architecture {arch} has no cores of both kinds"));
    }
    if !matches!(elem, Elem::F16 | Elem::BF16) {
        return fail(Rule::Unsupported, format!("operands are {elem}; f16 and bf16 are supported"));
    }
    let sizes = [samples, heads[0], heads[1], heads[2], lens[0], lens[1], blocks];
    if sizes.contains(&0) || sizes.iter().any(|&x| x > LIMIT) || lens[0] == 1 {
        return fail(Rule::Range, format!("sizes are {sizes:?}, outside 1 to {LIMIT}, or a single query"));
    }
    if widths.iter().any(|w| !w.is_multiple_of(SIDE) || !(SIDE..=WIDEST).contains(w)) {
        return fail(
            Rule::Range,
            format!("heads have {widths:?} elements, no multiples of 16 up to {WIDEST}"),
        );
    }
    if heads.iter().any(|h| !heads[0].is_multiple_of(*h)) {
        return fail(Rule::Range, format!("heads are {heads:?}, not multiples of each other"));
    }
    if places.iter().zip([0, 0, 1, 1]).any(|(x, w)| x.row < widths[w] || x.row > LONGEST) {
        return fail(
            Rule::Range,
            format!("rows are too near to each other or further than {LONGEST} elements"),
        );
    }
    let far = |x: &HeadRows| {
        let ends = [(samples, x.sample), (heads[0], x.head), (lens[0].max(lens[1]), x.row)];
        ends.iter().try_fold(0u64, |sum, (n, step)| sum.checked_add(n.checked_mul(*step)?))
    };
    if places.iter().any(|x| far(x).is_none_or(|end| end > LIMIT)) {
        return fail(Rule::Range, format!("an operand has more than {LIMIT} elements"));
    }
    Ok(())
}

/// Shapes and parameters that both parts share.
struct Kernel {
    shape: Attention,
    /// Queries of a vector core; a band has twice as many.
    rows: u64,
    /// Queries, keys and values.
    operands: [Gm; 3],
    out: Gm,
    /// Largest scores and denominators.
    numbers: [Gm; 2],
    scores: Gm,
    weights: Gm,
    products: Gm,
}

/// A band of queries of one head.
struct Task {
    sample: Scalar,
    head: Scalar,
    /// The first query.
    first: Scalar,
    /// Number of queries.
    queries: Scalar,
    /// Number of keys that any of them sees, of a causal mask rounded up to 64.
    keys: Scalar,
}

impl Kernel {
    /// Runs `work` for each task of a group of cores. Long ones come first; every other round goes back
    /// through the groups, so that they end at the same time.
    fn tasks(&self, k: &mut Builder, group: &Scalar, work: impl FnOnce(&mut Builder, &Task)) {
        let Attention { samples, heads, lens, causal, .. } = self.shape;
        let band = 2 * self.rows;
        let (matrices, bands) = (samples * heads[0], lens[0].div_ceil(band));
        let tasks = matrices * bands;
        let rounds = (Scalar::from(tasks) + Scalar::BLOCKS - 1) / Scalar::BLOCKS;
        k.for_each("round", 0, rounds, 1, |k, round| {
            let back = round.clone() % 2 * (Scalar::BLOCKS - 1 - group.clone() * 2);
            let task = k.let_("task", round * Scalar::BLOCKS + group.clone() + back);
            k.if_(task.clone().lt(tasks), |k| {
                let matrix = k.let_("matrix", task.clone() % matrices);
                let first = k.let_("first_query", (Scalar::from(bands - 1) - task / matrices) * band);
                let queries =
                    k.let_("queries", Scalar::from(band).min(Scalar::from(lens[0]) - first.clone()));
                let keys = match causal {
                    true => {
                        let seen = (first.clone() + queries.clone()).div_ceil(64) * 64;
                        k.let_("keys", Scalar::from(lens[1]).min(seen))
                    }
                    false => lens[1].into(),
                };
                let head = k.let_("head", matrix.clone() % heads[0]);
                work(k, &Task { sample: matrix / heads[0], head, first, queries, keys });
            });
        });
    }

    /// Offset of a head's first row in an operand, by its number among [`Attention::places`].
    fn place(&self, operand: usize, task: &Task) -> Scalar {
        let x = self.shape.places[operand];
        let shared = if operand < 3 { self.shape.heads[0] / self.shape.heads[operand] } else { 1 };
        let head = if shared > 1 { task.head.clone() / shared } else { task.head.clone() };
        task.sample.clone() * x.sample + head * x.head
    }

    /// Queries of one of the two vector cores.
    fn own(&self, task: &Task, core: impl Into<Scalar>) -> Scalar {
        let before = core.into() * self.rows;
        Scalar::from(0).max(Scalar::from(self.rows).min(task.queries.clone() - before))
    }

    /// The first row of a vector core in a place of a ring.
    fn ring(&self, group: &Scalar, place: &Scalar, core: impl Into<Scalar>) -> Scalar {
        ((group.clone() * 2 + place.clone()) * 2 + core.into()) * self.rows
    }
}

/// Tells the cores of the other kind in the group.
fn tell(k: &mut Builder, pipe: Pipe, flag: i64) {
    k.issue(CrossSet { mode: 2, pipe, id: flag.into() });
}

/// Waits for the cores of the other kind in the group.
fn hear(k: &mut Builder, pipe: Pipe, flag: i64) {
    k.issue(CrossWait { mode: 2, pipe, id: flag.into() });
}
