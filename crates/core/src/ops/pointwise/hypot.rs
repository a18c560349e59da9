//! Length of the hypotenuse.

use super::{float_arithmetic, floating, tensor};
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `√(self² + other²)`, without overflow of the squares; broadcast and promoted.
pub static HYPOT: OpDef = OpDef {
    name: "hypot",
    schemas: &["hypot(Tensor self, Tensor other) -> Tensor"],
    infer: float_arithmetic,
    derivative: Derivative::Rule(|cx| {
        let (g, y) = (cx.grad(0)?, cx.y(0));
        for i in 0..2 {
            if cx.needs(i) {
                let x = cx.x(i)?;
                let slope = cx.div(x, y)?;
                let dx = cx.mul(g, slope)?;
                cx.set(i, dx)?;
            }
        }
        Ok(())
    }),
    precision: Precision::Widest,
    cost: Cost::PerOutput(8),
    body: Body::Pointwise(|cx| {
        let dtype = floating(cx.result_type(&[]));
        let (a, b) = (tensor(cx, 0, dtype)?.abs(), tensor(cx, 1, dtype)?.abs());
        let (long, short) = (a.clone().max(b.clone()), a.min(b));
        let share = short / long.clone();
        let length = long.clone() * (share.clone() * share + 1.0).sqrt();
        // Two zeros and two infinities have no share.
        let plain = long.clone().eq(float(0.0)).or(long.clone().is_inf());
        Ok(vec![plain.select(long, length)])
    }),
    cases: || {
        vec![
            Case::new("broadcast").range(&[2, 3], 0.2, 2.0).f(&[3]),
            Case::new("large").range(&[2], 1e200, 2e200).range(&[2], 1e200, 2e200),
        ]
    },
};
