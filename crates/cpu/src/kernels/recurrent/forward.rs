//! The forward pass of a layer.

use super::cut::{Cut, Task};
use super::gates::{Gru, Lstm, Rectified, Tanh};
use super::{Cell, Setup};
use crate::element::{Element, Float, Wide};
use crate::gemm::Operand;
use crate::kernels::Args;
use crate::kernels::vector::{self, Vectors};
use crate::matrix::Mat;
use crate::pool::Shared;
use crate::view::{View, ViewMut};
use crate::workspace::{self, Pieces, total};
use headwater_core::diagnostic::Result;
use headwater_core::ops::recurrent::{gru_layer, lstm_layer};

/// Most blocks of scratch memory that a cell needs: the gates, and states.
const BLOCKS: usize = 6;

/// Elements of what threads share: the packed weight, the state as left operand before and after a step, the
/// state that is carried wide, biases.
fn shared<T: Operand>(s: &Setup, cut: &Cut<T>) -> [usize; 5] {
    let gates = s.layer.gates;
    [gates * cut.right(), cut.left(), cut.left(), s.layer.batch * s.layer.hidden, gates * cut.padded()]
}

pub(super) fn workspace<T: Operand>(s: &Setup, threads: usize) -> usize {
    let cut = Cut::<T>::new(&s.layer, s.tier, s.layer.gates, 1);
    (total(&shared(s, &cut)) + total(&[BLOCKS * cut.block()]) * threads) * size_of::<T::Wide>()
}

pub(super) fn run<T: Operand<Wide: Vectors>>(s: &Setup, args: &mut Args) -> Result<()> {
    let (l, pool) = (&s.layer, args.pool);
    if l.batch == 0 {
        return Ok(());
    }
    let (gates, h) = (l.gates, l.hidden);
    let cut = Cut::<T>::new(l, s.tier, gates, 1);
    let (x, weight) = (source::<T>(args.read(0)?), source::<T>(args.read(1)?));
    let (bias, initial) = (args.opt(2).map(View::slice::<T>), args.read(3)?.slice::<T>());
    // The state that is carried: the cell state, or the hidden state of gated units.
    let start = if s.cell == Cell::Lstm { args.read(4)?.slice::<T>() } else { initial };
    let (sizes, own) = (shared(s, &cut), total(&[BLOCKS * cut.block()]));
    let needs = (total(&sizes) + own * pool.threads()) * size_of::<T::Wide>();
    let (common, scratch) = workspace::all::<T::Wide>(args.workspace, needs).split_at_mut(total(&sizes));
    let mut scratch = workspace::spread(scratch, own, pool.threads());
    let mut common = Pieces(common);
    let [packed, before, after, carried, biases] = sizes.map(|n| common.take(n));
    for (gate, row) in biases.chunks_exact_mut(cut.padded()).enumerate() {
        row.fill(T::Wide::ZERO);
        if let Some(bias) = bias {
            row.iter_mut().zip(&bias[gate * h..][..h]).for_each(|(to, x)| *to = x.widen());
        }
    }
    carried.iter_mut().zip(start).for_each(|(to, x)| *to = x.widen());
    let matrix = |ptr: *const T, width: usize| Mat { ptr, rs: width as isize, cs: 1 };
    // SAFETY: blocks of the weight, and the initial state, whose sizes the type rule has checked.
    unsafe {
        cut.pack(pool, gates, |gate, _| matrix(weight.get(), h).moved((gate * h * h) as isize), packed);
        cut.stage(matrix(initial.as_ptr(), h), (l.batch, h), before.as_mut_ptr(), (0, 0, 0));
    }
    let outs = Outputs::<T>::of(s.cell, args.writes);
    let lefts = [Shared(before.as_mut_ptr()), Shared(after.as_mut_ptr())];
    let carried_ptr = Shared(carried.as_mut_ptr());
    // Rows of the samples of a sequence at a time, from one on: `width` columns, of which the first is
    // `column`.
    let apart = if l.batch_first { l.steps } else { 1 };
    let at = |ptr: *const T, time: usize, sample: usize, width: usize, column: usize| Mat {
        ptr: ptr.wrapping_add(l.row(time, sample) * width + column),
        rs: (apart * width) as isize,
        cs: 1,
    };
    for nth in 0..l.steps {
        let time = l.time(nth);
        let (left, next) = (lefts[nth % 2], lefts[(nth + 1) % 2]);
        scratch.run(pool, cut.tasks(), |task, scratch| {
            let Task { samples, columns } = cut.task(task);
            let (first, rows) = (samples.start, samples.len());
            let mut blocks = scratch.chunks_exact_mut(cut.block());
            let mut blocks: [&mut [T::Wide]; BLOCKS] =
                std::array::from_fn(|_| blocks.next().expect("as many blocks as were asked for"));
            for column in columns.step_by(cut.strip) {
                let n = cut.strip.min(h - column);
                let size = (rows, n);
                // Products are stored in the gates' blocks, except that of a GRU's candidate, which has its
                // own.
                let of_product = |gate: usize| if s.cell == Cell::Gru && gate == 2 { 3 } else { gate };
                // SAFETY: rows and columns are those of the operands, which the type rule has checked. What
                // is written belongs to this task alone. It is its samples and columns of a time, of the
                // state, and of the next left operand, while the other one is read.
                unsafe {
                    for gate in 0..gates {
                        cut.widen(at(x.get(), time, first, gates * h, gate * h + column), size, blocks[gate]);
                        let right = packed[gate * cut.right()..].as_ptr();
                        let to = of_product(gate);
                        cut.product(left.get(), (first, rows), right, column, blocks[to], to == gate);
                    }
                    let state = carried_ptr.get().wrapping_add(first * h + column);
                    let bias: [&[T::Wide]; 4] = std::array::from_fn(|gate| {
                        &biases[gate.min(gates - 1) * cut.padded() + column..][..cut.strip]
                    });
                    match s.cell {
                        Cell::Lstm => {
                            copy(state, h, blocks[4].as_mut_ptr(), cut.strip, size);
                            vector::run(s.tier, Lstm { rows, blocks: &mut blocks, bias });
                            copy(blocks[4].as_ptr(), cut.strip, state, h, size);
                            cut.narrow(blocks[4], size, at(outs.cells.get(), time, first, h, column));
                        }
                        Cell::Gru => {
                            copy(state, h, blocks[4].as_mut_ptr(), cut.strip, size);
                            vector::run(s.tier, Gru { rows, blocks: &mut blocks, bias });
                            copy(blocks[4].as_ptr(), cut.strip, state, h, size);
                        }
                        Cell::Rnn if s.relu => {
                            vector::run(s.tier, Rectified { rows, sums: blocks[0], bias: bias[0] });
                        }
                        Cell::Rnn => vector::run(s.tier, Tanh { rows, sums: blocks[0], bias: bias[0] }),
                    }
                    for (i, block) in blocks.iter().enumerate().take(outs.stashed) {
                        let to = at(outs.stash.get(), time, first, outs.stashed * h, i * h + column);
                        cut.narrow(block, size, to);
                    }
                    let result = match s.cell {
                        Cell::Lstm => 5,
                        Cell::Gru => 4,
                        Cell::Rnn => 0,
                    };
                    let to = at(outs.sequence.get(), time, first, h, column);
                    cut.narrow(blocks[result], size, to);
                    cut.stage(to, size, next.get(), (first, 0, column));
                }
            }
        });
    }
    let last = l.time(l.steps - 1);
    let sequence = args.writes[0].ptr_mut::<T>();
    let hidden = args.writes[1].slice_mut::<T>();
    for (sample, to) in hidden.chunks_exact_mut(h).enumerate() {
        // SAFETY: a row of the sequence, which nobody writes any more.
        to.copy_from_slice(unsafe { std::slice::from_raw_parts(sequence.add(l.row(last, sample) * h), h) });
    }
    if s.cell == Cell::Lstm {
        let cell = args.writes[2].slice_mut::<T>();
        cell.iter_mut().zip(&*carried).for_each(|(to, &x)| *to = T::narrow(x));
    }
    Ok(())
}

