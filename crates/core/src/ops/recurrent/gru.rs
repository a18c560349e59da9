//! Gated recurrent units over a sequence.

use super::gru_layer::{GATES, GRU_LAYER};
use super::stack::{self, Stack};
use crate::ops::{Body, Cost, Derivative, OpDef, Precision};

/// `(input [T, B, inputs], states [layers · directions, B, H], parameters)` to the states of the last layer
/// `[T, B, directions · H]` and the last ones. `[B, T, ...]` with `batch_first`. The parameters of a layer
/// and direction are `[3H, inputs]`, `[3H, H]` and, with `has_biases`, two of `[3H]`. `dropout` acts between
/// layers while training.
pub static GRU: OpDef = OpDef {
    name: "gru",
    schemas: &[
        "gru.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)",
    ],
    infer: |cx| Ok(Stack::of(cx, GATES, 1)?.types()),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Low,
    cost: Cost::Custom(|cx, _| Stack::of(cx, GATES, 1).map_or(0.0, |s| s.flops(cx, 50))),
    body: Body::Decompose(|b, cx, inputs| {
        Stack::of(cx, GATES, 1)?.build(b, inputs, |b, operands, attrs| {
            let mut results = b.apply(&GRU_LAYER, operands, attrs)?;
            results.truncate(2);
            Ok(results)
        })
    }),
    cases: || stack::cases(GATES, 1),
};
