//! The loops of a kernel over ranges, tiles and passes.

use super::body::Body;
use super::kernel::{Kernel, Partial, Split};
use super::register::Register;
use super::route::Extent;
use super::schedule::{Pass, Schedule, operands_of, reduced};
use super::space::{IterationSpace, Tile};
use super::value::{Held, Ty};
use super::writer::Writer;
use crate::kernel::{Buf, Duplicate, Elem, Gm, Over, Pipe, Scalar};
use crate::lower::Refusal;
use headwater_core::axes::{Axis, count};
use headwater_core::row::{Instr, RowProgram};

/// Ranges of rows with separate partial sums, at most: 48, 40, 24, 20 and 8 cores each have as many.
const RANGES: usize = 240;
/// Rows of a range, as far as there are so many: partial sums are at most a byte for each element that they
/// sum.
const SHORTEST: usize = 4;

/// Loops of a kernel.
pub(super) struct Loops {
    schedule: Schedule,
    /// True if rows come in several tiles that depend on each other.
    passes: bool,
    pub partial: Option<Partial>,
    /// Tasks: what blocks take in turn.
    pub tasks: usize,
    /// Tiles, or rows, of all ranges. Range i begins at `i · units / ranges`.
    units: usize,
    ranges: usize,
    /// True if one core does everything.
    pub alone: bool,
    columns: bool,
}

impl Loops {
    pub fn new(kernel: &Kernel, space: &IterationSpace, tile: &Tile) -> Result<Loops, Refusal> {
        let p = kernel.p;
        let reduces = p.body.iter().any(|i| matches!(i, Instr::Reduce(..)));
        let columns = p.body.iter().any(|i| matches!(i, Instr::Columns(..)));
        let (rows, cols) = space.outside(tile);
        let (rows, cols) = (count(rows), count(cols));
        // Tiles of one row, and those that are independent.
        let of_row = if tile.grid { 1 } else { cols * tile.tiles };
        let passes = !tile.grid && reduces && of_row > 1;
        let scalar_stores = p.body.iter().any(|i| matches!(i, Instr::Store(_, r) if p.scalars()[*r]));
        if passes && columns && !(tile.most * tile.inner).is_multiple_of(64) {
            return Err(Refusal::new("column sums of rows that are cut in odd pieces"));
        }
        if !tile.grid && !reduces && of_row > 1 && scalar_stores && !space.pointwise {
            return Err(Refusal::new("row values beside rows longer than a tile"));
        }
        if !tile.grid && columns && cols > 1 {
            return Err(Refusal::new("column sums of long rows over several axes"));
        }
        let units = if tile.grid { rows * tile.tiles } else { rows };
        let ranges = match kernel.split {
            _ if !columns => units,
            Split::Ranges => units.min(RANGES).min(count(&space.rows).div_ceil(SHORTEST)),
            Split::Whole => 1,
        };
        let across = if tile.grid || passes { 1 } else { of_row };
        let pitch = count(&space.cols).next_multiple_of(64);
        // Sums of rows that come in several tiles are partial at any rate.
        let partial = (columns && (ranges > 1 || passes)).then_some(Partial { ranges, pitch });
        let schedule = Schedule::new(kernel, space, tile, passes)?;
        Ok(Loops { schedule, passes, partial, tasks: ranges * across, units, ranges, alone: false, columns })
    }

    /// Number of times that an operand is read.
    pub fn reads(&self, p: &RowProgram, o: usize) -> usize {
        let passes = self.schedule.passes.iter().flat_map(|pass| [&pass.row, &pass.tile]);
        passes.filter(|list| operands_of(p, list).contains(&o)).count()
    }

