//! Columns in several contiguous runs, and tails, the columns at the end that fill no group. Runs are
//! processed sequentially if they are whole groups, else on copies that gather them.

use super::ir::{Source, Stream};
use super::{BATCH, LANES, LINE, Machine, Phase, REST, point};
use crate::rows::interpret::run::Run;
use crate::rows::interpret::scratch::Worker;
use std::ops::Range;

/// Columns that are worth beginning where results are aligned.
const PAST: usize = 1024;

impl Machine {
    /// Bytes from one tile to the next, of the columns of a row that are more than a tile, in one stretch.
    ///
    /// # Safety
    /// As `Run::block`; the numbers of the row are where the code finds them.
    pub(super) unsafe fn tiles(
        &self,
        run: &Run,
        w: &mut Worker,
        phase: &Phase,
        row: usize,
        cols: &Range<usize>,
        steps: &[i32],
    ) {
        let (tile, context) = (run.p.tiling.tile_cols, w.context.base());
        let pointers = context.cast::<*mut u8>();
        w.cols.cut(&run.p.cols, run.p.operands, cols.start, cols.len());
        // SAFETY: as for this function.
        unsafe {
            point(context, &w.parts, |s, part| match phase.streams[s].source {
                Source::Operand(o) => part.wrapping_offset(w.cols.start(o) * phase.streams[s].width as isize),
                Source::Kept(_) | Source::Sum(_) => part,
            });
            self.lookup(run, w, phase, row, 0, cols);
            if phase.idle {
                return;
            }
            let (mut col, lanes) = (cols.start, phase.lanes(context));
            self.begin(w, phase);
            while !steps.is_empty() && cols.end - col >= tile {
                let n = ((cols.end - col) / tile).min(BATCH);
                self.repeat(phase, w, n);
                self.whole(w, phase, &(col..col + tile), n, lanes);
                for i in 0..n {
                    let lanes = lanes.add(4 * LANES * phase.folds.len() * i);
                    self.end(run, w, phase, row..row + 1, lanes);
                }
                // The code has gone on to the last of them.
                for (s, &step) in steps.iter().enumerate() {
                    *pointers.add(s) = (*pointers.add(s)).wrapping_offset(step as isize);
                }
                col += n * tile;
            }
            if col < cols.end {
                self.follow(w, phase, col..cols.end);
                self.end(run, w, phase, row..row + 1, phase.init(context));
            }
        }
    }

    /// Puts the numbers of a row where the code finds those of the following ones as well.
    ///
    /// # Safety
    /// The context can hold so many rows, and holds the numbers of the first.
    unsafe fn repeat(&self, phase: &Phase, w: &mut Worker, rows: usize) {
        let (table, n) = (phase.table(w.context.base()).cast::<u32>(), phase.slots.len());
        for row in 1..rows {
            // SAFETY: the caller's promise.
            unsafe { table.add(row * n).copy_from_nonoverlapping(table, n) };
        }
    }

    /// The columns of `w.cols`, from `col` on, of a row, `before` of the row's being done.
    ///
    /// # Safety
    /// As `Run::block`.
    pub(super) unsafe fn stretches(
        &self,
        run: &Run,
        w: &mut Worker,
        phase: &Phase,
        row: usize,
        mut col: usize,
        mut before: usize,
    ) {
        // SAFETY: as for this function.
        unsafe {
            for stretch in 0..w.cols.lens.len() {
                let n = w.cols.lens[stretch];
                point(w.context.base(), &w.parts, |s, part| {
                    let stream = &phase.streams[s];
                    match stream.source {
                        Source::Operand(o) => {
                            part.wrapping_offset(w.cols.offset(stretch, o) * stream.width as isize)
                        }
                        Source::Kept(_) | Source::Sum(_) => part.wrapping_add(before * stream.width),
                    }
                });
                self.stretch(run, w, phase, row, col..col + n);
                (col, before) = (col + n, before + n);
            }
        }
    }

    /// The columns of `w.cols` of a row, `before` of the row's being done, on copies that compact their
    /// stretches.
    ///
    /// # Safety
    /// As `Run::block`.
    pub(super) unsafe fn together(
        &self,
        run: &Run,
        w: &mut Worker,
        phase: &Phase,
        row: usize,
        cols: Range<usize>,
        before: usize,
    ) {
        let context = w.context.base();
        let apart = |s: &Stream| match s.source {
            Source::Operand(o) if run.p.cols.last().is_some_and(|c| c.steps[o] != 0) => Some(o),
            _ => None,
        };
        // SAFETY: the stretches are the operands', the context can hold their copies; the rest as for this
        // function.
        unsafe {
            point(context, &w.parts, |s, part| match (&phase.streams[s], apart(&phase.streams[s])) {
                (_, Some(_)) => phase.copy_of(context, s),
                (stream, None) => match stream.source {
                    Source::Operand(o) => part.wrapping_offset(w.cols.start(o) * stream.width as isize),
                    Source::Kept(_) | Source::Sum(_) => part.wrapping_add(before * stream.width),
                },
            });
            for (s, stream) in phase.streams.iter().enumerate().filter(|(_, s)| s.read) {
                if let Some(o) = apart(stream) {
                    self.each_stretch(w, phase, s, o, |memory, copy, n| copy_short(memory, copy, n));
                }
            }
            self.stretch(run, w, phase, row, cols);
            for (s, stream) in phase.streams.iter().enumerate().filter(|(_, s)| s.written) {
                if let Some(o) = apart(stream) {
                    self.each_stretch(w, phase, s, o, |memory, copy, n| copy_short(copy, memory, n));
                }
            }
        }
    }

