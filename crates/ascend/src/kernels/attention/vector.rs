//! The vector cores' part: the online softmax, and sums of products.

use super::{Kernel, PRODUCTS, SCORES, SIDE, TILE, WEIGHTS, hear, tell};
use crate::kernel::{
    Barrier, Binary, Brcb, Buf, Builder, Elem, Over, Pipe, Reduction, Round, Scalar, ScalarType, Scaled,
    Unary, VarId, Vector, View,
};

/// Rows of scores per computation.
const ROWS: u64 = 16;
/// Elements of a place in UB for scores or products, and for weights or results.
const PLACE: u64 = ROWS * TILE;
/// Elements of f32 in a repeat, and in 32 bytes.
const LANES: u64 = 64;
const BLOCK: u64 = 8;
/// Stands for minus infinity, where differences must be numbers.
const LOW: f32 = -3e38;
/// Flag of the buffer of largest scores and denominators.
const NUMBERS: i64 = 2;

/// Buffers and counters.
struct Softmax<'a> {
    kernel: &'a Kernel,
    group: Scalar,
    core: Scalar,
    /// Scores and products, two places.
    near: Buf,
    /// Weights and results, two places.
    out: Buf,
    /// Sums of products.
    total: Buf,
    /// Results of the steps of a reduction.
    steps: [Buf; 2],
    /// Maxima of rows before and with this tile, and sums of exponentials so far and of this tile.
    most: Buf,
    next: Buf,
    sum: Buf,
    own: Buf,
    /// Factors on earlier products, of two tiles, and divisors, of two tasks.
    factors: Buf,
    divisors: Buf,
    /// Each row's number as a block.
    spread: Buf,
    /// Largest scores and denominators on their way to memory.
    numbers: Buf,
    /// The smallest numbers right of the diagonal of a square, the largest elsewhere.
    corner: Option<Buf>,
    /// Number of reads into `near` that were begun and used, and of writes from `out`.
    fetched: VarId,
    used: VarId,
    written: VarId,
}

/// A tile of a task.
#[derive(Clone)]
struct Tile {
    /// This core's queries.
    rows: Scalar,
    /// 1 if it is the first of the task, and if it is the last.
    ends: [Scalar; 2],
    /// Place of the task's divisors.
    turn: Scalar,
    /// Offset of this core's first result.
    result: Scalar,
}

