//! Positions sorted by row, by the vector unit: a bitonic network (Batcher 1968) over keys in UB.
//!
//! Neither chip sorts i32, and the scalar unit would take 50 cycles for each step of a key. So keys are
//! stored in columns: key i of a network is in lane `i / C` of block `i % C`, for C blocks of eight. Two keys
//! that are compared are then in the same lane of two blocks, and an instruction compares hundreds. For the
//! last three merges, of lanes, groups of sixteen blocks are transposed: lanes become blocks. A part that a
//! merge needs in descending order is sorted with its sign changed.

use super::super::copies::read;
use super::REPORT;
use super::part::Partition;
use crate::chip::Arch;
use crate::kernel::finding::Result;
use crate::kernel::{
    Barrier, Binary, Buf, Builder, Elem, Gather, GatherMask, Gm, Over, Pipe, Program, Ramp, Scalar,
    ScalarBinary, ScalarType, Scaled, TransposeRows, Unit, View,
};

/// Keys that are made at a time, and edges.
const PIECE: u64 = 1024;
const EDGES: u64 = 512;
/// Lanes of a block.
const LANES: u64 = 8;

/// Workspace in UB to sort a slice.
pub(super) struct Sorter<'a> {
    part: &'a Partition,
    index: Gm,
    lists: [Buf; 2],
    rows: Buf,
    other: Buf,
    /// Both words of indices in i64.
    words: Option<Buf>,
    report: Buf,
}

/// Workspace in UB to find edges.
pub(super) struct Edges {
    bound: Buf,
    probe: Buf,
    found: Buf,
}

/// Sorts the slices for all cores.
///
/// Parameters: `index` \[n\], `lists` \[slices, slice\] i32, `edges` \[slices, all_edges\] i32, `fault`
/// \[slices, 8\] i32.
pub(super) fn program(part: &Partition) -> Result<Program> {
    let unit = if part.arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new("embedding_grad_sort", part.arch, unit);
    let (slice, slices) = (part.slice, part.slices);
    k.doc(format!("positions sorted by row: {} indices in {slices} slices of {slice}", part.shape.indices));
    k.doc(format!("edges: where each of {} ranges of {} rows begins in a slice", part.ranges, part.range));
    let index = k.input("index", part.shape.index, part.shape.indices);
    let lists = k.output("lists", Elem::I32, slices * slice);
    let edges = k.output("edges", Elem::I32, slices * part.all_edges);
    let fault = k.output("fault", Elem::I32, slices * REPORT);
    let pair = [k.ub("keys", Elem::I32, slice), k.ub("other_keys", Elem::I32, slice)];
    let sorter = Sorter::new(&mut k, part, index, pair);
    let count = EDGES.min(part.all_edges);
    let finder = Edges::new(&mut k, count);
    let edge = k.ub("edge", Elem::I32, count);
    k.for_each("slice", Scalar::BLOCK, slices, Scalar::BLOCKS, |k, s| {
        let list = sorter.sort(k, &s);
        k.flag(Pipe::V, Pipe::Mte3, 0);
        k.copy(lists.at(s.clone() * slice), list.at(0), slice);
        k.for_each("first", 0, part.all_edges, count, |k, first| {
            finder.find(k, part, list, edge, &first, count);
            let here = k.let_("here", Scalar::from(count).min(Scalar::from(part.all_edges) - first.clone()));
            k.flag(Pipe::V, Pipe::Mte3, 1);
            k.copy(edges.at(s.clone() * part.all_edges + first), edge.at(0), here);
            k.flag(Pipe::Mte3, Pipe::V, 0);
        });
        k.flag(Pipe::V, Pipe::S, 0);
        sorter.report(k, list, &s, fault.at(s.clone() * REPORT));
        k.flag(Pipe::Mte3, Pipe::V, 0);
    });
    k.finish()
}

