//! Loops of machine code, around groups of columns and around rows.
//!
//! A function takes a context and a number of columns, a multiple of the group. The context holds the number
//! of rows and the pointers of the streams at the first row. For one phase it also holds the scalars of all
//! rows, the initial accumulators, and where they go row by row. For less than a group it holds the lanes
//! that are columns.

use super::assembler::*;
use super::frame::{FREE, Frame, LoopOptions, POINTERS, Row, often};
use super::ir::Body;
use super::regalloc::Emitter;

/// Vectors whose instructions are interleaved: while those of one wait for each other, those of the other
/// run. With more of them no registers were left for values that are the same for all.
pub(super) const INTERLEAVED: usize = 2;
const _: () = assert!(INTERLEAVED.is_multiple_of(2), "AVX2 writes halves two vectors at a time");
/// Fewest registers that what a loop computes is left with: for as many operands as an instruction has, and
/// its result.
const FEWEST: usize = 5;

/// Writes a function; gives its place in the code.
pub(super) fn function(asm: &mut Assembler, body: &Body, frame: Frame, options: LoopOptions) -> usize {
    framed(asm, body, |asm| {
        let mut top = 0;
        columns(asm, body, frame, options, |asm, row, after| {
            if after {
                return row.end(asm, options.steps, top);
            }
            row.fix(asm, false);
            top = asm.here();
            row.begin(asm);
        })
    })
}

/// A function of whole rows: the phases, each after the row scalars before it, and last the row scalars after
/// them.
pub(super) struct RowFunction<'a> {
    pub between: &'a [Body],
    pub phases: &'a [Body],
    pub frame: Frame,
    /// Options of each phase.
    pub options: Vec<LoopOptions<'a>>,
    /// Initial accumulators of each phase.
    pub begin: &'a [Vec<f32>],
    /// For each stream, bytes from row to row.
    pub steps: &'a [i32],
}

/// Writes a function that does all phases of a row before it goes on with the next; gives its place in the
/// code.
pub(super) fn rows(asm: &mut Assembler, whole: &RowFunction) -> usize {
    let frame = whole.frame;
    let last = &whole.between[whole.phases.len()];
    framed(asm, last, |asm| {
        let top = asm.here();
        Row::pointers(asm, last.streams.len().min(POINTERS.len()));
        let mut spills = 0;
        // Accumulators of the phase before, which have their registers still.
        let (mut lanes, mut pins) = (0, 0);
        for (q, between) in whole.between.iter().enumerate() {
            let held = between.streams.len().min(POINTERS.len());
            let row = Row { body: between, frame, held, lanes, pins, fixed: &[] };
            let options = LoopOptions { group: between.width.lanes(), stream: false, ahead: &[], steps: &[] };
            let mut e = Emitter::new(asm, options, 0..1, &row);
            (0..e.order.len()).for_each(|at| e.ins(at));
            spills = spills.max(e.spills);
            let Some(body) = whole.phases.get(q) else { break };
            let used = columns(asm, body, frame, whole.options[q], |asm, row, after| {
                (lanes, pins) = (row.lanes, row.pins);
                if !after {
                    row.fix(asm, true);
                    row.start(asm, &whole.begin[q]);
                }
            });
            spills = spills.max(used);
        }
        let done = asm.count_down(frame.left as i32);
        Row::step(asm, whole.steps);
        asm.jump(top);
        asm.arrive(done);
        spills
    })
}

/// A function around its inside, which says how many vectors it puts on the stack; gives its place in the
/// code.
fn framed(asm: &mut Assembler, body: &Body, inside: impl FnOnce(&mut Assembler) -> i32) -> usize {
    let start = asm.here();
    let held = body.streams.len().min(POINTERS.len());
    let saved = &POINTERS[FREE.min(held)..held];
    saved.iter().for_each(|&r| asm.push(r));
    let below = asm.move_stack(0);
    let spills = inside(asm);
    let bytes = body.width.bytes() as i32 * spills;
    asm.set(below, -bytes);
    asm.move_stack(bytes);
    saved.iter().rev().for_each(|&r| asm.pop(r));
    asm.finish_function();
    start
}

/// Writes a loop over the columns, and what `around` writes before and, told so, after it; gives how many
/// vectors are put on the stack. Tries ways to use the registers, so that `around` is called for more than
/// what is written in the end.
fn columns(
    asm: &mut Assembler,
    body: &Body,
    frame: Frame,
    options: LoopOptions,
    mut around: impl FnMut(&mut Assembler, &Row, bool),
) -> i32 {
    let held = body.streams.len().min(POINTERS.len());
    let (vectors, registers) = (options.group / body.width.lanes(), body.width.registers());
    let lanes = body.folds.len() * vectors;
    let pins = if lanes <= registers / 2 { lanes } else { 0 };
    // As many of the values that are the same for all columns in registers as leave enough to do without the
    // stack. Most of them are operands of instructions, and there are but two loads a cycle.
    let same = often(body);
    let most = same.len().min(registers - pins - FEWEST);
    let start = asm.mark();
    let mut write = |fixed: usize| {
        asm.back(&start);
        let row = Row { body, frame, held, lanes, pins, fixed: &same[..fixed] };
        around(asm, &row, false);
        asm.clear_index();
        let next = asm.here();
        let mut spills = 0;
        for part in (0..vectors).step_by(INTERLEAVED) {
            let parts = part..(part + INTERLEAVED).min(vectors);
            let mut e = Emitter::new(asm, options, parts, &row);
            (0..e.order.len()).for_each(|at| e.ins(at));
            spills = spills.max(e.spills);
        }
        row.prefetch(asm, &options);
        asm.advance(options.group as u8, next);
        around(asm, &row, true);
        spills
    };
    let (mut fixed, mut most) = (0, most);
    while fixed < most {
        let more = (fixed + most).div_ceil(2);
        if write(more) == 0 {
            fixed = more;
        } else {
            most = more - 1;
        }
    }
    write(fixed)
}
