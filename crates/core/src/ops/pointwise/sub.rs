//! `self - alpha · other`.

use super::{arithmetic, number, operand, with_number};
use crate::dtype::Class;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// Difference, broadcast and promoted. With one input, `other` is an attribute. Truth values are refused.
pub static SUB: OpDef = OpDef {
    name: "sub",
    schemas: &[
        "sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor",
        "subtract.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "subtract.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor",
    ],
    infer: |cx| {
        let out = arithmetic(cx)?;
        ensure!(
            out[0].dtype.class() != Class::Bool,
            DType,
            "truth values have no difference: use logical_xor"
        );
        Ok(out)
    },
    derivative: Derivative::Rule(|cx| {
        let g = cx.grad(0)?;
        cx.set(0, g)?;
        if cx.needs(1) {
            let alpha = cx.of(|of| of.opt_float("alpha"))?.unwrap_or(1.0);
            let g = cx.scale(g, -alpha)?;
            cx.set(1, g)?;
        }
        Ok(())
    }),
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&["other"]);
        let other = operand(cx, 1, dtype)?;
        let alpha = cx.opt_float("alpha")?.unwrap_or(1.0);
        let other = if alpha == 1.0 { other } else { number(alpha, dtype) * other };
        let this = operand(cx, 0, dtype)?;
        Ok(vec![with_number(cx, dtype, this.clone(), this - other)?])
    }),
    cases: || {
        vec![
            Case::new("broadcast").f(&[2, 1]).f(&[3]),
            Case::new("scaled").f(&[3]).f(&[3]).attr("alpha", 2),
            Case::new("number").f(&[3]).attr("other", 0.5),
        ]
    },
};