impl<'a> Sorter<'a> {
    /// Buffers in addition to the two that hold keys.
    pub fn new(k: &mut Builder, part: &'a Partition, index: Gm, lists: [Buf; 2]) -> Sorter<'a> {
        let piece = PIECE.min(part.slice);
        if part.arch == Arch::P310 {
            let per_block = index.elem.per_block();
            k.slack(index, part.shape.indices.next_multiple_of(per_block) - part.shape.indices);
        }
        Sorter {
            part,
            index,
            lists,
            rows: k.ub("rows", Elem::I32, piece),
            other: k.ub("other_rows", Elem::I32, piece),
            words: (index.elem == Elem::I64).then(|| k.ub("words", Elem::I32, 2 * piece)),
            report: k.ub("report", Elem::I32, REPORT),
        }
    }

    /// Sorts slice `s`; gives the buffer that holds its keys, ascending.
    pub fn sort(&self, k: &mut Builder, s: &Scalar) -> Buf {
        self.keys(k, s);
        let blocks = self.part.slice / LANES;
        let (steps, merges) = (blocks.trailing_zeros(), self.part.slice.trailing_zeros());
        let mut at = 0;
        for merge in 1..=merges {
            negate(k, self.lists[at], blocks, merge);
            if merge > steps {
                self.transpose(k, &mut at, false);
                for lane in (0..merge - steps).rev() {
                    exchange(k, &self.lists, &mut at, blocks, 2 << lane);
                }
                self.transpose(k, &mut at, true);
            }
            for bit in (0..merge.min(steps)).rev() {
                exchange(k, &self.lists, &mut at, blocks, 1 << bit);
            }
            negate(k, self.lists[at], blocks, merge);
        }
        self.columns(k, &mut at);
        self.lists[at]
    }

    /// Makes the keys of slice `s`.
    fn keys(&self, k: &mut Builder, s: &Scalar) {
        let (part, index) = (self.part, self.index.elem);
        let piece = self.rows.len;
        let start = k.let_("start", s.clone() * part.slice);
        let count =
            k.let_("count", Scalar::from(part.slice).min(Scalar::from(part.shape.indices) - start.clone()));
        let raw = self.words.unwrap_or(self.rows);
        let near = raw.cast(index);
        let (rows, other) = (self.rows.at(0), self.other.at(0));
        let v = Lanes { count: piece };
        k.for_each("first", 0, part.slice, piece, |k, first| {
            // Positions without an index have -1.
            k.duplicate(raw.at(0), -1, Over::count(raw.len));
            k.flag(Pipe::V, Pipe::Mte2, 0);
            let here = k.let_("here", (count.clone() - first.clone()).max(0).min(piece));
            k.if_(here.clone().ne(0), |k| {
                read(k, near.at(0), self.index.at(start.clone() + first.clone()), &here);
            });
            k.flag(Pipe::Mte2, Pipe::S, 0);
            let block = index.per_block();
            let behind = here.clone().div_ceil(block as i64) * block;
            k.for_each("i", here, behind, 1, |k, i| k.store(near.at(i), -1));
            k.flag(Pipe::S, Pipe::V, 0);
            if let Some(words) = self.words {
                for (dst, pattern) in [(&rows, 1), (&other, 2)] {
                    k.issue(GatherMask {
                        dst: dst.clone(),
                        src: words.at(0).into(),
                        pattern,
                        count: 64.into(),
                        repeat: (2 * piece / 64).into(),
                    });
                }
                k.barrier(Barrier::V);
            }
            // From 1 to the number of rows, or 0 and one more for what is outside.
            v.scaled(k, Scaled::Maxs, &rows, &rows, -1);
            v.scaled(k, Scaled::Mins, &rows, &rows, part.shape.rows as i64);
            v.scaled(k, Scaled::Adds, &rows, &rows, 1);
            if self.words.is_some() {
                // Whose upper word is not 0 is outside.
                v.scaled(k, Scaled::Maxs, &other, &other, -1);
                v.scaled(k, Scaled::Mins, &other, &other, 1);
                v.binary(k, Binary::Mul, &other, &other, &other);
                v.binary(k, Binary::Mul, &other, &other, &rows);
                v.binary(k, Binary::Sub, &rows, &rows, &other);
            }
            let wrong = part.wrong() as i64;
            v.scaled(k, Scaled::Mins, &other, &rows, 1);
            v.scaled(k, Scaled::Muls, &other, &other, -wrong);
            v.scaled(k, Scaled::Adds, &other, &other, wrong);
            v.binary(k, Binary::Add, &rows, &rows, &other);
            if let Some(padding) = part.shape.padding {
                // Times the distance from the padding row, at most 1.
                let keys = self.lists[0].at(&first);
                v.scaled(k, Scaled::Adds, &other, &rows, -(padding as i64 + 1));
                v.scaled(k, Scaled::Muls, &keys, &other, -1);
                v.binary(k, Binary::Max, &other, &other, &keys);
                v.scaled(k, Scaled::Mins, &other, &other, 1);
                v.binary(k, Binary::Mul, &rows, &rows, &other);
            }
            v.scaled(k, Scaled::Muls, &rows, &rows, 1i64 << part.bits);
            k.issue(Ramp { dst: other.clone(), first: first.clone(), count: piece.into() });
            k.barrier(Barrier::V);
            v.binary(k, Binary::Add, &self.lists[0].at(first), &rows, &other);
        });
    }

    /// Exchanges lanes and blocks in every group of sixteen blocks, or back: block x, lane l and block 2 l +
    /// x / 8, lane x % 8.
    fn transpose(&self, k: &mut Builder, at: &mut usize, back: bool) {
        let (from, to) = (self.lists[*at], self.lists[1 - *at]);
        let straight = |buf: Buf| (0..16).map(|x| buf.at(x * LANES)).collect::<Vec<_>>();
        let rows = |buf: Buf| (0..16).map(|x| buf.at((2 * (x % 8) + x / 8) * LANES)).collect::<Vec<_>>();
        // Results 2 l and 2 l + 1 are the halves of lane l.
        let halves = |buf: Buf| (0..16).map(|y| buf.at((8 * (y % 2) + y / 2) * LANES)).collect::<Vec<_>>();
        let (src, dst) = match back {
            false => (straight(from), straight(to)),
            true => (rows(from), halves(to)),
        };
        self.move_groups(k, at, src, dst, 16);
    }

    /// Stores lanes contiguously.
    fn columns(&self, k: &mut Builder, at: &mut usize) {
        let (from, to) = (self.lists[*at], self.lists[1 - *at]);
        let src = (0..16).map(|x| from.at(x * LANES)).collect();
        let dst = (0..16).map(|y| to.at(y / 2 * (self.part.slice / LANES) + y % 2 * LANES)).collect();
        self.move_groups(k, at, src, dst, 2);
    }

    fn move_groups(&self, k: &mut Builder, at: &mut usize, src: Vec<View>, dst: Vec<View>, apart: u32) {
        let repeat = (self.part.slice / LANES / 16).into();
        k.issue(TransposeRows { dst, src, repeat, dst_repeat: apart, src_repeat: 16 });
        k.barrier(Barrier::V);
        *at = 1 - *at;
    }

    /// Writes what is to be said of the wrong indices of slice `s`, whose sorted keys the scalar unit may
    /// read.
    pub fn report(&self, k: &mut Builder, list: Buf, s: &Scalar, to: View) {
        let part = self.part;
        let good = search(k, list, |_, key, _| row(part, key).lt(part.wrong()));
        let start = k.let_("start", s.clone() * part.slice);
        let count = Scalar::from(part.slice).min(Scalar::from(part.shape.indices) - start.clone());
        let wrong = k.let_("wrong", count - good.clone());
        let (position, index) = (k.var("position", ScalarType::Int), k.var("bad_index", ScalarType::Int));
        k.set(position, -1);
        k.set(index, 0);
        k.if_(wrong.clone().ne(0), |k| {
            let key = k.load("key", list.at(good));
            k.set(position, start + place(part, &key));
            let bad = k.load("bad", self.index.at(position));
            k.set(index, bad);
        });
        k.store(self.report.at(0), wrong);
        k.store(self.report.at(1), position);
        k.store(self.report.cast(Elem::I64).at(1), index);
        for word in 4..REPORT {
            k.store(self.report.at(word), 0);
        }
        k.flag(Pipe::S, Pipe::Mte3, 0);
        k.copy(to, self.report.at(0), REPORT);
        k.flag(Pipe::Mte3, Pipe::S, 0);
    }
}

impl Edges {
    /// Workspace for `count` edges.
    pub fn new(k: &mut Builder, count: u64) -> Edges {
        Edges {
            bound: k.ub("bound", Elem::I32, count),
            probe: k.ub("probe", Elem::I32, count),
            found: k.ub("found", Elem::I32, count),
        }
    }