/// The places of a step's results.
struct Outputs<T: Float> {
    sequence: Shared<T>,
    stash: Shared<T>,
    /// Blocks that are stashed.
    stashed: usize,
    cells: Shared<T>,
}

impl<T: Float> Outputs<T> {
    fn of(cell: Cell, writes: &mut [ViewMut]) -> Self {
        let sequence = Shared(writes[0].ptr_mut());
        let none = Shared(std::ptr::null_mut());
        let (stash, cells) = match cell {
            Cell::Lstm => (Shared(writes[3].ptr_mut()), Shared(writes[4].ptr_mut())),
            Cell::Gru => (Shared(writes[2].ptr_mut()), none),
            Cell::Rnn => (none, none),
        };
        let stashed = match cell {
            Cell::Lstm => lstm_layer::GATES,
            Cell::Gru => gru_layer::STASH,
            Cell::Rnn => 0,
        };
        Outputs { sequence, stash, stashed, cells }
    }
}

/// An operand that several threads read.
pub(super) fn source<T: Element>(view: &View) -> Shared<T> {
    Shared(view.ptr::<T>().cast_mut())
}

/// Copies rows of `n` numbers between places with row strides `from_pitch` and `to_pitch`.
///
/// # Safety
/// They may be read and written, and do not overlap.
pub(super) unsafe fn copy<W: Copy>(
    from: *const W,
    from_pitch: usize,
    to: *mut W,
    to_pitch: usize,
    (rows, n): (usize, usize),
) {
    for i in 0..rows {
        // SAFETY: the caller's promise.
        unsafe { from.add(i * from_pitch).copy_to_nonoverlapping(to.add(i * to_pitch), n) };
    }
}
