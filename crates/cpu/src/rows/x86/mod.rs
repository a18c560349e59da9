//! The x86-64 back end: row programs as machine code, with AVX2 or AVX-512, to the interpreter's bits.
//!
//! Each phase is one loop over the columns that keeps everything in registers, and one around it over rows.
//! Or all phases of short rows are one function ([`whole_rows`]). The first step is instruction selection
//! into an SSA form (`ir`, `select`, `row_scalars`, `elementary`, `rounding`). Register allocation
//! (`regalloc`), encoding (`emit`, `store`, `assembler`) and loops (`loops`, `frame`) follow. Columns that
//! fill no group are the tail (`tails`).
//!
//! The interpreter runs what has no translation: other instruction sets, layouts whose columns are not
//! contiguous runs, f64, and some functions.

mod assembler;
mod avx512;
mod elementary;
mod emit;
mod frame;
mod ir;
mod loops;
#[cfg(test)]
mod random;
mod regalloc;
mod rounding;
mod row_scalars;
mod select;
mod store;
mod tails;
#[cfg(test)]
mod tests;
mod whole_rows;

use super::Program;
use super::code::{Kind, Reg, Register};
use super::interpret::functions::Real;
use super::interpret::loops::{CHUNK, LANES};
use super::interpret::run::{Place, Run};
use super::interpret::scratch::Worker;
use super::space::count;
use super::types::Ty;
use crate::element;
use crate::pool::Shared;
use crate::tier::Tier;
use assembler::{Assembler, Width};
use frame::{Frame, LoopOptions};
use half::{bf16, f16};
use headwater_core::DType;
use headwater_core::expr::Binary;
use headwater_core::row::Reduce;
use ir::{Body, Ins, Lookup, LookupSource, Source, Stream};
use loops::INTERLEAVED;
use memmap2::Mmap;
use std::ops::Range;
use whole_rows::WholeRows;

/// Fewer columns than this do not pay for a call for each row.
const LEAST: usize = 24;
/// Longer code than this is not written four times over for a group of `LANES` columns.
const SHORT: usize = 32;
/// Bytes that the rows of a tile should not exceed. Later phases find them in the second-level cache, and so
/// does the first phase of the next tile, which one of them prefetches.
const TILE: usize = 96 << 10;
/// Prefetch distance in bytes; rounded to whole rows.
const AHEAD: usize = 2048;
/// Rows that a call of a function takes, at most.
const BATCH: usize = 16;
/// Bytes of a line of the cache.
const LINE: usize = 64;
/// Bytes of a thread's copy of what is left of a stream, in groups of columns.
const REST: usize = 8 * LANES;

/// The machine code of a program.
#[derive(Debug)]
pub(super) struct Machine {
    code: Mmap,
    form: Form,
    /// Bytes that a thread works in.
    pub context: usize,
}

#[derive(Debug)]
enum Form {
    /// Phase after phase of a tile.
    Phases(Vec<Phase>),
    /// Row after row.
    Rows(WholeRows),
}

#[derive(Debug)]
struct Phase {
    streams: Vec<Stream>,
    /// Bytes from row to row, within a stretch of rows.
    steps: Vec<isize>,
    /// The code takes these steps by itself.
    steady: bool,
    /// Rows longer than a tile, in one stretch: the code takes tile after tile as if they were rows. Bytes
    /// from one to the next; none if tiles need not be distinguished because nothing is reduced.
    tiles: Option<Vec<i32>>,
    slots: Vec<Slot>,
    /// Number and kind of each reduction.
    folds: Vec<(usize, Reduce)>,
    lookups: Vec<Lookup>,
    /// True if the phase only copies.
    idle: bool,
    frame: Frame,
    group: usize,
    /// Bytes of a copy of a stream whose stretches are compacted; 0 if they are whole groups.
    copy: usize,
    /// Entry points: full groups (cached, non-temporal) and the tail.
    whole: usize,
    past: Option<usize>,
    rest: usize,
}

/// A number of the row: its register, its type, and bytes from row to row.
#[derive(Clone, Copy, Debug)]
struct Slot {
    reg: Reg,
    ty: Ty,
    step: usize,
}