    /// `edge[i]` is the number of keys in `list` below those of range `first + i`, for `count` of them: a
    /// binary search for all at once.
    pub fn find(&self, k: &mut Builder, part: &Partition, list: Buf, edge: Buf, first: &Scalar, count: u64) {
        let v = Lanes { count };
        let [bound, probe, found, edge] = [self.bound, self.probe, self.found, edge].map(|b| b.at(0));
        k.issue(Ramp { dst: bound.clone(), first: first.clone(), count: count.into() });
        k.barrier(Barrier::V);
        v.scaled(k, Scaled::Muls, &bound, &bound, part.range as i64);
        v.scaled(k, Scaled::Adds, &bound, &bound, 1);
        v.scaled(k, Scaled::Mins, &bound, &bound, part.wrong() as i64);
        // The first key of a row: 310P shifts no keys.
        v.scaled(k, Scaled::Muls, &bound, &bound, 1i64 << part.bits);
        k.duplicate(edge.clone(), 0, Over::count(count));
        k.barrier(Barrier::V);
        k.for_each("i", 0, part.bits + 1, 1, |k, i| {
            // Half a list, a quarter of it, …, one, and one again.
            let half = Scalar::from(part.slice / 2).binary(ScalarBinary::Shr, i).max(1);
            let stride = k.let_("stride", half);
            v.scaled(k, Scaled::Adds, &probe, &edge, stride.clone() - 1);
            v.scaled(k, Scaled::Muls, &probe, &probe, 4);
            let offsets = View { elem: Elem::U32, ..probe.clone() };
            let (dst, src) = (found.clone(), list.at(0));
            k.issue(Gather { dst, src, offsets, base: 0.into(), count: count.into() });
            k.barrier(Barrier::V);
            // 1 where the key is below the bound.
            v.binary(k, Binary::Sub, &found, &bound, &found);
            v.scaled(k, Scaled::Maxs, &found, &found, 0);
            v.scaled(k, Scaled::Mins, &found, &found, 1);
            v.scaled(k, Scaled::Muls, &found, &found, stride);
            v.binary(k, Binary::Add, &edge, &edge, &found);
        });
    }
}

/// The row of a key, from 1.
pub(super) fn row(part: &Partition, key: &Scalar) -> Scalar {
    key.clone().binary(ScalarBinary::Shr, part.bits)
}

/// The position of a key in its slice.
pub(super) fn place(part: &Partition, key: &Scalar) -> Scalar {
    key.clone().binary(ScalarBinary::And, part.slice - 1)
}

/// The number of keys at the beginning of `list` for which `is` holds, by the scalar unit. `is` takes a key
/// and its place.
pub(super) fn search(
    k: &mut Builder,
    list: Buf,
    is: impl FnOnce(&mut Builder, &Scalar, &Scalar) -> Scalar,
) -> Scalar {
    let (low, high) = (k.var("low", ScalarType::Int), k.var("high", ScalarType::Int));
    k.set(low, 0);
    k.set(high, list.len);
    k.while_(Scalar::Var(low).lt(high), |k| {
        let middle = k.let_("middle", (low + high) / 2);
        let key = k.load("key", list.at(&middle));
        let holds = is(k, &key, &middle);
        k.if_else(holds, |k| k.set(low, middle.clone() + 1), |k| k.set(high, middle.clone()));
    });
    low.into()
}

/// Blocks as an instruction goes over them: eight with a stride, repeated, in rounds.
struct Walk {
    rounds: u64,
    round: u64,
    block: u32,
    repeat: u32,
    repeats: u64,
    /// Elements of a repeat.
    elements: u64,
}

impl Walk {
    /// The blocks below `blocks` whose number has no bit `bit`, a power of two.
    fn without(bit: u64, blocks: u64) -> Walk {
        let runs = blocks / (2 * bit);
        let eights = bit / 8;
        match eights {
            0 => Walk {
                rounds: bit,
                round: 1,
                block: 2 * bit as u32,
                repeat: 16 * bit as u32,
                repeats: (runs / 8).max(1),
                elements: LANES * runs.min(8),
            },
            // A stride between repeats is at most 255 blocks.
            _ if runs >= eights && bit <= 64 => Walk {
                rounds: eights,
                round: 8,
                block: 1,
                repeat: 2 * bit as u32,
                repeats: runs,
                elements: 64,
            },
            _ => Walk { rounds: runs, round: 2 * bit, block: 1, repeat: 8, repeats: eights, elements: 64 },
        }
    }

