//! `self + alpha · other`.

use super::{arithmetic, number, operand, with_number};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::Class;
use crate::expr::{Binary, Expr};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};

/// Sum, broadcast and promoted. With one input, `other` is an attribute.
pub static ADD: OpDef = OpDef {
    name: "add",
    schemas: &[
        "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor",
    ],
    infer: arithmetic,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Widest,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(body),
    cases: || {
        vec![
            Case::new("broadcast").f(&[2, 3]).f(&[3]),
            Case::new("scaled").f(&[2, 1]).f(&[4]).attr("alpha", -2.5),
            Case::new("number").f(&[3]).attr("other", 1.5),
            Case::new("empty").f(&[0, 3]).f(&[3]),
        ]
    },
};

fn body(cx: &OpCx) -> Result<Vec<Expr>> {
    let dtype = cx.result_type(&["other"]);
    let alpha = cx.opt_float("alpha")?.unwrap_or(1.0);
    let mut other = operand(cx, 1, dtype)?;
    if alpha != 1.0 {
        other = Expr::Binary(Binary::Mul, Box::new(number(alpha, dtype)), Box::new(other));
    }
    let this = operand(cx, 0, dtype)?;
    // Bools add as logical or.
    let sum = if dtype.class() == Class::Bool { this.clone().or(other) } else { this.clone() + other };
    Ok(vec![with_number(cx, dtype, this, sum)?])
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let g = cx.grad(0)?;
    cx.set(0, g)?;
    if cx.needs(1) {
        let alpha = match cx.attrs().get("alpha") {
            Some(_) => OpCx { inputs: vec![], attrs: cx.attrs() }.float("alpha")?,
            None => 1.0,
        };
        let g =
            if alpha == 1.0 { g } else { cx.one(&super::mul::MUL, &[g], Attrs::new().with("other", alpha))? };
        cx.set(1, g)?;
    }
    Ok(())
}
