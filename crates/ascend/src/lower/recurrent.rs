//! One layer of a long short-term memory and its gradient: for each time step a product with the weight and a row program
//! for the gates. The state is carried in f32.
//!
//! Steps differ in addresses alone, so that two of them stand for all that follow.

use super::launch::{Lowered, Refusal};
use super::product::input;
use super::sequence::{Sequence, Tensor};
use crate::chip::{Arch, Chip};
use crate::kernel::Source;
use headwater_core::DType::F32;
use headwater_core::expr::{Expr, input as x};
use headwater_core::ops::OpCx;
use headwater_core::ops::recurrent::layer::Layer;
use headwater_core::ops::recurrent::lstm_layer::{GATES, backward_layer, forward_layer};
use headwater_core::plan::TensorView;
use headwater_core::row::{Access, Reg, RowBuilder};

/// Most time steps: two launches each.
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

    fn launch(self, s: &mut Sequence) -> Result<(), Refusal> {
        let (reads, writes): (Vec<&Tensor>, Vec<&Tensor>) =
            (self.reads.iter().collect(), self.writes.iter().collect());
        s.rows(&self.program.finish(), &reads, &writes)
    }
}

/// The launches of an `lstm_layer` node.
///
/// # Errors
/// Types without a kernel, and too many time steps.
pub fn lstm(
    chip: &Chip,
    cx: &OpCx,
    reads: &[Option<TensorView>],
    writes: &[TensorView],
    source: &Source,
) -> Result<Lowered, Refusal> {
    let l = forward_layer(cx).map_err(|e| Refusal(e.message))?;
    limit(&l)?;
    let s = &mut Sequence::new(chip, source);
    let [output, hidden, cell, activations, cells] = writes else {
        return Err(Refusal::new("a layer without its results"));
    };
    if l.batch == 0 {
        return Ok(Lowered::default());
    }
    let [output, hidden, cell, activations, cells] =
        [(0, output), (1, hidden), (2, cell), (3, activations), (4, cells)].map(|(i, v)| Tensor::write(i, v));
    let (gates, weight) = (input(reads, 0)?, input(reads, 1)?.transposed());
    let bias = reads.get(2).and_then(Option::as_ref).map(|view| Tensor::read(2, view));
    let carried = s.scratch(F32, &[l.batch, l.hidden])?;
    let sums = s.scratch(F32, &[l.batch, GATES * l.hidden])?;
    s.copy(&input(reads, 4)?, &carried)?;
    let step = |s: &mut Sequence, n: usize| {
        let before = if n == 0 { input(reads, 3)? } else { at(&output, &l, n - 1)? };
        s.product(&before, &weight, None, &sums)?;
        let (own, functions) = (at(&gates, &l, n)?, at(&activations, &l, n)?);
        let mut c = Cell::new(&l);
        let old = c.read(&carried);
        let mut values = Vec::new();
        for g in 0..GATES {
            let (sum, given) = (c.read(&gate(&sums, &l, g)?), c.read(&gate(&own, &l, g)?));
            let mut sum = c.program.expr(&(x(0) + x(1)), &[given, sum]);
            if let Some(bias) = &bias {
                let bias = c.read(&bias.part(0, g * l.hidden, l.hidden)?);
                sum = c.program.expr(&(x(0) + x(1)), &[sum, bias]);
            }
            let function = if g == 2 { x(0).tanh() } else { x(0).sigmoid() };
            let value = c.program.expr(&function, &[sum]);
            c.write(&gate(&functions, &l, g)?, value);
            values.push(value);
        }
        let new = c.program.expr(&(x(1) * x(4) + x(0) * x(2)), &[&values[..], &[old]].concat());
        let state = c.program.expr(&(x(0) * x(1).tanh()), &[values[3], new]);
        c.write(&at(&output, &l, n)?, state);
        c.write(&at(&cells, &l, n)?, new);
        c.write(&carried, new);
        c.launch(s)
    };
    let regular = l.steps - 1;
    step(s, 0)?;
    repeated(s, regular, |s, n| step(s, n + 1))?;
    s.copy(&at(&output, &l, l.steps - 1)?, &hidden)?;
    s.copy(&carried, &cell)?;
    Ok(std::mem::take(&mut s.lowered))
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

/// The launches of an `lstm_layer_backward` node.
///
/// # Errors
/// Types without a kernel, and too many time steps.
pub fn lstm_backward(
    chip: &Chip,
    cx: &OpCx,
    reads: &[Option<TensorView>],
    writes: &[TensorView],
    source: &Source,
) -> Result<Lowered, Refusal> {
    let l = backward_layer(cx).map_err(|e| Refusal(e.message))?;
    limit(&l)?;
    let s = &mut Sequence::new(chip, source);
    let [dgates, dhidden, dcell] = writes else { return Err(Refusal::new("a layer without its results")) };
    if l.batch == 0 {
        return Ok(Lowered::default());
    }
    let [dgates, dhidden, dcell] =
        [(0, dgates), (1, dhidden), (2, dcell)].map(|(i, view)| Tensor::write(i, view));
    let given = |i: usize| reads.get(i).and_then(Option::as_ref).map(|view| Tensor::read(i, view));
    let mut weight = input(reads, 3)?;
    if weight.dtype() == F32 && s.chip.arch == Arch::A2 {
        // The cube takes f32 whose rows run along the sums.
        weight = s.copied(&weight.transposed())?.transposed();
    }
    let (activations, cells, initial) = (input(reads, 4)?, input(reads, 5)?, input(reads, 6)?);
    let [dh, dc] = [(); 2].map(|()| s.scratch(F32, &[l.batch, l.hidden]));
    let (dh, dc) = (dh?, dc?);
    for (i, state) in [(1, &dh), (2, &dc)] {
        match given(i) {
            Some(last) => s.copy(&last, state)?,
            None => s.fill(state, 0.0)?,
        }
    }
    let output = given(0);
    // The nth step from the end.
    let step = |s: &mut Sequence, nth: usize| {
        let n = l.steps - 1 - nth;
        let before = if n == 0 { initial.clone() } else { at(&cells, &l, n - 1)? };
        let (functions, own) = (at(&activations, &l, n)?, at(&dgates, &l, n)?);
        let mut c = Cell::new(&l);
        let mut grad = c.read(&dh);
        if let Some(output) = &output {
            let more = c.read(&at(output, &l, n)?);
            grad = c.program.expr(&(x(0) + x(1)), &[grad, more]);
        }
        let carried = c.read(&dc);
        let mut regs = Vec::new();
        for g in 0..GATES {
            regs.push(c.read(&gate(&functions, &l, g)?));
        }
        let (cell, before) = (c.read(&at(&cells, &l, n)?), c.read(&before));
        let tanh = c.program.expr(&x(0).tanh(), &[cell]);
        let one = || Expr::Float(1.0);
        let through = x(0) + x(1) * x(2) * (one() - x(3) * x(3));
        let through = c.program.expr(&through, &[carried, grad, regs[3], tanh]);
        // Input, forget, candidate, output; what reaches the cell; the gradient; the cell before, and this one's tanh.
        regs.extend([through, grad, before, tanh]);
        let sigmoid = |i: usize| x(i) * (one() - x(i));
        let slopes = [
            x(4) * x(2) * sigmoid(0),
            x(4) * x(6) * sigmoid(1),
            x(4) * x(0) * (one() - x(2) * x(2)),
            x(5) * x(7) * sigmoid(3),
        ];
        for (g, slope) in slopes.into_iter().enumerate() {
            let slope = c.program.expr(&slope, &regs);
            c.write(&gate(&own, &l, g)?, slope);
        }
        let next = c.program.expr(&(x(4) * x(1)), &regs);
        c.write(&dc, next);
        c.launch(s)?;
        s.product(&own, &weight, None, &dh)
    };
    repeated(s, l.steps - 1, &step)?;
    step(s, l.steps - 1)?;
    s.copy(&dh, &dhidden)?;
    s.copy(&dc, &dcell)?;
    Ok(std::mem::take(&mut s.lowered))
}