    /// Calls `write` with the element that each round begins at.
    fn each(&self, k: &mut Builder, write: impl Fn(&mut Builder, Scalar)) {
        match self.rounds {
            1 => write(k, 0.into()),
            rounds => {
                let round = self.round * LANES;
                k.for_each("from", 0, rounds * round, round, |k, from| write(k, from));
            }
        }
    }

    fn over(&self) -> Over {
        Over::repeats(self.elements, self.repeats)
    }
}

/// Puts the smaller key of each two blocks at distance `distance` into the first of them, the larger into the
/// second.
fn exchange(k: &mut Builder, lists: &[Buf; 2], at: &mut usize, blocks: u64, distance: u64) {
    let (from, to) = (lists[*at], lists[1 - *at]);
    let walk = Walk::without(distance, blocks);
    walk.each(k, |k, first| {
        let second = first.clone() + distance * LANES;
        let place = |buf: Buf, at: &Scalar| buf.at(at).strided(walk.block, walk.repeat);
        for (op, dst) in [(Binary::Min, &first), (Binary::Max, &second)] {
            k.binary(op, place(to, dst), place(from, &first), place(from, &second), walk.over());
        }
    });
    k.barrier(Barrier::V);
    *at = 1 - *at;
}

/// Changes the sign of the keys that merge `merge` sorts in descending order: those with that bit in their
/// number.
fn negate(k: &mut Builder, list: Buf, blocks: u64, merge: u32) {
    let steps = blocks.trailing_zeros();
    match merge.checked_sub(steps) {
        // All is one list.
        Some(3..) => return,
        Some(lane) => {
            let lanes = [0xaaaa_aaaa_aaaa_aaaa, 0xcccc_cccc_cccc_cccc, 0xf0f0_f0f0_f0f0_f0f0][lane as usize];
            // At most 255 repeats at a time.
            let repeats = (blocks / 8).min(128);
            let step = 64 * repeats;
            k.for_each("from", 0, list.len, step, |k, from| {
                k.scaled(Scaled::Muls, list.at(&from), list.at(&from), -1, Over::bits([lanes, 0], repeats));
            });
        }
        None => {
            let walk = Walk::without(1 << merge, blocks);
            walk.each(k, |k, from| {
                let keys = list.at(from + (LANES << merge)).strided(walk.block, walk.repeat);
                k.scaled(Scaled::Muls, &keys, &keys, -1, walk.over());
            });
        }
    }
    k.barrier(Barrier::V);
}

/// Arithmetic on so many i32, each instruction done before the next starts.
struct Lanes {
    count: u64,
}

impl Lanes {
    fn scaled(&self, k: &mut Builder, op: Scaled, dst: &View, src: &View, by: impl Into<Scalar>) {
        k.scaled(op, dst, src, by, Over::count(self.count));
        k.barrier(Barrier::V);
    }

    fn binary(&self, k: &mut Builder, op: Binary, dst: &View, a: &View, b: &View) {
        k.binary(op, dst, a, b, Over::count(self.count));
        k.barrier(Barrier::V);
    }
}
