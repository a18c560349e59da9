//! Construction of one kernel: parameters, and the division into tiles that fit in UB.

use super::body::{Body, TileOperand, elem, operand};
use super::kernel::{Kernel, Partial};
use super::loops::Loops;
use super::route::{self, Way};
use super::space::{IterationSpace, Tile, words};
use super::writer::Writer;
use crate::chip::Arch;
use crate::kernel::finding::Rule;
use crate::kernel::{Elem, Gm, Program};
use crate::kernels::sum_rows_after;
use crate::lower::Refusal;
use headwater_core::DType;
use headwater_core::axes::Axis;
use headwater_core::row::Instr;

/// A kernel, and what its launch needs.
pub(super) struct Built {
    pub program: Program,
    pub blocks: u32,
    /// Partial column sums, if they are partial: in place of each result, f32 \[ranges, pitch\].
    pub partial: Option<Partial>,
    /// True if the kernel adds them itself, to results that are its last parameters.
    pub added: bool,
}

impl Kernel<'_> {
    /// # Errors
    /// The construct that has no kernel yet.
    pub fn build(&self) -> Result<Built, Refusal> {
        let space = IterationSpace::new(self.p, self.views)?;
        // Programs without dependences may also be cut along their columns.
        let mut all =
            space.crossed(self.views.len()).then(|| space.cut(64)).flatten().into_iter().collect::<Vec<_>>();
        let (cut, line) = (space.cut(64), space.line());
        all.push(space);
        all.extend(cut);
        all.extend(line);
        for space in &all {
            let mut largest = usize::MAX;
            while let Some(tile) = self.tile(space, largest)? {
                let size = largest.min(tile.rows() * tile.pitch);
                match self.attempt(space, &tile)? {
                    Ok(built) => return Ok(*built),
                    // As many elements as fit, less constants and gaps between buffers.
                    Err(bytes) => {
                        let room = self.arch().capacity(crate::kernel::Space::Ub);
                        let fits = (size as u128 * u128::from(room) / u128::from(bytes.max(1))) as usize;
                        largest = fits.min(size - size.div_ceil(32));
                    }
                }
            }
        }
        Err(Refusal::new("more values at a time than UB has room for"))
    }

    /// Tiles of at most `largest` elements, if there are such.
    fn tile(&self, space: &IterationSpace, largest: usize) -> Result<Option<Tile>, Refusal> {
        let arch = self.arch();
        let mut unit = 8;
        for o in 0..self.views.len() {
            let elem = elem(self.dtype(space, o)).ok_or_else(|| Refusal::new("f64"))?;
            if elem == Elem::BF16 && arch == Arch::P310 {
                return Err(Refusal::new("bf16"));
            }
            unit = unit.max(elem.per_block() as usize);
        }
        let fits = |tile: &Tile, lead: usize| {
            (0..self.p.writes.len()).all(|w| {
                let o = self.reads() + w;
                let dtype = self.dtype(space, o);
                let Some(elem) = elem(dtype) else { return false };
                let extent = route::extent(space, tile, o);
                let (route, _) = route::store(space, tile, o, extent, elem, words(dtype) as u64, arch);
                route.way(arch, elem, lead) < Way::Single
            })
        };
        Ok(space.tile(arch, largest, unit, fits))
    }

    /// A kernel with such tiles, or the bytes that its buffers take if UB is too small.
    fn attempt(&self, space: &IterationSpace, tile: &Tile) -> Result<Result<Box<Built>, u64>, Refusal> {
        let arch = self.arch();
        let mut loops = Loops::new(self, space, tile)?;
        let mut w = Writer::new(&self.name(), arch);
        w.k.source(&self.source.op, &self.source.origin);
        for line in self.formula() {
            w.k.doc(line);
        }
        let operands = self.operands(&mut w, space, tile, &mut loops)?;
        let partial = loops.partial;
        let blocks = loops.tasks.min(self.chip.vector_cores as usize).max(1) as u32;
        let blocks = if loops.alone { 1 } else { blocks };
        let mut body = Body::new(w, self.p, space, tile, operands);
        loops.write(self, &mut body)?;
        let added = partial.is_some_and(|partial| self.add_partials(&mut body, partial));
        let bytes = body.u.w.bytes();
        match body.u.w.finish() {
            Ok(program) => Ok(Ok(Box::new(Built { program, blocks, partial, added }))),
            Err(finding) if finding.rule == Rule::Capacity => Ok(Err(bytes)),
            Err(finding) => Err(Refusal::new(format!("a fault of the lowering: {finding}"))),
        }
    }

    /// Adds partial column sums in the kernel that has made them, and says whether it does.
    fn add_partials(&self, b: &mut Body, partial: Partial) -> bool {
        let (Some(outs), Some(near)) = (&self.sums, b.u.w.largest()) else { return false };
        let shape = partial.added(self.p.cols(), outs);
        let columns = self.columns();
        let places: Option<Vec<Gm>> = columns.iter().map(|&w| b.operands[self.reads() + w].gm).collect();
        let Some(partials) = places else { return false };
        b.u.w.barrier();
        let k = &mut b.u.w.k;
        if !shape.fits_after(k.arch(), near) {
            return false;
        }
        let sums: Vec<Gm> =
            columns.iter().zip(outs).map(|(w, &elem)| k.output(&format!("y{w}"), elem, shape.dim)).collect();
        sum_rows_after(k, &shape, [&partials, &sums], near);
        true
    }

    /// Parameters and routes.
    fn operands(
        &self,
        w: &mut Writer,
        space: &IterationSpace,
        tile: &Tile,
        loops: &mut Loops,
    ) -> Result<Vec<TileOperand>, Refusal> {
        let arch = self.arch();
        let mut operands = Vec::new();
        let span = |o: usize| -> u64 {
            let axes = space.rows.iter().chain(&space.cols);
            let last: u64 = axes.map(|a| (a.size as u64 - 1) * a.steps[o] as u64).sum();
            last + if space.words { 1 } else { words(self.views[o].dtype) as u64 }
        };
        let spans: Vec<u64> = (0..self.views.len()).map(span).collect();
        let size = |o: usize| spans[o].saturating_mul(elem(self.dtype(space, o)).map_or(0, Elem::size));
        let all: u64 = (0..self.views.len()).map(size).fold(0, u64::saturating_add);
        for (o, &span) in spans.iter().enumerate() {
            let dtype = self.dtype(space, o);
            let store = o >= self.reads();
            if store && loops.partial.is_some() && self.summed(o - self.reads()) {
                let Some(partial) = loops.partial else { continue };
                let len = (partial.ranges * partial.pitch) as u64;
                let gm = w.k.output(&format!("partial{}", o - self.reads()), Elem::F32, len);
                let mut operand = operand(space, tile, o, DType::F32, Some(gm), false, arch)?;
                operand.route.others.clear();
                operands.push(operand);
                continue;
            }
            let elem = elem(dtype).ok_or_else(|| Refusal::new("f64"))?;
            let gm = match store {
                true => w.k.output(&format!("y{}", o - self.reads()), elem, span),
                false => w.k.input(&format!("x{o}"), elem, span),
            };
            if !store && arch == Arch::P310 {
                w.k.slack(gm, elem.per_block() - 1);
            }
            // Operands that do not stay in L2 anyway leave it to those that are read again, and to results.
            let still = |a: &Axis| a.size > 1 && a.steps[o] == 0;
            let again = space.rows.iter().chain(&space.cols).any(still) || loops.reads(self.p, o) > 1;
            if !store && arch == Arch::A2 && all > self.chip.l2 && !again {
                w.k.streamed(gm);
            }
            let operand = operand(space, tile, o, dtype, Some(gm), store, arch)?;
            loops.alone |= operand.way == Way::Single;
            operands.push(operand);
        }
        for (at, counter) in space.counters.iter().enumerate() {
            if let (Some(o), Instr::Iota(_)) = (counter, &self.p.body[at]) {
                operands.push(operand(space, tile, *o, DType::I32, None, false, arch)?);
            }
        }
        // One core alone keeps the order where reads reach bytes that belong to results.
        if arch == Arch::P310 {
            let bytes = |o: usize| {
                let v = self.views[o];
                let start = v.place.offset as i64 + v.layout.offset as i64 * v.dtype.size() as i64;
                (v.place.segment, start, start + (spans[o] * operands[o].elem.size()) as i64 + 31)
            };
            let leads = route::leads(space, tile);
            for o in 0..self.reads() {
                for w in self.reads()..self.views.len() {
                    let ((s, from, to), (t, low, high)) = (bytes(o), bytes(w));
                    let exact = |o: usize| {
                        let TileOperand { route, elem, .. } = &operands[o];
                        leads.iter().all(|&lead| route.way(arch, *elem, lead) == Way::Whole)
                    };
                    let same = from == low && self.views[o].layout == self.views[w].layout && exact(o);
                    loops.alone |= s == t
                        && from < high
                        && low < to
                        && !same
                        && !(loops.partial.is_some() && self.summed(w - self.reads()));
                }
            }
        }
        Ok(operands)
    }
}