impl Phase {
    /// Bytes that a thread works in. They are the frame, copies of what is left of streams, the numbers and
    /// lanes of some rows, and copies of whole streams.
    fn context(&self) -> usize {
        self.copies_at() + self.copy * self.streams.len()
    }

    fn copies_at(&self) -> usize {
        self.lanes_at() + 4 * BATCH * LANES * self.folds.len()
    }

    fn table_at(&self) -> usize {
        self.frame.size.next_multiple_of(LINE) + (self.streams.len() + 1) * REST
    }

    fn lanes_at(&self) -> usize {
        (self.table_at() + 4 * BATCH * self.slots.len()).next_multiple_of(LINE)
    }

    /// Bytes from tile to tile of each stream, if the code takes tiles as if they were rows.
    fn tile_steps(&self) -> Option<&[i32]> {
        self.tiles.as_deref().filter(|steps| !steps.is_empty())
    }

    /// The copy of a stream.
    fn copy_of(&self, context: *mut u8, stream: usize) -> *mut u8 {
        context.wrapping_add(self.copies_at() + stream * self.copy)
    }

    /// The numbers that accumulators begin with.
    fn init(&self, context: *mut u8) -> *mut u8 {
        context.wrapping_add(self.frame.init)
    }

    /// The numbers of some rows.
    fn table(&self, context: *mut u8) -> *mut u8 {
        context.wrapping_add(self.table_at())
    }

    /// The lanes of the reductions of some rows.
    fn lanes(&self, context: *mut u8) -> *mut u8 {
        context.wrapping_add(self.lanes_at())
    }
}

type Function = unsafe extern "sysv64" fn(*mut u8, usize);

impl Program {
    /// Writes the phases as machine code, if there is a translation, and sizes tiles for it.
    pub(super) fn assemble(&mut self, reads: usize) {
        let cols = count(&self.cols);
        let fits = cols >= LEAST && i32::try_from(cols).is_ok() && self.tiling.tile_cols <= CHUNK;
        if self.tiling.across || !fits || !self.columns_follow() {
            return;
        }
        let old = self.tiling;
        let moves = |o: &usize| self.cols.iter().any(|c| c.steps[*o] != 0);
        let bytes: usize = (0..reads).filter(moves).map(|o| self.sites[o].dtype.size()).sum();
        let kept = 4 * self.code.regs.iter().filter(|r| r.kind == Kind::Kept).count();
        let t = &mut self.tiling;
        if !t.split {
            let rows = count(&self.rows);
            if self.code.sums.is_empty() {
                // Blocks of several tiles, where there are enough of them.
                let many = rows.div_ceil(t.block_rows) / 64;
                t.block_rows *= many.clamp(1, 4);
            }
            t.tile_rows = (TILE / (cols * (bytes + kept)).max(1)).clamp(1, 64).min(t.block_rows);
        }
        self.machine = self.machine(reads);
        if self.machine.is_none() {
            self.tiling = old;
        }
    }

    /// True if the columns of every operand that has any follow each other in memory, in one stretch or in
    /// several.
    fn columns_follow(&self) -> bool {
        let Some((last, outer)) = self.cols.split_last() else { return false };
        let follow = |o: usize| match last.steps[o] {
            0 => outer.iter().all(|a| a.steps[o] == 0),
            step => step == 1,
        };
        (0..self.sites.len()).all(follow)
    }

    /// True if the columns are one stretch, or stretches of whole groups: the lanes of sums then go on from
    /// one to the next.
    fn whole_stretches(&self) -> bool {
        let size = self.cols.last().map_or(0, |c| c.size);
        self.cols.len() == 1 || size.is_multiple_of(LANES) && self.tiling.tile_cols.is_multiple_of(LANES)
    }

