//! `self · other`.

use super::to::TO;
use super::{arithmetic, operand, overflows, with_number};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::expr::Expr;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};

/// Product, broadcast and promoted. With one input, `other` is an attribute.
pub static MUL: OpDef = OpDef {
    name: "mul",
    schemas: &[
        "mul.Tensor(Tensor self, Tensor other) -> Tensor",
        "mul.Scalar(Tensor self, Scalar other) -> Tensor",
        "multiply.Tensor(Tensor self, Tensor other) -> Tensor",
        "multiply.Scalar(Tensor self, Scalar other) -> Tensor",
    ],
    infer: arithmetic,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(body),
    cases: || {
        vec![
            Case::new("broadcast").f(&[2, 3]).f(&[2, 1]),
            Case::new("number").f(&[3]).attr("other", -1.5),
            Case::new("scalar tensor").f(&[3]).f(&[]),
        ]
    },
};

fn body(cx: &OpCx) -> Result<Vec<Expr>> {
    let dtype = cx.result_type(&["other"]);
    let (a, b) = (operand(cx, 0, dtype)?, operand(cx, 1, dtype)?);
    let product = if dtype.class() == Class::Bool { a.clone().and(b) } else { a.clone() * b };
    Ok(vec![with_number(cx, dtype, a, product)?])
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let g = cx.grad(0)?;
    if cx.arity() == 1 {
        let other = OpCx { inputs: vec![], attrs: cx.attrs() }.float("other")?;
        let dtype = cx.ty(g).dtype;
        let ga = match overflows(other, dtype) {
            // A gradient that overflows shall be seen to.
            true => {
                let wide = cx.cast(g, DType::F32)?;
                let wide = cx.scale(wide, other)?;
                cx.one(&TO, &[wide], Attrs::new().with("dtype", dtype))?
            }
            false => cx.scale(g, other)?,
        };
        return cx.set(0, ga);
    }
    let (a, b) = (cx.x(0)?, cx.x(1)?);
    if cx.needs(0) {
        let ga = cx.mul(g, b)?;
        cx.set(0, ga)?;
    }
    if cx.needs(1) {
        let gb = cx.mul(g, a)?;
        cx.set(1, gb)?;
    }
    Ok(())
}
