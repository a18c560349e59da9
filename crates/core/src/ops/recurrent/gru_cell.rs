//! One step of gated recurrent units.

use super::cell::{self, block, gates, state_type};
use super::gru_layer::GATES;
use crate::ops::pointwise::{sigmoid::SIGMOID, tanh::TANH};
use crate::ops::{Body, Cost, Derivative, OpDef, Precision, required};

/// `(input [B, inputs], state [B, H], weights [3H, inputs] and [3H, H], two biases [3H] or none)` to the next
/// state.
pub static GRU_CELL: OpDef = OpDef {
    name: "gru_cell",
    schemas: &[
        "gru_cell(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor",
    ],
    infer: |cx| Ok(vec![state_type(cx, GATES, 1)?]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let hidden = state_type(cx, GATES, 1)?.shape[1];
        let [x, h] = gates(b, inputs, 1)?;
        let mut gate = |i: usize| {
            let (x, h) = (block(b, x, i, hidden)?, block(b, h, i, hidden)?);
            let sum = b.add(x, h)?;
            b.call(&SIGMOID, &[sum])
        };
        let (r, z) = (gate(0)?, gate(1)?);
        let (x, h) = (block(b, x, 2, hidden)?, block(b, h, 2, hidden)?);
        let reset = b.mul(r, h)?;
        let sum = b.add(x, reset)?;
        let n = b.call(&TANH, &[sum])?;
        // (1 − z) · n + z · h.
        let less = b.sub(required(inputs, 1)?, n)?;
        let moved = b.mul(z, less)?;
        Ok(vec![b.add(n, moved)?])
    }),
    cases: || cell::cases(GATES, 1),
};
