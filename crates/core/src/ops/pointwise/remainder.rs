//! Remainders of division.

use super::{arithmetic, div::DIV, operand};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::Class;
use crate::ensure;
use crate::ops::create::full::full_of;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `self - other · floor(self / other)`: the remainder with the divisor's sign, as Python's `%`.
pub static REMAINDER: OpDef = OpDef {
    name: "remainder",
    schemas: &[
        "remainder.Tensor(Tensor self, Tensor other) -> Tensor",
        "remainder.Scalar(Tensor self, Scalar other) -> Tensor",
    ],
    infer,
    derivative: Derivative::Rule(|cx| gradient(cx, "floor")),
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&["other"]);
        Ok(vec![operand(cx, 0, dtype)?.rem(operand(cx, 1, dtype)?)])
    }),
    cases,
};

/// [`REMAINDER`] of a number by tensors.
pub static REMAINDER_SCALAR: OpDef = OpDef {
    name: "remainder_scalar",
    schemas: &["remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor"],
    infer: |cx| {
        let dtype = cx.result_type(&["self"]);
        ensure!(dtype.class() != Class::Bool, DType, "truth values have no remainders");
        Ok(vec![TensorType::new(dtype, cx.shape(0)?.clone())])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Decompose(|b, cx, inputs| {
        let number = full_of(b, cx, "self", &TensorType::new(cx.result_type(&["self"]), []))?;
        b.apply(&REMAINDER, &[Some(number), inputs[0]], Attrs::new())
    }),
    cases: || {
        vec![
            Case::new("integers")
                .arg(crate::DType::I64, &[3], crate::ops::case::Sample::Uniform(1.0, 9.0))
                .attr("self", -7),
        ]
    },
};

/// `self - other · trunc(self / other)`: the remainder with the dividend's sign, as C's `fmod`.
pub static FMOD: OpDef = OpDef {
    name: "fmod",
    schemas: &[
        "fmod.Tensor(Tensor self, Tensor other) -> Tensor",
        "fmod.Scalar(Tensor self, Scalar other) -> Tensor",
    ],
    infer,
    derivative: Derivative::Rule(|cx| gradient(cx, "trunc")),
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&["other"]);
        Ok(vec![operand(cx, 0, dtype)?.fmod(operand(cx, 1, dtype)?)])
    }),
    cases,
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let out = arithmetic(cx)?;
    ensure!(out[0].dtype.class() != Class::Bool, DType, "truth values have no remainders");
    Ok(out)
}

/// `g` for the dividend, `-g` times the rounded quotient for the divisor.
fn gradient(cx: &mut GradCx, rounding: &'static str) -> Result<()> {
    let g = cx.grad(0)?;
    cx.set(0, g)?;
    if cx.needs(1) {
        let (a, b) = (cx.x(0)?, cx.x(1)?);
        let quotient = cx.one(&DIV, &[a, b], Attrs::new().with("rounding_mode", rounding))?;
        let db = cx.mul(g, quotient)?;
        let db = cx.neg(db)?;
        cx.set(1, db)?;
    }
    Ok(())
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("tensors").range(&[5], -4.0, 4.0).range(&[5], 0.6, 1.4),
        Case::new("number").range(&[5], -4.0, 4.0).attr("other", -1.25),
        Case::new("integers")
            .arg(crate::DType::I64, &[5], crate::ops::case::Sample::Uniform(-9.0, 9.0))
            .attr("other", 4),
    ]
}