    fn machine(&self, reads: usize) -> Option<Machine> {
        let dtypes: Vec<DType> = self.sites.iter().map(|s| s.dtype).collect();
        let none = self.nothing();
        let mut asm = Assembler::new(none.width);
        if let Some(whole) = self.whole(&mut asm, &dtypes, reads) {
            let context = whole.frame.size;
            return Some(Machine { code: asm.finish()?, form: Form::Rows(whole), context });
        }
        let mut phases = Vec::new();
        let mut kept = Vec::new();
        let bodies = (0..self.code.vector.len())
            .map(|q| select::body(&self.code, &dtypes, q, false, &mut kept, &none));
        let bodies: Vec<Body> = bodies.collect::<Option<_>>()?;
        // The next tile is prefetched by the phase with the most work, of those that read it.
        let asks = |q: usize, o: usize| {
            let reads = |b: &Body| b.streams.iter().any(|s| s.read && s.source == Source::Operand(o));
            let work = |&p: &usize| (bodies[p].code.len(), p);
            (0..bodies.len()).filter(|&p| reads(&bodies[p])).max_by_key(work) == Some(q)
        };
        for (q, body) in bodies.iter().enumerate() {
            let ahead = body.streams.iter().map(|s| match s.source {
                Source::Operand(o) if o < reads && asks(q, o) => self.ahead(o) * s.width,
                _ => 0,
            });
            let ahead: Vec<usize> = ahead.collect();
            let rest = select::body(&self.code, &dtypes, q, true, &mut kept, &none)?;
            phases.push(self.phase_code(&mut asm, body.clone(), rest, &ahead));
        }
        let context = phases.iter().map(Phase::context).max().unwrap_or(0);
        Some(Machine { code: asm.finish()?, form: Form::Phases(phases), context })
    }

    /// The beginning of the code.
    fn nothing(&self) -> Body {
        let width = if self.tier >= Tier::Avx512 { Width::Sixteen } else { Width::Eight };
        Body { width, rounds: self.tier >= Tier::Avx512Bf16, ..Body::default() }
    }

    /// The code of a phase, for whole groups of columns and for less, with a prefetch distance in bytes for
    /// each stream.
    fn phase_code(&self, asm: &mut Assembler, mut body: Body, rest: Body, ahead: &[usize]) -> Phase {
        let copy = match self.whole_stretches() {
            true => 0,
            // An odd number of lines: equal columns of streams are then in different sets of the cache.
            false => {
                let width = body.streams.iter().map(|s| s.width).max().unwrap_or(0);
                LINE * ((width * self.tiling.tile_cols).div_ceil(LINE) | 1)
            }
        };
        if copy == 0 {
            self.mark_past(&mut body.streams);
        }
        let group = group(&body);
        let frame = Frame::new(&body, group);
        let steps = self.steps(&body.streams, self.whole_groups());
        let short: Option<Vec<i32>> = steps.iter().map(|&s| i32::try_from(s).ok()).collect();
        let steady = short.is_some();
        let tiles = self.tiles(&body, group);
        // Rows in tiles are given one at a time.
        let short = tiles.clone().filter(|t| !t.is_empty()).or(short).unwrap_or_default();
        let options = LoopOptions { group, stream: false, ahead, steps: &short };
        let past = self.stream && body.streams.iter().any(|s| s.past);
        Phase {
            whole: loops::function(asm, &body, frame, options),
            past: past.then(|| loops::function(asm, &body, frame, LoopOptions { stream: true, ..options })),
            rest: loops::function(asm, &rest, frame, LoopOptions { ahead: &[], ..options }),
            steps,
            steady,
            tiles,
            idle: body.idle(),
            streams: body.streams,
            lookups: body.lookups,
            slots: body.slots.iter().map(|&r| self.slot(r)).collect(),
            folds: body.folds.iter().map(|&f| (f, self.code.folds[f].op)).collect(),
            frame,
            group,
            copy,
        }
    }

    /// Marks the streams that may use non-temporal stores. Those of single bytes may not: more than a group
    /// may come before the first aligned vector.
    fn mark_past(&self, streams: &mut [Stream]) {
        for s in streams {
            let ends = |o: usize| !self.sites[o].shared && self.cols.last().is_some_and(|c| c.steps[o] == 1);
            s.past = s.written && s.width > 1 && matches!(s.source, Source::Operand(o) if ends(o));
        }
    }

    /// Bytes from row to row of each stream, of those kept so many; all rows of a block share its sums.
    fn steps(&self, streams: &[Stream], kept: usize) -> Vec<isize> {
        let step = |s: &Stream| match s.source {
            Source::Operand(o) => self.rows.last().map_or(0, |a| a.steps[o]) * s.width as isize,
            Source::Kept(_) => kept as isize,
            Source::Sum(_) => 0,
        };
        streams.iter().map(step).collect()
    }

