//! Angle of a point.

use super::{float_arithmetic, floating, operand};
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision};

/// The angle of the point (`other`, `self`), in `(-π, π]`; broadcast and promoted.
pub static ATAN2: OpDef = OpDef {
    name: "atan2",
    schemas: &["atan2(Tensor self, Tensor other) -> Tensor", "arctan2(Tensor self, Tensor other) -> Tensor"],
    infer: float_arithmetic,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Widest,
    cost: Cost::PerOutput(15),
    body: Body::Pointwise(|cx| {
        let dtype = floating(cx.result_type(&[]));
        Ok(vec![operand(cx, 0, dtype)?.atan2(operand(cx, 1, dtype)?)])
    }),
    cases: || vec![Case::new("broadcast").range(&[2, 3], 0.2, 2.0).f(&[3])],
};

/// `g · other / r²` and `-g · self / r²`; both 0 at the origin, as in PyTorch.
fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, y, x) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?);
    let (yy, xx) = (cx.mul(y, y)?, cx.mul(x, x)?);
    let square = cx.add(yy, xx)?;
    let origin = cx.one(&super::compare::EQ, &[square], crate::Attrs::new().with("other", 0))?;
    let part = cx.div(g, square)?;
    let part = cx.drop_where(origin, part)?;
    if cx.needs(0) {
        let dy = cx.mul(part, x)?;
        cx.set(0, dy)?;
    }
    if cx.needs(1) {
        let dx = cx.mul(part, y)?;
        let dx = cx.neg(dx)?;
        cx.set(1, dx)?;
    }
    Ok(())
}
