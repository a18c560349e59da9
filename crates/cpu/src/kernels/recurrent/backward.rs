//! The backward pass of a layer: from the last step to the first. A task computes the gradient of the state
//! of its columns, by a product with the gradients of all gates of the step after. From it come the gradients
//! of the gates of its columns.

use super::cut::{Cut, Task};
use super::forward::{copy, source};
use super::gates::{GruBackward, LstmBackward, SimpleBackward};
use super::{Cell, Setup};
use crate::element::{Float, Wide};
use crate::gemm::Operand;
use crate::kernels::Args;
use crate::kernels::vector::{self, Vectors};
use crate::matrix::Mat;
use crate::pool::Shared;
use crate::view::View;
use crate::workspace::{self, Pieces, total};
use headwater_core::diagnostic::Result;

/// Most blocks of scratch memory that a cell needs.
const BLOCKS: usize = 8;

/// Elements of what threads share. They are the packed weight, the gates' gradients as left operand after and
/// before a step, and the gradient that is carried past the product.
fn shared<T: Operand>(s: &Setup, cut: &Cut<T>) -> [usize; 4] {
    [cut.right(), cut.left(), cut.left(), s.layer.batch * s.layer.hidden]
}

pub(super) fn workspace<T: Operand>(s: &Setup, threads: usize) -> usize {
    let cut = Cut::<T>::new(&s.layer, s.tier, 1, s.layer.gates);
    (total(&shared(s, &cut)) + total(&[BLOCKS * cut.block()]) * threads) * size_of::<T::Wide>()
}

/// The operands of a gradient's node, by what they are.
struct Operands<'a, T: Float> {
    grad_output: Option<Shared<T>>,
    grad_hidden: Option<&'a [T]>,
    grad_cell: Option<&'a [T]>,
    weight: Shared<T>,
    /// Gates after their functions, as the forward pass stashed them; the states of simple units.
    stash: Shared<T>,
    /// The sequence of states, of gated units.
    states: Shared<T>,
    cells: Shared<T>,
    /// The initial hidden state of gated units, cell state of long short-term memory.
    initial: Shared<T>,
}

impl<'a, T: Float> Operands<'a, T> {
    fn of(cell: Cell, args: &Args<'a>) -> Result<Self> {
        let slice = |i: usize| args.opt(i).map(View::slice::<T>);
        let ptr = |i: usize| args.read(i).map(source::<T>);
        let none = Shared(std::ptr::null_mut());
        let (grad_output, grad_hidden) = (args.opt(0).map(source::<T>), slice(1));
        let o = Operands {
            grad_output,
            grad_hidden,
            grad_cell: None,
            weight: none,
            stash: none,
            states: none,
            cells: none,
            initial: none,
        };
        Ok(match cell {
            Cell::Lstm => Operands {
                grad_cell: slice(2),
                weight: ptr(3)?,
                stash: ptr(4)?,
                cells: ptr(5)?,
                initial: ptr(6)?,
                ..o
            },
            Cell::Gru => Operands { weight: ptr(2)?, stash: ptr(3)?, states: ptr(4)?, initial: ptr(5)?, ..o },
            Cell::Rnn => Operands { weight: ptr(2)?, stash: ptr(3)?, ..o },
        })
    }
}

