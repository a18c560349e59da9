//! Logarithm of a sum of exponentials.

use super::{float_arithmetic, floating, tensor};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, required};
use std::f64::consts::LN_2;

/// `ln(e^self + e^other)`, without overflow; broadcast and promoted.
pub static LOGADDEXP: OpDef = OpDef {
    name: "logaddexp",
    schemas: &["logaddexp(Tensor self, Tensor other) -> Tensor"],
    infer: float_arithmetic,
    derivative: Derivative::Rule(|cx| {
        let (g, a, b) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?);
        for (i, x, other) in [(0, a, b), (1, b, a)] {
            if cx.needs(i) {
                let ahead = cx.sub(x, other)?;
                let share = cx.call(&super::sigmoid::SIGMOID, &[ahead])?;
                let dx = cx.mul(g, share)?;
                cx.set(i, dx)?;
            }
        }
        Ok(())
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(20),
    body: Body::Pointwise(|cx| {
        let dtype = floating(cx.result_type(&[]));
        let (a, b) = (tensor(cx, 0, dtype)?, tensor(cx, 1, dtype)?);
        let sum = a.clone().max(b.clone()) + (-(a.clone() - b.clone()).abs()).exp().log1p();
        // Equal infinities have no difference.
        Ok(vec![a.clone().is_inf().and(a.clone().eq(b)).select(a, sum)])
    }),
    cases,
};

/// `log₂(2^self + 2^other)`, without overflow; broadcast and promoted.
pub static LOGADDEXP2: OpDef = OpDef {
    name: "logaddexp2",
    schemas: &["logaddexp2(Tensor self, Tensor other) -> Tensor"],
    infer: float_arithmetic,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerOutput(22),
    body: Body::Decompose(|b, cx, inputs| {
        let dtype = floating(cx.result_type(&[]));
        let mut natural = Vec::with_capacity(2);
        for i in 0..2 {
            let x = b.cast(required(inputs, i)?, dtype)?;
            natural.push(b.scale(x, LN_2)?);
        }
        let sum = b.call(&LOGADDEXP, &natural)?;
        Ok(vec![b.scale(sum, 1.0 / LN_2)?])
    }),
    cases,
};

fn cases() -> Vec<Case> {
    vec![Case::new("broadcast").f(&[2, 3]).f(&[3]), Case::new("far").range(&[3], 700.0, 900.0).f(&[3])]
}
