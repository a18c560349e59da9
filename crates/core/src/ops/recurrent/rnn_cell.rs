//! One step of simple recurrent units.

use super::cell::{self, gates, state_type};
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::{relu::RELU, tanh::TANH};
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(input [B, inputs], state [B, H], weights [H, inputs] and [H, H], two biases [H] or none)` to the next
/// state.
pub static RNN_TANH_CELL: OpDef = OpDef {
    name: "rnn_tanh_cell",
    schemas: &[
        "rnn_tanh_cell(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor",
    ],
    infer: |cx| Ok(vec![state_type(cx, 1, 1)?]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b, _, inputs| step(b, inputs, &TANH)),
    cases: || cell::cases(1, 1),
};

/// [`RNN_TANH_CELL`] with `max(0, x)` for the hyperbolic tangent.
pub static RNN_RELU_CELL: OpDef = OpDef {
    name: "rnn_relu_cell",
    schemas: &[
        "rnn_relu_cell(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor",
    ],
    infer: |cx| Ok(vec![state_type(cx, 1, 1)?]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Free,
    body: Body::Decompose(|b, _, inputs| step(b, inputs, &RELU)),
    cases: || cell::cases(1, 1),
};

fn step(b: &mut Builder, inputs: &[Option<ValueId>], function: &'static OpDef) -> Result<Vec<ValueId>> {
    let [x, h] = gates(b, inputs, 1)?;
    let sum = b.add(x, h)?;
    Ok(vec![b.call(function, &[sum])?])
}
