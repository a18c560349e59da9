//! `self · ln other`, and 0 where `self` is 0.

use super::{compare, float_arithmetic, floating, operand};
use crate::attr::Attrs;
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `self · ln other`, 0 where `self` is 0 unless `other` is NaN; broadcast and promoted.
pub static XLOGY: OpDef = OpDef {
    name: "xlogy",
    schemas: &[
        "xlogy.Tensor(Tensor self, Tensor other) -> Tensor",
        "xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor",
        "special_xlogy(Tensor self, Tensor other) -> Tensor",
        "special_xlogy.other_scalar(Tensor self, Scalar other) -> Tensor",
    ],
    infer: float_arithmetic,
    derivative: Derivative::Rule(|cx| {
        let (g, x) = (cx.grad(0)?, cx.x(0)?);
        let Some(other) = cx.opt_x(1) else {
            let slope = cx.args().float("other")?.ln();
            let dx = cx.scale(g, slope)?;
            return cx.set(0, dx);
        };
        if cx.needs(0) {
            let log = cx.call(&super::log::LOG, &[other])?;
            let dx = cx.mul(g, log)?;
            // The function is flat there: its value is 0 whatever the logarithm.
            let zero = cx.one(&compare::EQ, &[x], Attrs::new().with("other", 0))?;
            let outside = cx.one(&compare::LE, &[other], Attrs::new().with("other", 0))?;
            let flat = cx.call(&super::logical::LOGICAL_AND, &[zero, outside])?;
            let dx = cx.drop_where(flat, dx)?;
            cx.set(0, dx)?;
        }
        if cx.needs(1) {
            let dy = cx.mul(g, x)?;
            let dy = cx.div(dy, other)?;
            cx.set(1, dy)?;
        }
        Ok(())
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(10),
    body: Body::Pointwise(|cx| {
        let dtype = floating(cx.result_type(&["other"]));
        let (x, y) = (operand(cx, 0, dtype)?, operand(cx, 1, dtype)?);
        let product = x.clone().eq(float(0.0)).select(float(0.0), x * y.clone().log());
        Ok(vec![y.clone().is_nan().select(y, product)])
    }),
    cases: || {
        vec![
            Case::new("broadcast").range(&[2, 3], 0.1, 2.0).range(&[3], 0.2, 2.0),
            Case::new("number").f(&[3]).attr("other", 2.5),
        ]
    },
};
