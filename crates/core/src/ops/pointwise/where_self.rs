//! Choice between two values.

use super::{element, filling, tensor};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::Expr;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `condition ? self : other`, broadcast and promoted; either may be a number, then an attribute.
pub static WHERE: OpDef = OpDef {
    name: "where",
    schemas: &[
        "where.self(Tensor condition, Tensor self, Tensor other) -> Tensor",
        "where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> Tensor",
        "where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> Tensor",
        "where.Scalar(Tensor condition, Scalar self, Scalar other) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(dtype(cx), cx.broadcast()?)]),
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let (this, other) = (side(cx, "self")?, side(cx, "other")?);
        Ok(vec![tensor(cx, 0, DType::Bool)?.select(this, other)])
    }),
    cases: || {
        vec![
            Case::new("broadcast").mask(&[2, 3]).f(&[3]).f(&[2, 1]),
            Case::new("number first").mask(&[3]).f(&[3]).attr("self", 0.0),
            Case::new("number second").mask(&[3]).f(&[3]).attr("other", 2),
            Case::new("numbers").mask(&[3]).attr("self", 1.0).attr("other", 2),
        ]
    },
};

/// The condition takes no part in promotion.
fn dtype(cx: &OpCx) -> DType {
    cx.result_type_from(1, &["self", "other"])
}

/// Input that holds `self` or `other`; `None` if it is a number.
fn place(cx: &OpCx, name: &str) -> Option<usize> {
    match (cx.attrs.get(name), name) {
        (Some(_), _) => None,
        (None, "self") => Some(1),
        // After `self`, if that is a tensor.
        (None, _) => Some(if cx.attrs.get("self").is_some() { 1 } else { 2 }),
    }
}

fn side(cx: &OpCx, name: &str) -> Result<Expr> {
    match place(cx, name) {
        Some(i) => filling(cx, i, dtype(cx)),
        None => element(cx, name, dtype(cx)),
    }
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, cond) = (cx.grad(0)?, cx.x(0)?);
    if let Some(i) = cx.of(|of| place(of, "self")).filter(|&i| cx.needs(i)) {
        let dx = cx.keep_where(cond, g)?;
        cx.set(i, dx)?;
    }
    if let Some(i) = cx.of(|of| place(of, "other")).filter(|&i| cx.needs(i)) {
        let dx = cx.drop_where(cond, g)?;
        cx.set(i, dx)?;
    }
    Ok(())
}