    /// Writes the kernel's statements.
    pub fn write(&self, kernel: &Kernel, b: &mut Body) -> Result<(), Refusal> {
        b.tables();
        for &at in &self.schedule.fixed {
            b.kept[at] = true;
        }
        let reads = operands_of(b.p, &self.schedule.fixed);
        b.fetch(&reads);
        b.run(&self.schedule.fixed)?;
        let mut result = Ok(());
        let (from, step) =
            if self.alone { (Scalar::Int(0), Scalar::Int(1)) } else { (Scalar::BLOCK, Scalar::BLOCKS) };
        let tasks = self.tasks as u64;
        let each_core = self.tasks.div_ceil(kernel.chip.vector_cores as usize);
        let mut all = |b: &mut Body| {
            let bounds = [from.clone(), tasks.into(), step.clone()];
            if self.columns || self.passes {
                each(b, "task", bounds, |b, task| {
                    if result.is_ok() {
                        result = self.task(kernel, b, task);
                    }
                });
            } else {
                result =
                    self.pipeline(b, "task", bounds, each_core, 0, &mut |b, task| self.place(b, task), &[]);
            }
        };
        if self.alone {
            within(b, Scalar::BLOCK.eq(0), &mut all);
        } else {
            all(b);
        }
        result
    }

    fn task(&self, kernel: &Kernel, b: &mut Body, task: Scalar) -> Result<(), Refusal> {
        let tile = b.u.tile.clone();
        let (rows, cols) = b.space.outside(&tile);
        let (rows, cols) = (rows.to_vec(), cols.to_vec());
        b.position.clear();
        if self.passes && self.columns {
            return self.long_range(kernel, b, task, &rows, &cols);
        }
        if self.passes {
            let indices = decode(b, task, &sizes(&rows));
            b.position = indices.into_iter().zip(rows).collect();
            return self.row(b, &cols);
        }
        if tile.grid {
            return self.range(kernel, b, task, &mut |b, unit| self.place(b, unit));
        }
        // A range of rows and a tile of columns.
        let indices = decode(b, task, &[self.ranges, tile.tiles]);
        let [range, part] = &indices[..] else { return Ok(()) };
        place_lead(b, part.clone());
        let lead = b.position.clone();
        self.range(kernel, b, range.clone(), &mut |b, row| {
            b.position.clone_from(&lead);
            let indices = decode(b, row, &sizes(&rows));
            b.position.extend(indices.into_iter().zip(rows.clone()));
        })
    }

    /// Places the tile of a task: on the rows of a grid; or on a row and its columns.
    fn place(&self, b: &mut Body, task: Scalar) {
        let tile = b.u.tile.clone();
        let (rows, cols) = b.space.outside(&tile);
        let axes: Vec<Axis> = rows.iter().chain(cols).cloned().collect();
        let mut indices = decode(b, task, &[&sizes(&axes)[..], &[tile.tiles]].concat());
        let part = indices.pop().unwrap_or(Scalar::Int(0));
        b.position = indices.into_iter().zip(axes).collect();
        place_lead(b, part);
    }

    /// Runs over tiles. Operands of the next tile are read and results of the last are written while one is
    /// computed, in two sets of buffers; where there is one tile, or one core keeps an order, in one.
    #[allow(clippy::too_many_arguments)]
    fn pipeline(
        &self,
        b: &mut Body,
        name: &str,
        [from, to, step]: [Scalar; 3],
        number: usize,
        pass: usize,
        place: &mut dyn FnMut(&mut Body, Scalar),
        rooms: &[(usize, Buf)],
    ) -> Result<(), Refusal> {
        let Some(pass) = self.schedule.passes.get(pass) else { return Ok(()) };
        let reads = operands_of(b.p, &pass.tile);
        let writes = pass.tile.iter().any(|&at| matches!(b.p.body[at], Instr::Store(..)));
        let sets = if self.alone || number <= 1 { 1 } else { 2 };
        let flags: Vec<(Pipe, Pipe)> =
            [(!reads.is_empty(), Pipe::V, Pipe::Mte2), (writes, Pipe::Mte3, Pipe::V)]
                .into_iter()
                .filter_map(|(wanted, from, to)| wanted.then_some((from, to)))
                .collect();
        for set in 0..sets {
            flags.iter().for_each(|&(from, to)| b.u.w.k.set_flag(from, to, set));
        }
        let mut result = Ok(());
        let before = b.position.clone();
        each(b, name, [from, to.clone(), step.clone() * sets as u64], |b, first| {
            let tiles: Vec<Scalar> = (0..sets)
                .map(|set| match set {
                    0 => first.clone(),
                    _ => b.u.w.k.let_("next", first.clone() + step.clone() * set as u64),
                })
                .collect();
            for (set, tile) in tiles.iter().enumerate() {
                guarded(b, set, tile, &to, &mut |b| {
                    place(b, tile.clone());
                    b.fetch_ahead(&reads, set);
                });
            }
            for (set, tile) in tiles.iter().enumerate() {
                guarded(b, set, tile, &to, &mut |b| {
                    if sets > 1 {
                        place(b, tile.clone());
                    }
                    b.receive(&reads, set);
                    if writes {
                        b.u.w.k.wait_flag(Pipe::Mte3, Pipe::V, set);
                    }
                    b.set = Some(set);
                    if result.is_ok() {
                        result = if rooms.is_empty() { b.run(&pass.tile) } else { self.part(b, pass, rooms) };
                    }
                    b.set = None;
                    if !reads.is_empty() {
                        b.u.w.k.set_flag(Pipe::V, Pipe::Mte2, set);
                    }
                    if writes {
                        b.flush_behind(set);
                    }
                });
            }
        });
        for set in 0..sets {
            flags.iter().for_each(|&(from, to)| b.u.w.k.wait_flag(from, to, set));
        }
        // The flags may be set again.
        flags.iter().for_each(|&(from, to)| b.u.w.k.flag(to, from, sets));
        b.position = before;
        result
    }

