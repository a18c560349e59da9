//! Signs of numbers, that of 0 included.

use super::{DISCRETE, float_arithmetic, floating, operand};
use crate::dtype::DType;
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample};
use crate::tensor::TensorType;

/// The magnitude of `self` with the sign of `other`, broadcast and promoted. The gradient at 0 is 0.
pub static COPYSIGN: OpDef = OpDef {
    name: "copysign",
    schemas: &[
        "copysign.Tensor(Tensor self, Tensor other) -> Tensor",
        "copysign.Scalar(Tensor self, Scalar other) -> Tensor",
    ],
    infer: float_arithmetic,
    derivative: Derivative::Rule(|cx| {
        let (g, x, y) = (cx.grad(0)?, cx.x(0)?, cx.y(0));
        let ratio = cx.div(y, x)?;
        let zero = cx.one(&super::compare::EQ, &[x], crate::Attrs::new().with("other", 0))?;
        let ratio = cx.drop_where(zero, ratio)?;
        let dx = cx.mul(g, ratio)?;
        cx.set(0, dx)?;
        // The sign does not depend on the other smoothly.
        if let Some(other) = cx.opt_x(1).filter(|_| cx.needs(1)) {
            let ty = cx.ty(other).clone();
            let zeros = cx.full(&ty, 0.0)?;
            cx.set(1, zeros)?;
        }
        Ok(())
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        let dtype = floating(cx.result_type(&["other"]));
        let size = operand(cx, 0, dtype)?.abs();
        Ok(vec![negative(operand(cx, 1, dtype)?).select(-size.clone(), size)])
    }),
    cases: || {
        let signs = Sample::Values(vec![-1.0, 0.0, -0.0, 2.0]);
        vec![
            Case::new("zeros").distinct(&[4]).arg(DType::F64, &[4], signs).constant(),
            Case::new("number").distinct(&[2, 3]).attr("other", -2.5),
        ]
    },
};

/// True where the sign is minus, that of 0 included.
pub static SIGNBIT: OpDef = OpDef {
    name: "signbit",
    schemas: &["signbit(Tensor self) -> Tensor"],
    infer: |cx| Ok(vec![TensorType::new(DType::Bool, cx.shape(0)?.clone())]),
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| {
        Ok(vec![match cx.dtype(0)?.class() {
            crate::dtype::Class::Float => negative(input(0)),
            crate::dtype::Class::Int => input(0).lt(Expr::Int(0)),
            crate::dtype::Class::Bool => Expr::Bool(false),
        }])
    }),
    cases: || {
        let signs = Sample::Values(vec![-1.0, 0.0, -0.0, 2.0]);
        vec![Case::new("zeros").arg(DType::F64, &[4], signs), Case::new("integers").index(&[3], 9)]
    },
};

/// The reciprocal of −0 is −∞.
fn negative(x: Expr) -> Expr {
    x.clone().lt(float(0.0)).or(x.recip().lt(float(0.0)))
}