pub(super) fn write(k: &mut Builder, kernel: &Kernel) {
    let (elem, rows, wide) = (kernel.shape.elem, kernel.rows, kernel.shape.widths[1]);
    let room = rows + BLOCK;
    let ub = |k: &mut Builder, name, len| k.ub(name, Elem::F32, len);
    let softmax = Softmax {
        kernel,
        group: k.let_("group", Scalar::BLOCK / 2),
        core: k.let_("core", Scalar::BLOCK % 2),
        near: ub(k, "near", 2 * PLACE),
        out: k.ub("weights_out", elem, 2 * PLACE),
        total: ub(k, "total", rows * wide),
        steps: [ub(k, "eighths", PLACE / BLOCK), ub(k, "few", PLACE / LANES)],
        most: ub(k, "most", room),
        next: ub(k, "next", room),
        sum: ub(k, "sum", room),
        own: ub(k, "own_sum", room),
        factors: ub(k, "factors", 2 * room),
        divisors: ub(k, "divisors", 2 * room),
        spread: ub(k, "spread", rows.min(PLACE / wide).max(ROWS) * BLOCK + LANES),
        numbers: ub(k, "numbers", 2 * room),
        corner: kernel.shape.causal.then(|| ub(k, "corner", SIDE * SIDE)),
        fetched: k.var("fetched", ScalarType::Int),
        used: k.var("used", ScalarType::Int),
        written: k.var("written", ScalarType::Int),
    };
    [softmax.fetched, softmax.used, softmax.written].iter().for_each(|&var| k.set(var, 0));
    let [tiles, turn] = ["tiles_done", "turn"].map(|name| k.var(name, ScalarType::Int));
    k.set(tiles, 0);
    k.set(turn, 0);
    let names = ["before_own", "before_first", "before_last", "before_turn", "before_result"];
    let before = names.map(|name| k.var(name, ScalarType::Int));
    before.iter().for_each(|&var| k.set(var, 0));
    let previous = Tile {
        rows: before[0].into(),
        ends: [before[1].into(), before[2].into()],
        turn: before[3].into(),
        result: before[4].into(),
    };
    softmax.open(k);
    kernel.tasks(k, &softmax.group, |k, task| {
        let own = k.let_("own", kernel.own(task, softmax.core.clone()));
        let query = k.let_("query", task.first.clone() + softmax.core.clone() * rows);
        let result = kernel.place(3, task) + query.clone() * kernel.shape.places[3].row;
        let result = k.let_("result", result);
        let numbers = kernel.shape.numbers;
        let number = task.sample.clone() * numbers[1] + task.head.clone() * numbers[0] + query.clone();
        let number = k.let_("numbers_place", number);
        let keys = &task.keys;
        k.for_each("first_key", 0, keys, TILE, |k, first| {
            let last = k.let_("last", keys.clone().lt(first.clone() + (TILE + 1)));
            let tile = Tile {
                rows: own.clone(),
                ends: [first.clone().eq(0), last.clone()],
                turn: turn % 2,
                result: result.clone(),
            };
            let seen = k.let_("seen", Scalar::from(TILE).min(keys.clone() - first.clone()));
            hear(k, Pipe::Mte2, SCORES);
            k.if_(Scalar::from(0).lt(own.clone()), |k| {
                softmax.weights(k, &tile, &(tiles % 2), &seen, &(query.clone() - first.clone()));
                k.if_(last, |k| softmax.numbers(k, &tile, &number));
            });
            tell(k, Pipe::Mte3, WEIGHTS);
            k.if_(Scalar::from(0).lt(tiles), |k| softmax.add(k, &previous, &((tiles + 1) % 2)));
            let values = [&tile.rows, &tile.ends[0], &tile.ends[1], &tile.turn, &tile.result];
            for (var, value) in before.into_iter().zip(values) {
                k.set(var, value);
            }
            k.set(tiles, tiles + 1);
        });
        k.set(turn, turn + 1);
    });
    k.if_(Scalar::from(0).lt(tiles), |k| softmax.add(k, &previous, &((tiles + 1) % 2)));
    for slot in 0..2 {
        k.wait_flag(Pipe::V, Pipe::Mte2, slot);
        k.wait_flag(Pipe::Mte3, Pipe::V, slot);
    }
    k.wait_flag(Pipe::Mte3, Pipe::V, NUMBERS);
}