    /// The part of each stretch that stream `s`, of operand `o`, and its copy hold, and its bytes.
    #[inline(always)]
    fn each_stretch(
        &self,
        w: &mut Worker,
        phase: &Phase,
        s: usize,
        o: usize,
        f: impl Fn(*mut u8, *mut u8, usize),
    ) {
        let (width, mut copy) = (phase.streams[s].width, phase.copy_of(w.context.base(), s));
        for (at, n) in w.cols.of(o) {
            f(w.parts[s].get().wrapping_offset(at * width as isize), copy, n * width);
            copy = copy.wrapping_add(n * width);
        }
    }

    /// Columns that follow each other, where the pointers in the context are.
    ///
    /// # Safety
    /// As `Run::block`.
    unsafe fn stretch(&self, run: &Run, w: &mut Worker, phase: &Phase, row: usize, cols: Range<usize>) {
        // SAFETY: as for this function.
        unsafe {
            self.lookup(run, w, phase, row, 0, &cols);
            if !phase.idle {
                self.follow(w, phase, cols);
            }
        }
    }

    /// The same, of a phase that does more than picking, without that.
    ///
    /// # Safety
    /// As `Run::block`.
    unsafe fn follow(&self, w: &mut Worker, phase: &Phase, cols: Range<usize>) {
        let lanes = phase.init(w.context.base());
        // SAFETY: as for this function.
        unsafe {
            // Results that pass by the caches need a vector's alignment.
            let before = self.before(w, phase, cols.len());
            if before > 0 {
                self.prepare(w, phase, cols.start, 1, lanes);
                self.rest(w, phase, 0..before);
                self.on(w, phase, before);
            }
            let (first, n) = (cols.start + before, cols.len() - before);
            let whole = n & !(phase.group - 1);
            if whole > 0 {
                self.whole(w, phase, &(first..first + whole), 1, lanes);
            }
            if whole < n {
                self.prepare(w, phase, first + whole, 1, lanes);
                self.rest(w, phase, whole..n);
            }
        }
    }

    /// The number of columns, from the pointers in the context, before those from which on results can use
    /// non-temporal stores. None if columns have no lane of their own: the lane that a number is added to
    /// would depend on its place.
    ///
    /// # Safety
    /// The context points to columns.
    unsafe fn before(&self, w: &mut Worker, phase: &Phase, cols: usize) -> usize {
        let pointers = w.context.base().cast::<*mut u8>();
        let vector = phase.frame.vector;
        let before = |s: usize| {
            // SAFETY: a pointer of the context.
            let at = unsafe { *pointers.add(s) } as usize;
            (at.next_multiple_of(vector) - at) / phase.streams[s].width
        };
        let mut ends = (0..phase.streams.len()).filter(|&s| phase.streams[s].past).map(before);
        match (phase.past, ends.next()) {
            (Some(_), Some(n)) if phase.folds.is_empty() && n + PAST <= cols && ends.all(|m| m == n) => n,
            _ => 0,
        }
    }

    /// Moves the pointers on by so many columns, of which a copy was made.
    ///
    /// # Safety
    /// The context has the pointers of the copies, and where these come from.
    unsafe fn on(&self, w: &mut Worker, phase: &Phase, cols: usize) {
        let pointers = w.context.base().cast::<*mut u8>();
        let origins = pointers.wrapping_add(phase.streams.len());
        for (s, stream) in phase.streams.iter().enumerate() {
            // SAFETY: pointers of the context.
            unsafe { *pointers.add(s) = (*origins.add(s)).wrapping_add(cols * stream.width) };
        }
    }

    /// The columns of a stretch that fill no group, on copies.
    ///
    /// # Safety
    /// As `Run::block`; the frame is that of the stretch.
    unsafe fn rest(&self, w: &mut Worker, phase: &Phase, cols: Range<usize>) {
        let (context, frame, n) = (w.context.base(), phase.frame, cols.len());
        let pointers = context.cast::<*mut u8>();
        let origins = pointers.wrapping_add(phase.streams.len());
        let copy = |s: usize| context.wrapping_add(frame.size.next_multiple_of(LINE) + s * REST);
        // SAFETY: the context can hold the frame and a copy of each stream; rows kept can hold whole groups.
        unsafe {
            let alive = std::slice::from_raw_parts_mut(context.add(frame.alive).cast::<u32>(), phase.group);
            alive.iter_mut().enumerate().for_each(|(i, a)| *a = if i < n { u32::MAX } else { 0 });
            for (s, stream) in phase.streams.iter().enumerate() {
                let from = (*pointers.add(s)).wrapping_add(cols.start * stream.width);
                let kept = matches!(stream.source, Source::Kept(_));
                if stream.read && !kept {
                    copy(s).copy_from_nonoverlapping(from, n * stream.width);
                }
                *origins.add(s) = from;
                *pointers.add(s) = if kept { from } else { copy(s) };
            }
            self.function(phase.rest)(context, phase.group);
            for (s, stream) in phase.streams.iter().enumerate() {
                if stream.written && !matches!(stream.source, Source::Kept(_)) {
                    (*origins.add(s)).copy_from_nonoverlapping(copy(s), n * stream.width);
                }
            }
        }
    }
}

/// Copies some bytes, so few that a call would cost more.
///
/// # Safety
/// They may be read and written, and do not overlap.
#[inline(always)]
unsafe fn copy_short(from: *const u8, to: *mut u8, n: usize) {
    const VECTOR: usize = 32;
    let whole = n / VECTOR * VECTOR;
    // SAFETY: the caller's promise.
    unsafe {
        for i in (0..whole).step_by(VECTOR) {
            let vector = from.add(i).cast::<[u8; VECTOR]>().read_unaligned();
            to.add(i).cast::<[u8; VECTOR]>().write_unaligned(vector);
        }
        if whole < n {
            to.add(whole).copy_from_nonoverlapping(from.add(whole), n - whole);
        }
    }
}
