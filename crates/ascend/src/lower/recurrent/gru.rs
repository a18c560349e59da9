//! One layer of gated recurrent units and its gradient. The state is carried in f32.

use super::{Cell, at, backward_weight, gate, last_gradient, limit, repeated};
use crate::lower::launch::Refusal;
use crate::lower::sequence::Sequence;
use headwater_core::DType::F32;
use headwater_core::expr::{float, input as x};
use headwater_core::ops::OpCx;
use headwater_core::ops::recurrent::gru_layer::{GATES, STASH, backward_layer, forward_layer};

/// The launches of a `gru_layer` node.
///
/// # Errors
/// Types without a kernel, and too many time steps.
pub fn gru(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let l = forward_layer(cx)?;
    limit(&l)?;
    if l.batch == 0 {
        return Ok(());
    }
    let (output, hidden, stash) = (s.output(0)?, s.output(1)?, s.output(2)?);
    let (gates, weight) = (s.input(0)?, s.input(1)?.transposed());
    let bias = s.optional(2);
    let carried = s.scratch(F32, &[l.batch, l.hidden])?;
    let sums = s.scratch(F32, &[l.batch, GATES * l.hidden])?;
    s.copy(&s.input(3)?, &carried)?;
    let step = |s: &mut Sequence, n: usize| {
        let before = if n == 0 { s.input(3)? } else { at(&output, &l, n - 1)? };
        s.product(&before, &weight, None, &sums)?;
        let (own, kept) = (at(&gates, &l, n)?, at(&stash, &l, n)?);
        let mut c = Cell::new(&l);
        let old = c.read(&carried);
        let mut inner = Vec::new();
        for g in 0..GATES {
            let bias = bias.as_ref().map(|bias| bias.part(0, g * l.hidden, l.hidden)).transpose()?;
            inner.push(c.sum(&gate(&sums, &l, g)?, &[bias]));
        }
        let mut outer = Vec::new();
        for g in 0..GATES {
            outer.push(c.read(&gate(&own, &l, g)?));
        }
        let [reset, update] = [0, 1].map(|g| c.program.expr(&(x(0) + x(1)).sigmoid(), &[outer[g], inner[g]]));
        let candidate = c.program.expr(&(x(0) + x(1) * x(2)).tanh(), &[outer[2], reset, inner[2]]);
        let state = (float(1.0) - x(0)) * x(1) + x(0) * x(2);
        let state = c.program.expr(&state, &[update, candidate, old]);
        let stashed: [_; STASH] = [reset, update, candidate, inner[2]];
        for (block, value) in stashed.into_iter().enumerate() {
            c.write(&gate(&kept, &l, block)?, value);
        }
        c.write(&at(&output, &l, n)?, state);
        c.write(&carried, state);
        c.launch(s)
    };
    step(s, 0)?;
    repeated(s, l.steps - 1, |s, n| step(s, n + 1))?;
    s.copy(&at(&output, &l, l.steps - 1)?, &hidden)?;
    Ok(())
}

/// The launches of a `gru_layer_backward` node.
///
/// # Errors
/// Types without a kernel, and too many time steps.
pub fn gru_backward(s: &mut Sequence, cx: &OpCx) -> Result<(), Refusal> {
    let l = backward_layer(cx)?;
    limit(&l)?;
    if l.batch == 0 {
        return Ok(());
    }
    let (outer, inner, dhidden) = (s.output(0)?, s.output(1)?, s.output(2)?);
    let weight = backward_weight(s, 2)?;
    let (stash, states, initial) = (s.input(3)?, s.input(4)?, s.input(5)?);
    let output = s.optional(0);
    // A state's gradient has two terms: through the update gate, and through the product.
    let direct = last_gradient(s, 1, &l)?;
    let through = s.scratch(F32, &[l.batch, l.hidden])?;
    s.fill(&through, 0.0)?;
    // The nth step from the end.
    let step = |s: &mut Sequence, nth: usize| {
        let n = l.steps - 1 - nth;
        let before = if n == 0 { initial.clone() } else { at(&states, &l, n - 1)? };
        let (kept, to_outer, to_inner) = (at(&stash, &l, n)?, at(&outer, &l, n)?, at(&inner, &l, n)?);
        let mut c = Cell::new(&l);
        let later = output.as_ref().map(|output| at(output, &l, n)).transpose()?;
        // Reset, update, candidate, the candidate's inner sum; the gradient; the state before.
        let mut regs = Vec::new();
        for block in 0..STASH {
            regs.push(c.read(&gate(&kept, &l, block)?));
        }
        regs.push(c.sum(&direct, &[Some(through.clone()), later]));
        regs.push(c.read(&before));
        let one = || float(1.0);
        let candidate = c.program.expr(&(x(4) * (one() - x(1)) * (one() - x(2) * x(2))), &regs);
        let update = c.program.expr(&(x(4) * (x(5) - x(2)) * x(1) * (one() - x(1))), &regs);
        let reset = c.program.expr(&(x(0) * x(2) * x(1) * (one() - x(1))), &[candidate, regs[0], regs[3]]);
        let inside = c.program.expr(&(x(0) * x(1)), &[candidate, regs[0]]);
        let next = c.program.expr(&(x(4) * x(1)), &regs);
        for (g, [own, state]) in
            [[reset, reset], [update, update], [candidate, inside]].into_iter().enumerate()
        {
            c.write(&gate(&to_outer, &l, g)?, own);
            c.write(&gate(&to_inner, &l, g)?, state);
        }
        c.write(&direct, next);
        c.launch(s)?;
        s.product(&to_inner, &weight, None, &through)
    };
    repeated(s, l.steps - 1, &step)?;
    step(s, l.steps - 1)?;
    let mut c = Cell::new(&l);
    let first = c.sum(&direct, &[Some(through.clone())]);
    c.write(&dhidden, first);
    c.launch(s)?;
    Ok(())
}