    /// See [`Phase::tiles`].
    fn tiles(&self, body: &Body, group: usize) -> Option<Vec<i32>> {
        let [cols] = &self.cols[..] else { return None };
        let tile = self.tiling.tile_cols;
        if cols.size <= tile {
            return None;
        }
        if body.folds.is_empty() {
            return Some(Vec::new());
        }
        // All tiles have the number of the first one's first column; and without streams there would be no
        // steps to take.
        if body.streams.is_empty()
            || !tile.is_multiple_of(group)
            || body.code.iter().any(|i| matches!(i, Ins::Column | Ins::Prefetch(_)))
        {
            return None;
        }
        let step = |s: &Stream| match s.source {
            Source::Operand(o) => cols.steps[o] * (tile * s.width) as isize,
            Source::Kept(_) | Source::Sum(_) => (tile * s.width) as isize,
        };
        body.streams.iter().map(|s| i32::try_from(step(s)).ok()).collect()
    }

    fn slot(&self, reg: Reg) -> Slot {
        let Register { ty, kind } = self.code.regs[reg];
        Slot { reg, ty, step: if kind == Kind::Scalar { ty.size() } else { 0 } }
    }

    /// The prefetch distance of an operand in elements: the same of the next tile, if tiles follow each other
    /// in memory.
    fn ahead(&self, o: usize) -> usize {
        match (&self.rows[..], &self.cols[..]) {
            (_, [_, _, ..]) if !self.whole_stretches() => 0,
            ([], _) | (_, [_, _, ..]) => AHEAD / self.sites[o].dtype.size(),
            // Nothing of longer rows would still be near when they are read.
            ([r], [c]) if r.steps[o] == c.size as isize && c.size <= TILE => self.tiling.tile_rows * c.size,
            _ => 0,
        }
    }
}

impl Machine {
    /// One phase of some rows of a block.
    ///
    /// # Safety
    /// As `Run::block`.
    pub unsafe fn phase(&self, run: &Run, w: &mut Worker, q: usize, place: &Place, cols: Range<usize>) {
        let (p, t) = (run.p, &run.p.tiling);
        let Form::Phases(phases) = &self.form else { unreachable!("rows are done whole") };
        let phase = &phases[q];
        let (buffer, context) = (w.buffer.base(), w.context.base());
        let once = cols.len() <= t.tile_cols;
        if once {
            w.cols.cut(&run.p.cols, run.p.operands, cols.start, cols.len());
        }
        // The usual case: the columns are one stretch of whole groups, and only the row moves.
        let one = once && w.cols.lens.len() == 1 && phase.tile_steps().is_none();
        let steady = one && phase.steady && cols.len().is_multiple_of(phase.group);
        let mut row = 0;
        for stretch in 0..w.rows.lens.len() {
            w.parts.clear();
            for s in &phase.streams {
                let first = match s.source {
                    Source::Operand(o) => {
                        let (base, width) = run.memory(o);
                        let col = if steady { w.cols.offset(0, o) } else { 0 };
                        base.wrapping_offset((w.rows.offset(stretch, o) + col) * width)
                    }
                    Source::Kept(r) => buffer.wrapping_add(p.homes[r]).wrapping_add(row * p.whole_groups()),
                    Source::Sum(sum) => run.sum_cells(sum, place.row, cols.start),
                };
                w.parts.push(Shared(first));
            }
            let mut left = w.rows.lens[stretch];
            while left > 0 {
                let n = if steady { left.min(BATCH) } else { 1 };
                // SAFETY: the context can hold the frame; registers hold a number for each row; the rest as
                // for this function.
                unsafe {
                    self.slots(w, phase, row..row + n);
                    if steady {
                        self.begin(w, phase);
                        point(context, &w.parts, |_, part| part);
                        (0..n).for_each(|i| self.lookup(run, w, phase, row + i, i, &cols));
                        if !phase.idle {
                            self.whole(w, phase, &cols, n, phase.lanes(context));
                        }
                        self.end(run, w, phase, row..row + n, phase.lanes(context));
                    } else if let (false, Some(steps)) = (once, &phase.tiles) {
                        self.tiles(run, w, phase, row, &cols, steps);
                    } else {
                        for col in cols.clone().step_by(t.tile_cols) {
                            let n = t.tile_cols.min(cols.end - col);
                            if !once {
                                w.cols.cut(&run.p.cols, run.p.operands, col, n);
                            }
                            self.begin(w, phase);
                            if phase.copy > 0 && w.cols.lens.len() > 1 {
                                self.together(run, w, phase, row, col..col + n, col - cols.start);
                            } else {
                                self.stretches(run, w, phase, row, col, col - cols.start);
                            }
                            self.end(run, w, phase, row..row + 1, phase.init(context));
                        }
                    }
                }
                for (part, step) in w.parts.iter_mut().zip(&phase.steps) {
                    part.0 = part.0.wrapping_offset(*step * n as isize);
                }
                (row, left) = (row + n, left - n);
            }
        }
    }