    /// Runs over the units of a range and writes its column sums.
    fn range(
        &self,
        kernel: &Kernel,
        b: &mut Body,
        range: Scalar,
        place: &mut dyn FnMut(&mut Body, Scalar),
    ) -> Result<(), Refusal> {
        let tile = b.u.tile.clone();
        let extent = if tile.grid { Extent::Column } else { Extent::Full };
        let sums: Vec<usize> = (0..b.p.writes.len()).filter(|&w| kernel.summed(w)).collect();
        for &w in &sums {
            let acc = b.u.take(extent, Ty::F32);
            let over = Over::count(b.u.len(extent));
            b.u.w.vector(Duplicate { dst: acc.buf.at(0).into(), value: 0.0f32.into(), over });
            b.accs[w] = Some(acc.buf);
        }
        let [first, end] = self.bounds(b, &range);
        self.pipeline(b, "unit", [first, end, 1.into()], self.units.div_ceil(self.ranges), 0, place, &[])?;
        for &w in &sums {
            let Some(acc) = b.accs[w].take() else { continue };
            let o = b.p.reads.len() + w;
            match self.partial {
                None => {
                    b.send(o, acc);
                    b.u.w.release(acc);
                }
                Some(partial) => self.send_partial(b, o, acc, &range, partial, extent),
            }
        }
        b.flush();
        Ok(())
    }

    /// The first unit of a range, and one past its last.
    fn bounds(&self, b: &mut Body, range: &Scalar) -> [Scalar; 2] {
        let begin = |range: Scalar| range * self.units as u64 / self.ranges as u64;
        let k = &mut b.u.w.k;
        [k.let_("first", begin(range.clone())), k.let_("end", begin(range.clone() + 1))]
    }

    /// The same for rows that come in several tiles: sums of all columns are kept in UB.
    fn long_range(
        &self,
        kernel: &Kernel,
        b: &mut Body,
        range: Scalar,
        rows: &[Axis],
        cols: &[Axis],
    ) -> Result<(), Refusal> {
        let Some(Partial { pitch, .. }) = self.partial else { return Ok(()) };
        b.long_sums = true;
        let pitch = pitch as u64;
        let sums: Vec<usize> = (0..b.p.writes.len()).filter(|&w| kernel.summed(w)).collect();
        for &w in &sums {
            let acc = b.u.w.take(Elem::F32, pitch);
            b.u.w.vector(Duplicate { dst: acc.at(0).into(), value: 0.0f32.into(), over: Over::count(pitch) });
            b.accs[w] = Some(acc);
        }
        let [first, end] = self.bounds(b, &range);
        let mut result = Ok(());
        each(b, "row", [first, end, 1.into()], |b, row| {
            let indices = decode(b, row, &sizes(rows));
            b.position = indices.into_iter().zip(rows.iter().cloned()).collect();
            if result.is_ok() {
                result = self.row(b, cols);
            }
        });
        result?;
        b.u.w.flag(Pipe::V, Pipe::Mte3);
        for &w in &sums {
            let (Some(acc), Some(gm)) = (b.accs[w].take(), b.operands[b.p.reads.len() + w].gm) else {
                continue;
            };
            write_run(b, gm, range.clone() * pitch, acc, (pitch / 8).into());
            b.u.w.release(acc);
        }
        b.u.w.flag(Pipe::Mte3, Pipe::V);
        Ok(())
    }

