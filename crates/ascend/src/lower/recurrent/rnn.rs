//! One layer of simple recurrent units and its gradient. The state is rounded to its type at each step.

use super::{Cell, at, backward_weight, last_gradient, limit, repeated};
use crate::lower::launch::Refusal;
use crate::lower::sequence::Sequence;
use headwater_core::DType::F32;
use headwater_core::expr::{float, input as x};
use headwater_core::ops::OpCx;
use headwater_core::ops::recurrent::rnn_layer::{backward_layer, forward_layer};

/// The launches of an `rnn_layer` node.
///
/// # Errors
/// Types without a kernel, and too many time steps.
pub fn rnn(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let (l, relu) = (forward_layer(cx)?, cx.flag("relu")?);
    limit(&l)?;
    if l.batch == 0 {
        return Ok(());
    }
    let (output, hidden) = (s.output(0)?, s.output(1)?);
    let (gates, weight) = (s.input(0)?, s.input(1)?.transposed());
    let bias = s.optional(2);
    let sums = s.scratch(F32, &[l.batch, l.hidden])?;
    let function = if relu { x(0).max(float(0.0)) } else { x(0).tanh() };
    let step = |s: &mut Sequence, n: usize| {
        let before = if n == 0 { s.input(3)? } else { at(&output, &l, n - 1)? };
        s.product(&before, &weight, None, &sums)?;
        let mut c = Cell::new(&l);
        let sum = c.sum(&at(&gates, &l, n)?, &[Some(sums.clone()), bias.clone()]);
        let state = c.program.expr(&function, &[sum]);
        c.write(&at(&output, &l, n)?, state);
        c.launch(s)
    };
    step(s, 0)?;
    repeated(s, l.steps - 1, |s, n| step(s, n + 1))?;
    s.copy(&at(&output, &l, l.steps - 1)?, &hidden)?;
    Ok(())
}

/// The launches of an `rnn_layer_backward` node.
///
/// # Errors
/// Types without a kernel, and too many time steps.
pub fn rnn_backward(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let (l, relu) = (backward_layer(cx)?, cx.flag("relu")?);
    limit(&l)?;
    if l.batch == 0 {
        return Ok(());
    }
    let (dgates, dhidden) = (s.output(0)?, s.output(1)?);
    let weight = backward_weight(s, 2)?;
    let states = s.input(3)?;
    let output = s.optional(0);
    let dh = last_gradient(s, 1, &l)?;
    let slope = match relu {
        true => x(1).gt(float(0.0)).select(x(0), float(0.0)),
        false => x(0) * (float(1.0) - x(1) * x(1)),
    };
    // The nth step from the end.
    let step = |s: &mut Sequence, nth: usize| {
        let n = l.steps - 1 - nth;
        let own = at(&dgates, &l, n)?;
        let mut c = Cell::new(&l);
        let grad = c.sum(&dh, &[output.as_ref().map(|output| at(output, &l, n)).transpose()?]);
        let state = c.read(&at(&states, &l, n)?);
        let grad = c.program.expr(&slope, &[grad, state]);
        c.write(&own, grad);
        c.launch(s)?;
        s.product(&own, &weight, None, &dh)
    };
    repeated(s, l.steps, &step)?;
    s.copy(&dh, &dhidden)?;
    Ok(())
}
