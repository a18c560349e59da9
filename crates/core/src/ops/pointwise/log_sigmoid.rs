//! Logarithm of the logistic function.

use super::{chain, float_only};
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, required};

/// `ln(1 / (1 + e^-x))`, as `min(x, 0) - ln(1 + e^-|x|)`.
pub static LOG_SIGMOID: OpDef = OpDef {
    name: "log_sigmoid",
    schemas: &["log_sigmoid(Tensor self) -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let minus = b.neg(x)?;
            let slope = b.call(&super::sigmoid::SIGMOID, &[minus])?;
            b.mul(g, slope)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(20),
    body: Body::Pointwise(|_| Ok(vec![input(0).min(float(0.0)) - (-input(0).abs()).exp().log1p()])),
    cases: || vec![Case::new("plain").distinct(&[7]), Case::new("far").range(&[2], -800.0, 800.0)],
};

/// [`LOG_SIGMOID`] as decompositions spell it, with the `e^-|x|` that PyTorch keeps for the backward pass.
pub static LOG_SIGMOID_FORWARD: OpDef = OpDef {
    name: "log_sigmoid_forward",
    schemas: &["log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)"],
    infer: |cx| {
        let out = float_only(cx)?;
        Ok(vec![out[0].clone(), out[0].clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(20),
    body: Body::Decompose(|b, _, inputs| {
        let x = required(inputs, 0)?;
        let y = b.call(&LOG_SIGMOID, &[x])?;
        let size = b.call(&super::abs::ABS, &[x])?;
        let minus = b.neg(size)?;
        Ok(vec![y, b.call(&super::exp::EXP, &[minus])?])
    }),
    cases: || vec![Case::new("plain").distinct(&[7])],
};
