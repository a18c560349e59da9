//! One layer of gated recurrent units and its gradient. The state is carried in f32.

use super::{Cell, at, backward_weight, gate, last_gradient, limit, optional, repeated};
use crate::chip::Chip;
use crate::kernel::Source;
use crate::lower::launch::{Lowered, Refusal};
use crate::lower::product::input;
use crate::lower::sequence::{Sequence, Tensor};
use headwater_core::DType::F32;
use headwater_core::expr::{float, input as x};
use headwater_core::ops::OpCx;
use headwater_core::ops::recurrent::gru_layer::{GATES, STASH, backward_layer, forward_layer};
use headwater_core::plan::TensorView;

/// The launches of a `gru_layer` node.
///
/// # Errors
/// Types without a kernel, and too many time steps.
pub fn gru(
    chip: &Chip,
    cx: &OpCx,
    reads: &[Option<TensorView>],
    writes: &[TensorView],
    source: &Source,
) -> Result<Lowered, Refusal> {
    let l = forward_layer(cx).map_err(|e| Refusal(e.message))?;
    limit(&l)?;
    let s = &mut Sequence::new(chip, source);
    let [output, hidden, stash] = writes else { return Err(Refusal::new("a layer without its results")) };
    if l.batch == 0 {
        return Ok(Lowered::default());
    }
    let [output, hidden, stash] = [(0, output), (1, hidden), (2, stash)].map(|(i, v)| Tensor::write(i, v));
    let (gates, weight) = (input(reads, 0)?, input(reads, 1)?.transposed());
    let bias = optional(reads, 2);
    let carried = s.scratch(F32, &[l.batch, l.hidden])?;
    let sums = s.scratch(F32, &[l.batch, GATES * l.hidden])?;
    s.copy(&input(reads, 3)?, &carried)?;
    let step = |s: &mut Sequence, n: usize| {
        let before = if n == 0 { input(reads, 3)? } else { at(&output, &l, n - 1)? };
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
    Ok(std::mem::take(&mut s.lowered))
}

/// The launches of a `gru_layer_backward` node.
///
/// # Errors
/// Types without a kernel, and too many time steps.
pub fn gru_backward(
    chip: &Chip,
    cx: &OpCx,
    reads: &[Option<TensorView>],
    writes: &[TensorView],
    source: &Source,
) -> Result<Lowered, Refusal> {
    let l = backward_layer(cx).map_err(|e| Refusal(e.message))?;
    limit(&l)?;
    let s = &mut Sequence::new(chip, source);
    let [outer, inner, dhidden] = writes else { return Err(Refusal::new("a layer without its results")) };
    if l.batch == 0 {
        return Ok(Lowered::default());
    }
    let [outer, inner, dhidden] = [(0, outer), (1, inner), (2, dhidden)].map(|(i, v)| Tensor::write(i, v));
    let weight = backward_weight(s, reads, 2)?;
    let (stash, states, initial) = (input(reads, 3)?, input(reads, 4)?, input(reads, 5)?);
    let output = optional(reads, 0);
    // A state's gradient has two terms: through the update gate, and through the product.
    let direct = last_gradient(s, reads, 1, &l)?;
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
    Ok(std::mem::take(&mut s.lowered))
}
