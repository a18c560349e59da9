//! Tests for what is no finite number.

use super::DISCRETE;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::{Expr, float, input};
use crate::ops::case::Sample;
use crate::ops::{Body, Case, Cost, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// True if it is NaN.
pub static ISNAN: OpDef = OpDef {
    name: "isnan",
    schemas: &["isnan(Tensor self) -> Tensor"],
    infer,
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| test(cx, input(0).is_nan(), false)),
    cases,
};

/// True if it is infinite.
pub static ISINF: OpDef = OpDef {
    name: "isinf",
    schemas: &["isinf(Tensor self) -> Tensor"],
    infer,
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| test(cx, input(0).is_inf(), false)),
    cases,
};

/// True if it is neither infinite nor NaN.
pub static ISFINITE: OpDef = OpDef {
    name: "isfinite",
    schemas: &["isfinite(Tensor self) -> Tensor"],
    infer,
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| test(cx, !input(0).is_nan().or(input(0).is_inf()), true)),
    cases,
};

/// True if it is plus infinity.
pub static ISPOSINF: OpDef = OpDef {
    name: "isposinf",
    schemas: &["isposinf(Tensor self) -> Tensor"],
    infer,
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| test(cx, input(0).is_inf().and(input(0).gt(float(0.0))), false)),
    cases,
};

/// True if it is minus infinity.
pub static ISNEGINF: OpDef = OpDef {
    name: "isneginf",
    schemas: &["isneginf(Tensor self) -> Tensor"],
    infer,
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| test(cx, input(0).is_inf().and(input(0).lt(float(0.0))), false)),
    cases,
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    Ok(vec![TensorType::new(DType::Bool, cx.shape(0)?.clone())])
}

/// Integers are always finite.
fn test(cx: &OpCx, of_float: Expr, of_integer: bool) -> Result<Vec<Expr>> {
    Ok(vec![if cx.dtype(0)?.is_float() { of_float } else { Expr::Bool(of_integer) }])
}

fn cases() -> Vec<Case> {
    let special = Sample::Values(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0]);
    vec![Case::new("special").arg(DType::F64, &[4], special), Case::new("integers").index(&[3], 9)]
}