impl Softmax<'_> {
    /// Constants, and flags: places may be overwritten.
    fn open(&self, k: &mut Builder) {
        // Rows that a tile lacks are reduced with the others.
        for buf in [self.steps[0], self.steps[1], self.most, self.next, self.own, self.factors, self.divisors]
        {
            k.duplicate(buf.at(0), 0.0, Over::count(buf.len));
        }
        k.duplicate(self.near.at(0), 0.0, Over::count(self.near.len));
        if let Some(corner) = self.corner {
            k.duplicate(corner.at(0), f32::INFINITY, Over::count(corner.len));
            k.barrier(Barrier::V);
            for row in 0..SIDE - 1 {
                let right = (1 << SIDE) - (1 << (row + 1));
                k.duplicate(corner.at(row * SIDE), LOW, Over::bits([right, 0], 1));
            }
        }
        k.barrier(Barrier::V);
        for slot in 0..2 {
            k.set_flag(Pipe::V, Pipe::Mte2, slot);
            k.set_flag(Pipe::Mte3, Pipe::V, slot);
        }
        k.set_flag(Pipe::Mte3, Pipe::V, NUMBERS);
    }

    /// Reads into the next place.
    fn fetch(&self, k: &mut Builder, read: impl FnOnce(&mut Builder, View)) {
        let slot = k.let_("fetch_slot", self.fetched % 2);
        k.wait_flag(Pipe::V, Pipe::Mte2, slot.clone());
        read(k, self.near.at(slot.clone() * PLACE));
        k.set_flag(Pipe::Mte2, Pipe::V, slot);
        k.set(self.fetched, self.fetched + 1);
    }

    /// Waits for the place that was read first; its number.
    fn arrived(&self, k: &mut Builder) -> Scalar {
        let slot = k.let_("near_slot", self.used % 2);
        k.wait_flag(Pipe::Mte2, Pipe::V, slot.clone());
        k.set(self.used, self.used + 1);
        slot
    }

    /// The next place for weights or results, as soon as it is free; its number.
    fn free(&self, k: &mut Builder) -> Scalar {
        let slot = k.let_("out_slot", self.written % 2);
        k.wait_flag(Pipe::Mte3, Pipe::V, slot.clone());
        k.set(self.written, self.written + 1);
        slot
    }

    /// Weights of a tile with `seen` valid keys, the first of them `place` before the first query.
    fn weights(&self, k: &mut Builder, tile: &Tile, place: &Scalar, seen: &Scalar, ahead: &Scalar) {
        let all = || Over::count(self.kernel.rows);
        k.if_(tile.ends[0].clone(), |k| {
            k.duplicate(self.most.at(0), LOW, all());
            k.duplicate(self.sum.at(0), 0.0, all());
            k.barrier(Barrier::V);
        });
        let ring = k.let_("ring", self.kernel.ring(&self.group, place, self.core.clone()) * TILE);
        let gap = |bytes: u64| (Scalar::from(TILE) - seen.clone()) * bytes;
        let read = |k: &mut Builder, row: &Scalar| {
            let members = k.let_("members", Scalar::from(ROWS).min(tile.rows.clone() - row.clone()));
            let from = self.kernel.scores.at(ring.clone() + row.clone() * TILE);
            self.fetch(k, |k, to| k.copy_pad(to, from, members, seen.clone() * 4, gap(4), gap(4) / 32));
        };
        read(k, &0.into());
        k.for_each("row", 0, &tile.rows, ROWS, |k, row| {
            let next = k.let_("next_row", row.clone() + ROWS);
            k.if_(next.clone().lt(tile.rows.clone()), |k| read(k, &next));
            let members = k.let_("own_rows", Scalar::from(ROWS).min(tile.rows.clone() - row.clone()));
            let slot = self.arrived(k);
            let x = self.near.at(slot.clone() * PLACE);
            let whole = || Over::count(members.clone() * TILE);
            if self.kernel.shape.scale != 1.0 {
                k.scaled(Scaled::Muls, &x, &x, self.kernel.shape.scale, whole());
                k.barrier(Barrier::V);
            }
            self.mask(k, &x, &members, seen, &(ahead.clone() + row.clone()));
            let [wide, few] = self.steps;
            let eighth = |k: &mut Builder, op: Reduction, to: View, from: View, repeats: Scalar| {
                k.reduce(op, to, from, LANES, repeats, 1);
                k.barrier(Barrier::V);
            };
            let groups = k.let_("row_groups", members.clone().div_ceil(BLOCK as i64));
            let repeats = members.clone() * (TILE / LANES);
            eighth(k, Reduction::BlockMax, wide.at(0), x.clone(), repeats.clone());
            eighth(k, Reduction::BlockMax, few.at(0), wide.at(0), members.clone());
            eighth(k, Reduction::BlockMax, self.spread.at(0), few.at(0), groups.clone());
            let (most, next) = (self.most.at(&row), self.next.at(&row));
            k.binary(Binary::Max, &next, most, self.spread.at(0), Over::count(members.clone()));
            k.barrier(Barrier::V);
            self.spread(k, next, &groups);
            self.by_row(k, Binary::Sub, &x, [TILE, TILE], &members);
            k.barrier(Barrier::V);
            k.unary(Unary::Exp, &x, &x, whole());
            k.barrier(Barrier::V);
            k.reduce(Reduction::BlockSum, wide.at(0), &x, LANES, repeats, 1);
            let to = self.free(k);
            let weights = self.out.at(to.clone() * PLACE);
            k.cast(&weights, &x, Round::Rint, whole());
            k.set_flag(Pipe::V, Pipe::Mte2, slot);
            k.flag(Pipe::V, Pipe::Mte3, to.clone());
            let place = self.kernel.weights.at(ring.clone() + row.clone() * TILE);
            k.copy_pad(place, weights, &members, seen.clone() * 2, gap(2) / 32, gap(2));
            k.set_flag(Pipe::Mte3, Pipe::V, to);
            k.barrier(Barrier::V);
            eighth(k, Reduction::BlockSum, few.at(0), wide.at(0), members);
            eighth(k, Reduction::BlockSum, self.own.at(row), few.at(0), groups);
        });
        let factors = self.factors.at(place.clone() * (self.factors.len / 2));
        k.binary(Binary::Sub, &factors, self.most.at(0), self.next.at(0), all());
        k.barrier(Barrier::V);
        k.unary(Unary::Exp, &factors, &factors, all());
        k.scaled(Scaled::Adds, self.most.at(0), self.next.at(0), 0.0, all());
        k.barrier(Barrier::V);
        k.binary(Binary::Mul, self.sum.at(0), self.sum.at(0), factors, all());
        k.barrier(Barrier::V);
        k.binary(Binary::Add, self.sum.at(0), self.sum.at(0), self.own.at(0), all());
        k.barrier(Barrier::V);
    }

    /// Fills scores of keys that no query sees, or that those of the rows do not see: the first row sees the
    /// first key and `ahead` more.
    fn mask(&self, k: &mut Builder, x: &View, members: &Scalar, seen: &Scalar, ahead: &Scalar) {
        let pitch = TILE as u32 / BLOCK as u32;
        // The last block also has keys past the last one: their number is known.
        let last = self.kernel.shape.lens[1] % TILE;
        let odd = last % BLOCK;
        if odd != 0 {
            k.if_(seen.clone().eq(last), |k| {
                let right = (1 << BLOCK) - (1 << odd);
                let to = x.add(last - odd).strided(1, pitch);
                k.duplicate(to, LOW, Over::bits([right, 0], members));
                k.barrier(Barrier::V);
            });
        }
        let there = k.let_("there", seen.clone().div_ceil(BLOCK as i64) * BLOCK);
        let from = match self.corner {
            Some(corner) => {
                let ahead = k.let_("ahead", ahead);
                k.if_(Scalar::from(-1).lt(ahead.clone()), |k| {
                    k.if_(ahead.clone().lt(TILE), |k| {
                        let square = x.add(&ahead).strided(1, pitch);
                        let over = Over::repeats(SIDE, members);
                        k.binary(Binary::Min, &square, &square, corner.at(0).strided(1, 2), over);
                        k.barrier(Barrier::V);
                    });
                });
                k.let_("unseen", Scalar::from(0).max(ahead + SIDE).min(there))
            }
            None => there,
        };
        k.if_(from.clone().lt(TILE), |k| {
            let part = k.let_("part", from.clone() % LANES);
            k.if_(Scalar::from(0).lt(part.clone()), |k| {
                let to = x.add(&from).strided(1, pitch);
                k.duplicate(to, LOW, Over::repeats(Scalar::from(LANES) - part, members));
            });
            k.for_each("column", from.div_ceil(LANES as i64) * LANES, TILE, LANES, |k, column| {
                k.duplicate(x.add(column).strided(1, pitch), LOW, Over::repeats(LANES, members));
            });
            k.barrier(Barrier::V);
        });
    }

    /// Makes a block of each row's number, eight rows to a group.
    fn spread(&self, k: &mut Builder, from: View, groups: &Scalar) {
        k.issue(Brcb { dst: self.spread.at(LANES).into(), src: from, repeat: groups.clone() });
        k.barrier(Barrier::V);
    }

    /// `x = op(x, spread number of the row)` for rows of so many columns with stride `pitch`.
    fn by_row(&self, k: &mut Builder, op: Binary, x: &View, [columns, pitch]: [u64; 2], members: &Scalar) {
        for column in (0..columns).step_by(LANES as usize) {
            let own: Vector = x.add(column).strided(1, (pitch / BLOCK) as u32);
            let number = self.spread.at(LANES).strided(0, 1);
            k.binary(op, &own, &own, number, Over::repeats(LANES.min(columns - column), members));
        }
    }

    /// Writes the largest scores and sums of a task's rows; makes the divisors of its results.
    fn numbers(&self, k: &mut Builder, tile: &Tile, to: &Scalar) {
        let all = || Over::count(self.kernel.rows);
        let divisors = self.divisors.at(tile.turn.clone() * (self.divisors.len / 2));
        // A row that sees nothing has a sum of 0, and a result of 0.
        k.scaled(Scaled::Maxs, divisors, self.sum.at(0), 0.5, all());
        k.wait_flag(Pipe::Mte3, Pipe::V, NUMBERS);
        let rooms = [0, self.numbers.len / 2].map(|at| self.numbers.at(at));
        for (room, own) in rooms.iter().zip([self.most, self.sum]) {
            k.scaled(Scaled::Adds, room, own.at(0), 0.0, all());
        }
        k.flag(Pipe::V, Pipe::Mte3, NUMBERS);
        for (room, gm) in rooms.iter().zip(&self.kernel.numbers) {
            k.copy_pad(gm.at(to), room.clone(), 1, tile.rows.clone() * 4, 0, 0);
        }
        k.set_flag(Pipe::Mte3, Pipe::V, NUMBERS);
        k.barrier(Barrier::V);
    }

    /// Adds the products of a tile; writes the results of a task whose last they are.
    fn add(&self, k: &mut Builder, tile: &Tile, place: &Scalar) {
        let wide = self.kernel.shape.widths[1];
        let most = PLACE / wide / BLOCK * BLOCK;
        hear(k, Pipe::Mte2, PRODUCTS);
        let ring = k.let_("products_place", self.kernel.ring(&self.group, place, self.core.clone()) * wide);
        let read = |k: &mut Builder, row: &Scalar| {
            let members = k.let_("product_rows", Scalar::from(most).min(tile.rows.clone() - row.clone()));
            let from = self.kernel.products.at(ring.clone() + row.clone() * wide);
            self.fetch(k, |k, to| k.copy(to, from, members * wide));
        };
        k.if_(Scalar::from(0).lt(tile.rows.clone()), |k| read(k, &0.into()));
        k.for_each("sum_row", 0, &tile.rows, most, |k, row| {
            let next = k.let_("next_sum_row", row.clone() + most);
            k.if_(next.clone().lt(tile.rows.clone()), |k| read(k, &next));
            let members = k.let_("sum_rows", Scalar::from(most).min(tile.rows.clone() - row.clone()));
            let groups = k.let_("sum_groups", members.clone().div_ceil(BLOCK as i64));
            let total = self.total.at(row.clone() * wide);
            let slot = self.arrived(k);
            let x = self.near.at(slot.clone() * PLACE);
            let whole = || Over::count(members.clone() * wide);
            k.if_else(
                tile.ends[0].clone(),
                |k| k.scaled(Scaled::Adds, &total, &x, 0.0, whole()),
                |k| {
                    let factors = place.clone() * (self.factors.len / 2) + row.clone();
                    self.spread(k, self.factors.at(factors), &groups);
                    self.by_row(k, Binary::Mul, &total, [wide, wide], &members);
                    k.barrier(Barrier::V);
                    k.binary(Binary::Add, &total, &total, &x, whole());
                },
            );
            k.set_flag(Pipe::V, Pipe::Mte2, slot);
            k.barrier(Barrier::V);
            k.if_(tile.ends[1].clone(), |k| {
                let divisors = tile.turn.clone() * (self.divisors.len / 2) + row.clone();
                self.spread(k, self.divisors.at(divisors), &groups);
                self.by_row(k, Binary::Div, &total, [wide, wide], &members);
                k.barrier(Barrier::V);
                let to = self.free(k);
                let result = self.out.at(to.clone() * PLACE);
                k.cast(&result, &total, Round::Rint, whole());
                k.flag(Pipe::V, Pipe::Mte3, to.clone());
                let pitch = self.kernel.shape.places[3].row;
                let place = self.kernel.out.at(tile.result.clone() + row.clone() * pitch);
                k.copy_pad(place, result, &members, wide * 2, 0, (pitch - wide) * 2);
                k.set_flag(Pipe::Mte3, Pipe::V, to);
                k.barrier(Barrier::V);
            });
        });
    }
}