    /// Writes the sums of a range into its row of the partial sums: whole blocks, for the pitch is a multiple
    /// of them.
    fn send_partial(
        &self,
        b: &mut Body,
        o: usize,
        acc: Buf,
        range: &Scalar,
        partial: Partial,
        extent: Extent,
    ) {
        let Some(gm) = b.operands[o].gm else { return };
        let mut at = range.clone() * partial.pitch as u64;
        if extent == Extent::Full {
            let tile = &b.u.tile;
            let first = b.position.last().map_or(Scalar::Int(0), |p| p.0.clone());
            at = at + first * tile.inner as u64;
        }
        b.u.w.flag(Pipe::V, Pipe::Mte3);
        let len = b.u.len(extent).min(partial.pitch as u64);
        let blocks: Scalar = match extent {
            Extent::Full => b.u.full.clone() / 8,
            _ => (len / 8).into(),
        };
        write_run(b, gm, at, acc, blocks);
        b.u.w.flag(Pipe::Mte3, Pipe::V);
        b.u.w.release(acc);
    }

    /// A row in several passes over its tiles.
    fn row(&self, b: &mut Body, cols: &[Axis]) -> Result<(), Refusal> {
        let tile = b.u.tile.clone();
        let before = b.position.clone();
        let row_values: Vec<usize> = (self.schedule.passes.iter())
            .flat_map(|p| p.row.iter().chain(&p.reductions).copied())
            .filter(|&at| !matches!(b.p.body[at], Instr::Store(..)))
            .collect();
        for &at in &row_values {
            b.kept[at] = true;
        }
        for (number, pass) in self.schedule.passes.iter().enumerate() {
            let reads = operands_of(b.p, &pass.row);
            b.fetch(&reads);
            b.run(&pass.row)?;
            b.flush();
            if pass.tile.is_empty() {
                continue;
            }
            let mut rooms = Vec::new();
            for &at in &pass.reductions {
                let Instr::Reduce(op, _) = b.p.body[at] else { continue };
                let room = b.u.reduction(op).ok_or_else(|| Refusal::new("a product over rows"))?;
                rooms.push((at, room));
            }
            let parts = [&sizes(cols)[..], &[tile.tiles]].concat();
            let count: usize = parts.iter().product();
            let bounds = [0.into(), (count as u64).into(), 1.into()];
            let place = &mut |b: &mut Body, part| {
                let mut indices = decode(b, part, &parts);
                let lead = indices.pop().unwrap_or(Scalar::Int(0));
                b.position.clone_from(&before);
                b.position.extend(indices.into_iter().zip(cols.iter().cloned()));
                place_lead(b, lead);
            };
            self.pipeline(b, "part", bounds, count, number, place, &rooms)?;
            for (at, room) in rooms {
                let held = b.u.first_lane(room);
                b.regs[at] = Some(Register::Held(held, None));
            }
        }
        for at in row_values {
            b.drop_reg(at);
        }
        Ok(())
    }

    fn part(&self, b: &mut Body, pass: &Pass, rooms: &[(usize, Buf)]) -> Result<(), Refusal> {
        let wanted: Vec<usize> = rooms.iter().filter_map(|(at, _)| reduced(b.p, *at)).collect();
        for &r in &wanted {
            b.kept[r] = true;
        }
        b.run(&pass.tile)?;
        for (at, room) in rooms {
            let Instr::Reduce(op, r) = b.p.body[*at] else { continue };
            let value = b.get(r)?;
            let x = b.held(value)?;
            if x.ty != Ty::F32 {
                return Err(Refusal::new("a reduction of integers over rows longer than a tile"));
            }
            let full: Held = b.u.widened(x, Extent::Full);
            b.u.give(x);
            let count = b.count.clone();
            b.u.reduce_tile(op, full, &count, *room);
            b.u.give(full);
        }
        for r in wanted {
            let own = pass.tile.contains(&r);
            if own {
                b.kept[r] = false;
                b.drop_reg(r);
            }
        }
        Ok(())
    }
}

