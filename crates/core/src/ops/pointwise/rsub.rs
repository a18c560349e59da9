//! `other - alpha · self`.

use super::{number, operand, with_number};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// The difference the other way round, broadcast and promoted. With one input, `other` is an attribute.
pub static RSUB: OpDef = OpDef {
    name: "rsub",
    schemas: &[
        "rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor",
    ],
    infer: |cx| (super::sub::SUB.infer)(cx),
    derivative: Derivative::Rule(|cx| {
        let g = cx.grad(0)?;
        cx.set(1, g)?;
        if cx.needs(0) {
            let alpha = cx.of(|of| of.opt_float("alpha"))?.unwrap_or(1.0);
            let g = cx.scale(g, -alpha)?;
            cx.set(0, g)?;
        }
        Ok(())
    }),
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&["other"]);
        let x = operand(cx, 0, dtype)?;
        let alpha = cx.opt_float("alpha")?.unwrap_or(1.0);
        let this = if alpha == 1.0 { x.clone() } else { number(alpha, dtype) * x.clone() };
        Ok(vec![with_number(cx, dtype, x, operand(cx, 1, dtype)? - this)?])
    }),
    cases: || {
        vec![
            Case::new("broadcast").f(&[2, 1]).f(&[3]),
            Case::new("number").f(&[3]).attr("other", 1).attr("alpha", 3),
        ]
    },
};