    /// Puts the numbers of some rows where the code finds them.
    ///
    /// # Safety
    /// As `Run::block`.
    unsafe fn slots(&self, w: &mut Worker, phase: &Phase, rows: Range<usize>) {
        let table = phase.table(w.context.base()).cast::<u32>();
        for (i, slot) in phase.slots.iter().enumerate() {
            let from = w.at[slot.reg].get();
            for (r, row) in rows.clone().enumerate() {
                let from = from.wrapping_add(row * slot.step);
                // SAFETY: a number of the register's type; the table can hold those of so many rows.
                unsafe {
                    let number = match slot.ty {
                        // One NaN for all, whose lower half is 0.
                        Ty::F32 => match from.cast::<u32>().read_unaligned() {
                            x if x & 0x7FFF_FFFF > f32::INFINITY.to_bits() => f32::NAN.to_bits(),
                            x => x,
                        },
                        Ty::Bool => 0u32.wrapping_sub((*from != 0) as u32),
                        // The number of a column, or none.
                        _ => i32::try_from(from.cast::<i64>().read_unaligned()).unwrap_or(-1) as u32,
                    };
                    table.add(r * phase.slots.len() + i).write(number);
                }
            }
        }
    }

    /// Lets the lanes of reductions begin.
    ///
    /// # Safety
    /// As `Run::block`.
    unsafe fn begin(&self, w: &mut Worker, phase: &Phase) {
        let accs = phase.init(w.context.base()).cast::<[f32; LANES]>();
        for (f, &(_, op)) in phase.folds.iter().enumerate() {
            // SAFETY: within the frame.
            unsafe { (*accs.add(f)).fill(reduction(op).1) };
        }
    }

    /// Adds the lanes of reductions, row by row, to the rows' accumulators.
    ///
    /// # Safety
    /// As `Run::block`; `lanes` are those of so many rows.
    unsafe fn end(&self, run: &Run, w: &mut Worker, phase: &Phase, rows: Range<usize>, lanes: *mut u8) {
        let lanes = lanes.cast::<[f32; LANES]>();
        for (f, &(fold, op)) in phase.folds.iter().enumerate() {
            let totals = run.fold(w, fold, 0);
            for (r, row) in rows.clone().enumerate() {
                // SAFETY: an accumulator for each row; the lanes as promised.
                unsafe {
                    let (total, lanes) = (totals.add(row), lanes.add(r * phase.folds.len() + f).read());
                    let op = reduction(op).0;
                    let all = element::halved(lanes, LANES, |a, b| f32::binary(op, a, b));
                    *total = f64::binary(op, *total, all as f64);
                }
            }
        }
    }

