//! Whole rows: one function does all phases of a row before it goes on with the next. So later phases find
//! the row in the first-level cache, and no phase waits for the stores of the one before.

use super::assembler::Assembler;
use super::frame::Frame;
use super::frame::LoopOptions;
use super::ir::{Body, Ins, Source, Stream};
use super::loops;
use super::row_scalars;
use super::select;
use super::{AHEAD, Form, Function, LANES, Machine, group, point, reduction};
use crate::pool::Shared;
use crate::rows::Program;
use crate::rows::interpret::run::Place;
use crate::rows::interpret::run::Run;
use crate::rows::interpret::scratch::Worker;
use headwater_core::DType;
use std::ops::Range;

/// The machine code of whole rows.
#[derive(Debug)]
pub(super) struct WholeRows {
    streams: Vec<Stream>,
    steps: Vec<i32>,
    pub(super) frame: Frame,
    /// Places in the code: into the caches, and past them.
    into: usize,
    past: Option<usize>,
}

impl Program {
    /// Writes such code, if there are several phases, and rows are short and of whole groups of columns.
    /// Numbers of the row must be floats of 32 bits.
    pub(super) fn whole(&self, asm: &mut Assembler, dtypes: &[DType], reads: usize) -> Option<WholeRows> {
        let ([col], phases) = (&self.cols[..], self.code.vector.len()) else { return None };
        let fits = col.size.is_multiple_of(LANES) && col.size <= self.tiling.tile_cols && !self.tiling.split;
        if phases < 2 || !fits {
            return None;
        }
        let mut kept = Vec::new();
        let (mut betweens, mut bodies) = (Vec::new(), Vec::new());
        let mut last = self.nothing();
        for q in 0..=phases {
            last = row_scalars::row_scalars(&self.code, dtypes, q, &mut kept, &last)?;
            betweens.push(last.clone());
            if q < phases {
                last = select::body(&self.code, dtypes, q, false, &mut kept, &last)?;
                // Single columns are found by integers of the row, of which there are none here.
                if !last.lookups.is_empty() || last.code.iter().any(|i| matches!(i, Ins::Prefetch(_))) {
                    return None;
                }
                bodies.push(last.clone());
            }
        }
        let mut streams = last.streams.clone();
        self.mark_past(&mut streams);
        bodies.iter_mut().for_each(|b| self.mark_past(&mut b.streams));
        // One row that is kept serves all.
        let steps = self.steps(&streams, 0).into_iter().map(|s| i32::try_from(s).ok());
        let steps: Vec<i32> = steps.collect::<Option<_>>()?;
        // Each phase prefetches a later row of the streams read so far: memory is then busy all the time.
        // Repeating prefetches that are in flight pays as well, by measurement.
        let follows = |o: usize| self.rows.last().is_some_and(|r| r.steps[o] == col.size as isize);
        let ahead = |q: usize| -> Vec<usize> {
            let of = |s: &Stream| match s.source {
                Source::Operand(o) if o < reads && s.read && follows(o) => {
                    let row = col.size * s.width;
                    row * (AHEAD / row).max(1)
                }
                _ => 0,
            };
            bodies[q].streams.iter().map(of).collect()
        };
        let ahead: Vec<Vec<usize>> = (0..phases).map(ahead).collect();
        let begin = |b: &Body| b.folds.iter().map(|&f| reduction(self.code.folds[f].op).1).collect();
        let begin: Vec<Vec<f32>> = bodies.iter().map(begin).collect();
        let folds = bodies.iter().map(|b| b.folds.len()).max().unwrap_or(0);
        let frame = Frame::of(&last, folds, LANES);
        let mut write = |stream: bool| {
            let options =
                |q: usize| LoopOptions { group: group(&bodies[q]), stream, ahead: &ahead[q], steps: &[] };
            let options = (0..phases).map(options).collect();
            let whole = loops::RowFunction {
                between: &betweens,
                phases: &bodies,
                frame,
                options,
                begin: &begin,
                steps: &steps,
            };
            loops::rows(asm, &whole)
        };
        let past = self.stream && streams.iter().any(|s| s.past);
        Some(WholeRows { into: write(false), past: past.then(|| write(true)), streams, steps, frame })
    }
}

impl Machine {
    /// All phases of some rows of a block, if there is code for whole rows.
    ///
    /// # Safety
    /// As `Run::block`.
    pub unsafe fn rows(&self, run: &Run, w: &mut Worker, place: &Place, cols: &Range<usize>) -> bool {
        let Form::Rows(whole) = &self.form else { return false };
        let (p, buffer, context) = (run.p, w.buffer.base(), w.context.base());
        w.cols.cut(&p.cols, p.operands, cols.start, cols.len());
        for stretch in 0..w.rows.lens.len() {
            let mut low = 0;
            w.parts.clear();
            for (s, step) in whole.streams.iter().zip(&whole.steps) {
                let first = match s.source {
                    Source::Operand(o) => {
                        let (base, width) = run.memory(o);
                        base.wrapping_offset((w.rows.offset(stretch, o) + w.cols.offset(0, o)) * width)
                    }
                    Source::Kept(r) => buffer.wrapping_add(p.homes[r]),
                    Source::Sum(sum) => run.sum_cells(sum, place.row, cols.start),
                };
                if s.past {
                    low |= first as usize | *step as usize;
                }
                w.parts.push(Shared(first));
            }
            let at = whole.past.filter(|_| low.is_multiple_of(whole.frame.vector)).unwrap_or(whole.into);
            // SAFETY: the context can hold the frame; streams hold these rows; the code was written for just
            // this.
            unsafe {
                point(context, &w.parts, |_, part| part);
                *context.add(whole.frame.left).cast::<usize>() = w.rows.lens[stretch];
                let function: Function = self.function(at);
                function(context, cols.len());
            }
        }
        true
    }
}
