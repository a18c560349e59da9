//! Logarithm of a sum of exponentials.

use super::{float_arithmetic, floating, tensor};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

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
    cases: || {
        vec![Case::new("broadcast").f(&[2, 3]).f(&[3]), Case::new("far").range(&[3], 700.0, 900.0).f(&[3])]
    },
};
