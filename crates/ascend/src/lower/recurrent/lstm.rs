//! One layer of a long short-term memory and its gradient. The state is carried in f32.

use super::{Cell, at, backward_weight, gate, last_gradient, limit, repeated};
use crate::lower::launch::Refusal;
use crate::lower::sequence::Sequence;
use headwater_core::DType::F32;
use headwater_core::expr::{Expr, input as x};
use headwater_core::ops::OpCx;
use headwater_core::ops::recurrent::lstm_layer::{GATES, backward_layer, forward_layer};

/// The launches of an `lstm_layer` node.
///
/// # Errors
/// Types without a kernel, and too many time steps.
pub fn lstm(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let l = forward_layer(cx)?;
    limit(&l)?;
    if l.batch == 0 {
        return Ok(());
    }
    let (output, hidden, cell) = (s.output(0)?, s.output(1)?, s.output(2)?);
    let (activations, cells) = (s.output(3)?, s.output(4)?);
    let (gates, weight) = (s.input(0)?, s.input(1)?.transposed());
    let bias = s.optional(2);
    let carried = s.scratch(F32, &[l.batch, l.hidden])?;
    let sums = s.scratch(F32, &[l.batch, GATES * l.hidden])?;
    s.copy(&s.input(4)?, &carried)?;
    let step = |s: &mut Sequence, n: usize| {
        let before = if n == 0 { s.input(3)? } else { at(&output, &l, n - 1)? };
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
    Ok(())
}

/// The launches of an `lstm_layer_backward` node.
///
/// # Errors
/// Types without a kernel, and too many time steps.
pub fn lstm_backward(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let l = backward_layer(cx)?;
    limit(&l)?;
    if l.batch == 0 {
        return Ok(());
    }
    let (dgates, dhidden, dcell) = (s.output(0)?, s.output(1)?, s.output(2)?);
    let weight = backward_weight(s, 3)?;
    let (activations, cells, initial) = (s.input(4)?, s.input(5)?, s.input(6)?);
    let (dh, dc) = (last_gradient(s, 1, &l)?, last_gradient(s, 2, &l)?);
    let output = s.optional(0);
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
        // Input, forget, candidate, output; what reaches the cell; the gradient; the cell before, and this
        // one's tanh.
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
    Ok(())
}
