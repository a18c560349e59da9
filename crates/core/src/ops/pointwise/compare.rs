//! Comparisons.

use super::{DISCRETE, operand};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::{Binary, Expr};
use crate::ops::{Body, Case, Cost, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// All six differ in one scalar operation. With one input, `other` is an attribute.
macro_rules! comparisons {
    ($($def:ident $op:ident $sign:literal $name:literal $(or $long:literal)?;)*) => {$(
        #[doc = concat!("`self ", $sign, " other`, broadcast, in the promoted dtype.")]
        pub static $def: OpDef = OpDef {
            name: $name,
            schemas: &[
                concat!($name, ".Tensor(Tensor self, Tensor other) -> Tensor"),
                concat!($name, ".Scalar(Tensor self, Scalar other) -> Tensor"),
                $(
                    concat!($long, ".Tensor(Tensor self, Tensor other) -> Tensor"),
                    concat!($long, ".Scalar(Tensor self, Scalar other) -> Tensor"),
                )?
            ],
            infer,
            derivative: DISCRETE,
            precision: Precision::Widest,
            cost: Cost::PerOutput(1),
            body: Body::Pointwise(|cx| body(cx, Binary::$op)),
            cases,
        };
    )*};
}

comparisons! {
    EQ Eq "==" "eq";
    NE Ne "!=" "ne" or "not_equal";
    LT Lt "<" "lt" or "less";
    LE Le "<=" "le" or "less_equal";
    GT Gt ">" "gt" or "greater";
    GE Ge ">=" "ge" or "greater_equal";
}

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    Ok(vec![TensorType::new(DType::Bool, cx.broadcast()?)])
}

fn body(cx: &OpCx, op: Binary) -> Result<Vec<Expr>> {
    let dtype = cx.result_type(&["other"]);
    let other = match operand(cx, 1, dtype)? {
        // PyTorch compares in the tensor's dtype: 0.1 is rounded to it first.
        Expr::Float(x) => Expr::Float(dtype.round(x)),
        other => other,
    };
    Ok(vec![Expr::Binary(op, Box::new(operand(cx, 0, dtype)?), Box::new(other))])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("integers").index(&[2, 3], 3).index(&[3], 3),
        Case::new("floats").f(&[4]).attr("other", 0.25),
        Case::new("integers and a fraction").index(&[4], 3).attr("other", 0.5),
        Case::new("mixed").index(&[4], 2).f(&[2, 1]),
    ]
}