fn sizes(axes: &[Axis]) -> Vec<usize> {
    axes.iter().map(|a| a.size).collect()
}

/// A number as indices, the last one the fastest.
fn decode(b: &mut Body, number: Scalar, sizes: &[usize]) -> Vec<Scalar> {
    let mut out = vec![Scalar::Int(0); sizes.len()];
    let moving: Vec<usize> = (0..sizes.len()).filter(|&i| sizes[i] > 1).collect();
    let mut rest = number;
    for (k, &i) in moving.iter().enumerate().rev() {
        if k == 0 {
            out[i] = rest.clone();
        } else {
            out[i] = b.u.w.k.let_("index", rest.clone() % sizes[i] as u64);
            rest = b.u.w.k.let_("rest", rest / sizes[i] as u64);
        }
    }
    out
}

/// Places the tile on its leading axis.
fn place_lead(b: &mut Body, part: Scalar) {
    let tile = b.u.tile.clone();
    let axis = if tile.grid { &b.space.rows[tile.lead] } else { &b.space.cols[tile.lead] };
    let axis = axis.clone();
    let first = match tile.tiles {
        1 => Scalar::Int(0),
        _ => b.u.w.k.let_("first", part * tile.most as u64),
    };
    if tile.tiles > 1 {
        let k = &mut b.u.w.k;
        b.lead = k.let_("lead", (Scalar::from(axis.size as u64) - first.clone()).min(tile.most as u64));
        let elements = b.lead.clone() * tile.inner as u64;
        if tile.grid {
            b.u.rows = k.let_("rows", elements.clone());
            let full = (b.u.rows.clone() * tile.pitch as u64).div_ceil(64) * 64u64;
            b.u.full = k.let_("full", full);
        } else {
            b.count = k.let_("count", elements.clone());
            b.u.full = k.let_("full", b.count.clone().div_ceil(64) * 64u64);
        }
    }
    b.column = if tile.grid { Scalar::Int(0) } else { first.clone() * tile.inner as u64 };
    b.position.push((first, axis));
}

/// Whole blocks from UB to GM.
fn write_run(b: &mut Body, gm: Gm, at: Scalar, from: Buf, blocks: Scalar) {
    b.u.w.k.copy_runs(gm.at(at), from.at(0), 1, blocks, 0, 0);
}

/// A loop around a body: from, to, step.
fn each(b: &mut Body, name: &str, [from, to, step]: [Scalar; 3], mut write: impl FnMut(&mut Body, Scalar)) {
    let arch = b.u.arch();
    let mut w = std::mem::replace(&mut b.u.w, Writer::new("none", arch));
    w.for_each(name, from, to, step, |w, i| {
        std::mem::swap(w, &mut b.u.w);
        write(b, i);
        std::mem::swap(w, &mut b.u.w);
    });
    b.u.w = w;
}

/// Statements for a set's tile, if there is one; the first of a round there is.
fn guarded(b: &mut Body, set: usize, tile: &Scalar, end: &Scalar, write: &mut dyn FnMut(&mut Body)) {
    match set {
        0 => write(b),
        _ => within(b, tile.clone().lt(end.clone()), write),
    }
}

/// Statements of a body under a condition.
fn within(b: &mut Body, cond: Scalar, write: &mut dyn FnMut(&mut Body)) {
    let arch = b.u.arch();
    let mut w = std::mem::replace(&mut b.u.w, Writer::new("none", arch));
    w.if_(cond, |w| {
        std::mem::swap(w, &mut b.u.w);
        write(b);
        std::mem::swap(w, &mut b.u.w);
    });
    b.u.w = w;
}
