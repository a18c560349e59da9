//! One layer of a recurrent network and its gradient: for each time step a product with the weight and a row
//! program for the gates. A state that its operator carries unrounded is in f32.
//!
//! Steps differ in addresses alone, so that two of them stand for all that follow.

mod gru;
mod lstm;
mod rnn;

pub use gru::{gru, gru_backward};
pub use lstm::{lstm, lstm_backward};
pub use rnn::{rnn, rnn_backward};

use super::launch::Refusal;
use super::sequence::{Sequence, Tensor};
use crate::chip::Arch;
use headwater_core::DType::F32;
use headwater_core::expr::input as x;
use headwater_core::ops::recurrent::layer::Layer;
use headwater_core::row::{Access, Reg, RowBuilder};

/// Most time steps, of two launches each.
const STEPS: usize = 8192;

/// A sequence at a time, `[batch, width]`.
fn at(sequence: &Tensor, l: &Layer, nth: usize) -> Result<Tensor, Refusal> {
    let dim = usize::from(l.batch_first);
    let part = sequence.part(dim, l.time(nth), 1)?;
    part.walked(&[(l.batch, Some((1 - dim, 1))), (part.shape()[2], Some((2, 1)))])
}

/// A gate's part of `[batch, gates · hidden]`.
fn gate(all: &Tensor, l: &Layer, gate: usize) -> Result<Tensor, Refusal> {
    all.part(1, gate * l.hidden, l.hidden)
}

/// Refuses a layer of too many steps.
fn limit(l: &Layer) -> Result<(), Refusal> {
    match l.steps > STEPS {
        true => Err(Refusal(format!("a recurrent layer of more than {STEPS} time steps"))),
        false => Ok(()),
    }
}

/// A row program over the elements of a state, and its operands.
struct Cell {
    program: RowBuilder,
    reads: Vec<Tensor>,
    writes: Vec<Tensor>,
}

impl Cell {
    fn new(l: &Layer) -> Cell {
        let program = RowBuilder::new(&[l.batch], &[l.hidden]);
        Cell { program, reads: Vec::new(), writes: Vec::new() }
    }

    fn read(&mut self, t: &Tensor) -> Reg {
        self.reads.push(t.clone());
        let access = if t.shape().rank() == 1 { Access::dims(&[None, Some(0)]) } else { Access::identity(2) };
        self.program.read(t.dtype(), access)
    }

    fn write(&mut self, t: &Tensor, value: Reg) {
        self.writes.push(t.clone());
        self.program.store(t.dtype(), Access::identity(2), value);
    }

    /// The sum of operands of one shape, the first always present.
    fn sum(&mut self, first: &Tensor, others: &[Option<Tensor>]) -> Reg {
        let first = self.read(first);
        others.iter().flatten().fold(first, |sum, t| {
            let term = self.read(t);
            self.program.expr(&(x(0) + x(1)), &[sum, term])
        })
    }

    fn launch(self, s: &mut Sequence) -> Result<(), Refusal> {
        let (reads, writes): (Vec<&Tensor>, Vec<&Tensor>) =
            (self.reads.iter().collect(), self.writes.iter().collect());
        s.rows(&self.program.finish(), &reads, &writes)
    }
}

/// The launches of so many steps, of which two are made.
fn repeated(
    s: &mut Sequence,
    steps: usize,
    mut step: impl FnMut(&mut Sequence, usize) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let first = s.lowered.launches.len();
    if steps > 0 {
        step(s, 0)?;
    }
    let second = s.lowered.launches.len();
    if steps > 1 {
        step(s, 1)?;
    }
    s.repeat(first, second, steps.saturating_sub(2))
}

/// The weight that a gradient's product takes, operand `i`. The cube takes f32 whose rows run along the sums.
fn backward_weight(s: &mut Sequence, i: usize) -> Result<Tensor, Refusal> {
    let weight = s.input(i)?;
    match weight.dtype() == F32 && s.chip.arch == Arch::A2 {
        true => Ok(s.copied(&weight.transposed())?.transposed()),
        false => Ok(weight),
    }
}

/// The gradient that reaches a state from later than the layer, or zeros if there is none: operand `i` in
/// f32.
fn last_gradient(s: &mut Sequence, i: usize, l: &Layer) -> Result<Tensor, Refusal> {
    let state = s.scratch(F32, &[l.batch, l.hidden])?;
    match s.optional(i) {
        Some(last) => s.copy(&last, &state)?,
        None => s.fill(&state, 0.0)?,
    }
    Ok(state)
}
