//! Long short-term memory over a sequence.

use super::lstm_layer::{GATES, LSTM_LAYER};
use super::stack::{self, Stack};
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(input [T, B, inputs], hidden and cell states [layers · directions, B, H], parameters)` to the hidden
/// states of the last layer `[T, B, directions · H]` and the last states. `[B, T, ...]` with `batch_first`.
/// The parameters of a layer and direction are `[4H, inputs]`, `[4H, H]` and, with `has_biases`, two of
/// `[4H]`. `dropout` acts between layers while training.
pub static LSTM: OpDef = OpDef {
    name: "lstm",
    schemas: &[
        "lstm.input(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| Ok(Stack::of(cx, GATES, 2)?.types()),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| Stack::of(cx, GATES, 2).map_or(0.0, |s| s.flops(cx, 60))),
    body: Body::Decompose(|b, cx, inputs| {
        Stack::of(cx, GATES, 2)?.build(b, inputs, |b, operands, attrs| {
            let mut results = b.apply(&LSTM_LAYER, operands, attrs)?;
            results.truncate(3);
            Ok(results)
        })
    }),
    cases: || stack::cases(GATES, 2),
};
