//! One step of a long short-term memory.

use super::cell::{self, block, gates, state_type};
use super::lstm_layer::GATES;
use crate::ops::pointwise::{sigmoid::SIGMOID, tanh::TANH};
use crate::ops::{Body, Cost, Derivative, OpDef, Precision, required};

/// `(input [B, inputs], hidden [B, H], cell [B, H], weights [4H, inputs] and [4H, H], two biases [4H] or
/// none)` to the next hidden and cell state.
pub static LSTM_CELL: OpDef = OpDef {
    name: "lstm_cell",
    schemas: &[
        "lstm_cell(Tensor input, Tensor[] hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> (Tensor, Tensor)",
    ],
    infer: |cx| Ok(vec![state_type(cx, GATES, 2)?; 2]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let hidden = state_type(cx, GATES, 2)?.shape[1];
        let [x, h] = gates(b, inputs, 2)?;
        let sums = b.add(x, h)?;
        let mut gate = |i: usize| {
            let sum = block(b, sums, i, hidden)?;
            b.call(if i == 2 { &TANH } else { &SIGMOID }, &[sum])
        };
        let (i, f, g, o) = (gate(0)?, gate(1)?, gate(2)?, gate(3)?);
        let (forgot, added) = (b.mul(f, required(inputs, 2)?)?, b.mul(i, g)?);
        let cell = b.add(forgot, added)?;
        let tanh = b.call(&TANH, &[cell])?;
        Ok(vec![b.mul(o, tanh)?, cell])
    }),
    cases: || cell::cases(GATES, 2),
};
