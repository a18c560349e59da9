//! `self + value · tensor1 · tensor2` and `self + value · tensor1 / tensor2`.

use super::{floating, opt_scalar, tensor};
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::expr::Expr;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `self + value · tensor1 · tensor2`, broadcast and promoted.
pub static ADDCMUL: OpDef = OpDef {
    name: "addcmul",
    schemas: &["addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"],
    infer: |cx| {
        let dtype = cx.result_type(&[]);
        ensure!(dtype.class() != Class::Bool, DType, "truth values have no products");
        Ok(vec![TensorType::new(dtype, cx.broadcast()?)])
    },
    derivative: Derivative::Rule(|cx| {
        let (g, a, b) = (scaled(cx)?, cx.x(1)?, cx.x(2)?);
        if cx.needs(1) {
            let da = cx.mul(g, b)?;
            cx.set(1, da)?;
        }
        if cx.needs(2) {
            let db = cx.mul(g, a)?;
            cx.set(2, db)?;
        }
        Ok(())
    }),
    precision: Precision::Widest,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&[]);
        let (x, a, b) = (tensor(cx, 0, dtype)?, tensor(cx, 1, dtype)?, tensor(cx, 2, dtype)?);
        Ok(vec![x + times_value(cx, a * b, dtype)?])
    }),
    cases: || {
        vec![
            Case::new("broadcast").f(&[2, 3]).f(&[3]).f(&[2, 1]).attr("value", -0.5),
            Case::new("integers").index(&[3], 9).index(&[3], 9).index(&[3], 9).attr("value", 2),
        ]
    },
};

/// `self + value · tensor1 / tensor2`, broadcast and promoted; integers are refused, as in PyTorch.
pub static ADDCDIV: OpDef = OpDef {
    name: "addcdiv",
    schemas: &["addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"],
    infer: |cx| {
        let whole = !cx.dtype(1)?.is_float() && !cx.dtype(2)?.is_float();
        ensure!(!whole, DType, "it does not divide integers: {}", cx.list_types());
        Ok(vec![TensorType::new(floating(cx.result_type(&[])), cx.broadcast()?)])
    },
    derivative: Derivative::Rule(|cx| {
        let (g, a, b) = (scaled(cx)?, cx.x(1)?, cx.x(2)?);
        let da = cx.div(g, b)?;
        cx.set(1, da)?;
        if cx.needs(2) {
            let q = cx.div(a, b)?;
            let db = cx.mul(da, q)?;
            let db = cx.neg(db)?;
            cx.set(2, db)?;
        }
        Ok(())
    }),
    precision: Precision::Widest,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|cx| {
        let dtype = floating(cx.result_type(&[]));
        let (x, a, b) = (tensor(cx, 0, dtype)?, tensor(cx, 1, dtype)?, tensor(cx, 2, dtype)?);
        Ok(vec![x + times_value(cx, a / b, dtype)?])
    }),
    cases: || vec![Case::new("broadcast").f(&[2, 3]).f(&[3]).range(&[2, 1], 0.5, 2.0).attr("value", -0.5)],
};

fn times_value(cx: &OpCx, x: Expr, dtype: DType) -> Result<Expr> {
    Ok(match opt_scalar(cx, "value", dtype)? {
        None | Some(Expr::Int(1) | Expr::Float(1.0)) => x,
        Some(value) => value * x,
    })
}

/// Sets the gradient of `self` and returns `value · g`.
fn scaled(cx: &mut GradCx) -> Result<crate::ValueId> {
    let g = cx.grad(0)?;
    cx.set(0, g)?;
    let value = cx.args().opt_float("value")?.unwrap_or(1.0);
    cx.scale(g, value)
}
