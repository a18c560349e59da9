//! Simple recurrent units over a sequence.

use super::rnn_layer::RNN_LAYER;
use super::stack::{self, Stack};
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Cost, Derivative, OpCx, OpDef, Precision};

/// `(input [T, B, inputs], states [layers · directions, B, H], parameters)` to the states of the last layer
/// `[T, B, directions · H]` and the last ones. `[B, T, ...]` with `batch_first`. The parameters of a layer
/// and direction are `[H, inputs]`, `[H, H]` and, with `has_biases`, two of `[H]`. `dropout` acts between
/// layers while training.
pub static RNN_TANH: OpDef = OpDef {
    name: "rnn_tanh",
    schemas: &[
        "rnn_tanh.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)",
    ],
    infer: |cx| Ok(Stack::of(cx, 1, 1)?.types()),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| Stack::of(cx, 1, 1).map_or(0.0, |s| s.flops(cx, 12))),
    body: Body::Decompose(|b, cx, inputs| decompose(b, cx, inputs, false)),
    cases: || stack::cases(1, 1),
};

/// [`RNN_TANH`] with `max(0, x)` for the hyperbolic tangent.
pub static RNN_RELU: OpDef = OpDef {
    name: "rnn_relu",
    schemas: &[
        "rnn_relu.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)",
    ],
    infer: |cx| Ok(Stack::of(cx, 1, 1)?.types()),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| Stack::of(cx, 1, 1).map_or(0.0, |s| s.flops(cx, 1))),
    body: Body::Decompose(|b, cx, inputs| decompose(b, cx, inputs, true)),
    cases: || stack::cases(1, 1),
};

fn decompose(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>], relu: bool) -> Result<Vec<ValueId>> {
    let stack = Stack::of(cx, 1, 1)?;
    stack.build(b, inputs, |b, operands, attrs| b.apply(&RNN_LAYER, operands, attrs.with("relu", relu)))
}