    /// Looks up the elements of a row that are picked, if they are among these columns. It is the row `ahead`
    /// of that which the context points to.
    ///
    /// # Safety
    /// As `Run::block`.
    unsafe fn lookup(
        &self,
        run: &Run,
        w: &mut Worker,
        phase: &Phase,
        row: usize,
        ahead: usize,
        cols: &Range<usize>,
    ) {
        let pointers = w.context.base().cast::<*mut u8>();
        for lookup in &phase.lookups {
            // SAFETY: the register holds a number for each row, the stream these columns.
            unsafe {
                let Some(i) = run.column(&w.at, lookup.index, row, cols.start, cols.len()) else { continue };
                let x = match lookup.from {
                    LookupSource::Number(x) => x,
                    LookupSource::Element { stream, dtype } => {
                        let first =
                            (*pointers.add(stream)).wrapping_offset(phase.steps[stream] * ahead as isize);
                        let at = first.wrapping_add(i * phase.streams[stream].width);
                        match dtype {
                            DType::F16 => at.cast::<f16>().read_unaligned().to_f32(),
                            DType::BF16 => at.cast::<bf16>().read_unaligned().to_f32(),
                            _ => at.cast::<f32>().read_unaligned(),
                        }
                    }
                };
                *run.fold(w, lookup.fold, row) += x as f64;
            }
        }
    }

    /// WholeRows groups of columns of some rows.
    ///
    /// # Safety
    /// As `Run::block`; the context points to the rows and holds their numbers; it can hold so many rows'
    /// lanes.
    unsafe fn whole(&self, w: &mut Worker, phase: &Phase, cols: &Range<usize>, rows: usize, lanes: *mut u8) {
        let pointers = w.context.base().cast::<*mut u8>();
        // SAFETY: as for this function.
        unsafe {
            let past = phase.past.filter(|_| {
                let ends = (0..phase.streams.len()).filter(|&s| phase.streams[s].past);
                let step = |s: usize| match phase.tile_steps() {
                    _ if rows == 1 => 0,
                    Some(steps) => steps[s] as usize,
                    None => phase.steps[s] as usize,
                };
                let low = ends.fold(0, |low, s| low | *pointers.add(s) as usize | step(s));
                low.is_multiple_of(phase.frame.vector)
            });
            self.prepare(w, phase, cols.start, rows, lanes);
            self.function(past.unwrap_or(phase.whole))(w.context.base(), cols.len());
        }
    }

    /// Tells the code which rows and columns there are, and where the lanes of reductions go.
    ///
    /// # Safety
    /// The context can hold the phase's frame.
    unsafe fn prepare(&self, w: &mut Worker, phase: &Phase, col: usize, rows: usize, lanes: *mut u8) {
        let (context, frame) = (w.context.base(), phase.frame);
        // SAFETY: all within the frame.
        unsafe {
            *context.add(frame.first(phase.slots.len())).cast::<u32>() = col as u32;
            *context.add(frame.left).cast::<usize>() = rows;
            *context.add(frame.table).cast::<*mut u8>() = phase.table(context);
            *context.add(frame.lanes).cast::<*mut u8>() = lanes;
        }
    }

    fn function(&self, at: usize) -> Function {
        // SAFETY: places in the code are the beginnings of functions of this type.
        unsafe { std::mem::transmute::<*const u8, Function>(self.code.as_ptr().wrapping_add(at)) }
    }
}

/// The operation of a reduction on two numbers, and the number it begins with.
fn reduction(op: Reduce) -> (Binary, f32) {
    match op {
        Reduce::Max => (Binary::Max, f32::NEG_INFINITY),
        Reduce::Min => (Binary::Min, f32::INFINITY),
        Reduce::Prod => (Binary::Mul, 1.0),
        Reduce::Sum => (Binary::Add, 0.0),
    }
}

/// The number of columns of a phase whose code is emitted as one group.
fn group(body: &Body) -> usize {
    let short = body.code.len() <= SHORT;
    if short || !body.folds.is_empty() { LANES } else { INTERLEAVED * body.width.lanes() }
}

/// Tells the code where each stream begins, given where its row does.
///
/// # Safety
/// The context can hold the phase's frame.
unsafe fn point(context: *mut u8, parts: &[Shared<u8>], at: impl Fn(usize, *mut u8) -> *mut u8) {
    for (s, part) in parts.iter().enumerate() {
        // SAFETY: within the frame.
        unsafe { *context.cast::<*mut u8>().add(s) = at(s, part.0) };
    }
}

impl Run<'_> {
    /// The accumulator of a reduction for a row of the tile.
    fn fold(&self, w: &mut Worker, fold: usize, row: usize) -> *mut f64 {
        w.buffer.base().wrapping_add(self.p.fold_homes[fold]).cast::<f64>().wrapping_add(row)
    }
}
