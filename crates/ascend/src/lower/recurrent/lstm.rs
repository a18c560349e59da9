//! One layer of a long short-term memory and its gradient. The state is carried in f32.

use super::{Cell, at, backward_weight, gate, last_gradient, limit, optional, repeated};
use crate::chip::Chip;
use crate::kernel::Source;
use crate::lower::launch::{Lowered, Refusal};
use crate::lower::product::input;
use crate::lower::sequence::{Sequence, Tensor};
use headwater_core::DType::F32;
use headwater_core::expr::{Expr, input as x};
use headwater_core::ops::OpCx;
use headwater_core::ops::recurrent::lstm_layer::{GATES, backward_layer, forward_layer};
use headwater_core::plan::TensorView;

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
    let bias = optional(reads, 2);
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
            let bias = bias.as_ref().map(|bias| bias.part(0, g * l.hidden, l.hidden)).transpose()?;
            let sum = c.sum(&gate(&own, &l, g)?, &[Some(gate(&sums, &l, g)?), bias]);
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
    let weight = backward_weight(s, reads, 3)?;
    let (activations, cells, initial) = (input(reads, 4)?, input(reads, 5)?, input(reads, 6)?);
    let (dh, dc) = (last_gradient(s, reads, 1, &l)?, last_gradient(s, reads, 2, &l)?);
    let output = optional(reads, 0);
    // The nth step from the end.
    let step = |s: &mut Sequence, nth: usize| {
        let n = l.steps - 1 - nth;
        let before = if n == 0 { initial.clone() } else { at(&cells, &l, n - 1)? };
        let (functions, own) = (at(&activations, &l, n)?, at(&dgates, &l, n)?);
        let mut c = Cell::new(&l);
        let grad = c.sum(&dh, &[output.as_ref().map(|output| at(output, &l, n)).transpose()?]);
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