pub(super) fn run<T: Operand<Wide: Vectors>>(s: &Setup, args: &mut Args) -> Result<()> {
    let (l, pool) = (&s.layer, args.pool);
    if l.batch == 0 {
        return Ok(());
    }
    let (gates, h) = (l.gates, l.hidden);
    let cut = Cut::<T>::new(l, s.tier, 1, gates);
    let o = Operands::<T>::of(s.cell, args)?;
    let (sizes, own) = (shared(s, &cut), total(&[BLOCKS * cut.block()]));
    let needs = (total(&sizes) + own * pool.threads()) * size_of::<T::Wide>();
    let (common, scratch) = workspace::all::<T::Wide>(args.workspace, needs).split_at_mut(total(&sizes));
    let mut scratch = workspace::spread(scratch, own, pool.threads());
    let mut common = Pieces(common);
    let [packed, after, before, carried] = sizes.map(|n| common.take(n));
    carried.fill(T::Wide::ZERO);
    // The gradient that is carried: that of the cell state, or what goes past the gates of gated units.
    if let Some(grad) = o.grad_cell {
        carried.iter_mut().zip(grad).for_each(|(to, x)| *to = x.widen());
    }
    let block = |gate: usize| Mat { ptr: o.weight.get().wrapping_add(gate * h * h), rs: 1, cs: h as isize };
    // SAFETY: blocks of the weight, whose size the type rule has checked.
    unsafe { cut.pack(pool, 1, |_, gate| block(gate), packed) };
    let outs: [Shared<T>; 2] = match s.cell {
        Cell::Gru => [Shared(args.writes[0].ptr_mut()), Shared(args.writes[1].ptr_mut())],
        _ => [Shared(args.writes[0].ptr_mut()); 2],
    };
    let state = if s.cell == Cell::Gru { 2 } else { 1 };
    let initial = Shared(args.writes[state].ptr_mut::<T>());
    let lefts = [Shared(after.as_mut_ptr()), Shared(before.as_mut_ptr())];
    let carried_ptr = Shared(carried.as_mut_ptr());
    let apart = if l.batch_first { l.steps } else { 1 };
    // Rows of the samples of a sequence at a time, from one on: `width` columns, of which the first is
    // `column`.
    let at = |ptr: *const T, time: usize, sample: usize, width: usize, column: usize| Mat {
        ptr: ptr.wrapping_add(l.row(time, sample) * width + column),
        rs: (apart * width) as isize,
        cs: 1,
    };
    let of_state = |ptr: *const T, sample: usize, column: usize| Mat {
        ptr: ptr.wrapping_add(sample * h + column),
        rs: h as isize,
        cs: 1,
    };
    let stashed = if s.cell == Cell::Rnn { 1 } else { 4 };
    // One more than there are steps: the last gives the gradient of the initial state.
    for nth in (0..=l.steps).rev() {
        let step = nth.checked_sub(1);
        let (left, next) = (lefts[nth % 2], lefts[(nth + 1) % 2]);
        scratch.run(pool, cut.tasks(), |task, scratch| {
            let Task { samples, columns } = cut.task(task);
            let (first, rows) = (samples.start, samples.len());
            let mut blocks = scratch.chunks_exact_mut(cut.block());
            let mut blocks: [&mut [T::Wide]; BLOCKS] =
                std::array::from_fn(|_| blocks.next().expect("as many blocks as were asked for"));
            let grad = if s.cell == Cell::Rnn { 1 } else { 4 };
            for column in columns.step_by(cut.strip) {
                let n = cut.strip.min(h - column);
                let size = (rows, n);
                // SAFETY: for all that follows: rows and columns are those of the operands, which the type
                // rule has checked. What is written belongs to this task alone. It is its samples and columns
                // of a time, of what is carried, and of the next left operand, while the other one is read.
                unsafe {
                    let carried = carried_ptr.get().wrapping_add(first * h + column);
                    // The gradient of the state.
                    match (step, o.grad_output) {
                        (Some(step), Some(g)) => {
                            cut.widen(at(g.get(), l.time(step), first, h, column), size, blocks[grad]);
                        }
                        _ => blocks[grad].fill(T::Wide::ZERO),
                    }
                    if nth == l.steps {
                        if let Some(g) = o.grad_hidden {
                            cut.widen(of_state(g.as_ptr(), first, column), size, blocks[grad + 1]);
                            add(blocks[grad + 1].as_ptr(), cut.strip, blocks[grad], cut.strip, size);
                        }
                    } else {
                        cut.product(left.get(), (first, rows), packed.as_ptr(), column, blocks[grad], true);
                        if s.cell == Cell::Gru {
                            add(carried, h, blocks[grad], cut.strip, size);
                        }
                    }
                    let Some(step) = step else {
                        cut.narrow(blocks[grad], size, of_state(initial.get(), first, column));
                        continue;
                    };
                    let time = l.time(step);
                    for (i, block) in blocks.iter_mut().enumerate().take(stashed) {
                        let from = at(o.stash.get(), time, first, stashed * h, i * h + column);
                        cut.widen(from, size, block);
                    }
                    let strip = cut.strip;
                    match s.cell {
                        Cell::Lstm => {
                            copy(carried, h, blocks[5].as_mut_ptr(), strip, size);
                            let cells = |time: usize| at(o.cells.get(), time, first, h, column);
                            cut.widen(cells(time), size, blocks[6]);
                            let before = match step {
                                0 => of_state(o.initial.get(), first, column),
                                _ => cells(l.time(step - 1)),
                            };
                            cut.widen(before, size, blocks[7]);
                            vector::run(s.tier, LstmBackward { rows, strip, blocks: &mut blocks });
                            copy(blocks[5].as_ptr(), strip, carried, h, size);
                        }
                        Cell::Gru => {
                            let from = match step {
                                0 => of_state(o.initial.get(), first, column),
                                _ => at(o.states.get(), l.time(step - 1), first, h, column),
                            };
                            cut.widen(from, size, blocks[5]);
                            vector::run(s.tier, GruBackward { rows, strip, blocks: &mut blocks });
                            copy(blocks[4].as_ptr(), strip, carried, h, size);
                        }
                        Cell::Rnn => {
                            let [y, grad, ..] = &mut blocks;
                            let blocks = &mut [&mut **y, &mut **grad];
                            vector::run(s.tier, SimpleBackward { rows, strip, relu: s.relu, blocks });
                        }
                    }
                    for gate in 0..gates {
                        let place = |out: Shared<T>| at(out.get(), time, first, gates * h, gate * h + column);
                        cut.narrow(blocks[gate], size, place(outs[0]));
                        let mut entering = place(outs[0]);
                        if s.cell == Cell::Gru {
                            // The state's part of the candidate has a gradient of its own.
                            entering = place(outs[1]);
                            cut.narrow(blocks[if gate == 2 { 3 } else { gate }], size, entering);
                        }
                        cut.stage(entering, size, next.get(), (first, gate, column));
                    }
                }
            }
        });
    }
    if s.cell == Cell::Lstm {
        let cell = args.writes[2].slice_mut::<T>();
        cell.iter_mut().zip(&*carried).for_each(|(to, &x)| *to = T::narrow(x));
    }
    Ok(())
}

/// Adds rows of `n` numbers with stride `pitch` to those of a block.
///
/// # Safety
/// They may be read.
unsafe fn add<W: Wide>(
    from: *const W,
    pitch: usize,
    block: &mut [W],
    strip: usize,
    (rows, n): (usize, usize),
) {
    for (i, row) in block.chunks_exact_mut(strip).take(rows).enumerate() {
        // SAFETY: the caller's promise.
        let from = unsafe { std::slice::from_raw_parts(from.add(i * pitch), n) };
        row.iter_mut().zip(from).for_each(|(to, &x)| *to += x);
    }
}
