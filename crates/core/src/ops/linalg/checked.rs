//! Solutions and factorizations that report errors in a result.

use super::cholesky::LINALG_CHOLESKY;
use super::inverse::INVERSE;
use super::solve::LINALG_SOLVE;
use super::squares;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// [`LINALG_CHOLESKY`], and i32 zeros: a matrix that is not positive definite is refused when it is met.
pub static LINALG_CHOLESKY_EX: OpDef = OpDef {
    name: "linalg_cholesky_ex",
    schemas: &[
        "linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> (Tensor L, Tensor info)",
    ],
    infer: |cx| typed(cx, &LINALG_CHOLESKY),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        checked(b, cx, &LINALG_CHOLESKY, inputs, Attrs::new().with("upper", cx.flag("upper")?))
    }),
    cases: || {
        let even = vec![2.0, 0.5, 0.5, 1.5];
        vec![Case::new("upper").arg(DType::F64, &[2, 2], Sample::Values(even)).attr("upper", true)]
    },
};

/// [`INVERSE`], and i32 zeros: a singular matrix is refused when it is met.
pub static LINALG_INV_EX: OpDef = OpDef {
    name: "linalg_inv_ex",
    schemas: &["linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)"],
    infer: |cx| typed(cx, &INVERSE),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| checked(b, cx, &INVERSE, inputs, Attrs::new())),
    cases: || vec![matrices("two")],
};

/// [`LINALG_SOLVE`], and i32 zeros: a singular matrix is refused when it is met.
pub static LINALG_SOLVE_EX: OpDef = OpDef {
    name: "linalg_solve_ex",
    schemas: &[
        "linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (Tensor result, Tensor info)",
    ],
    infer: |cx| typed(cx, &LINALG_SOLVE),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let left = cx.opt_int("left")?.unwrap_or(1) != 0;
        checked(b, cx, &LINALG_SOLVE, inputs, Attrs::new().with("left", left))
    }),
    cases: || {
        vec![
            matrices("left").f(&[2, 2, 1]).attr("left", true),
            matrices("right").f(&[3, 2]).attr("left", false),
        ]
    },
};

fn typed(cx: &OpCx, op: &'static OpDef) -> Result<Vec<TensorType>> {
    let mut types = (op.infer)(cx)?;
    types.push(info(cx)?);
    Ok(types)
}

/// One number for each matrix.
fn info(cx: &OpCx) -> Result<TensorType> {
    let t = squares(cx, 0)?.0;
    Ok(TensorType::new(DType::I32, Shape::new(&t.shape[..t.shape.rank() - 2])))
}

fn checked(
    b: &mut Builder,
    cx: &OpCx,
    op: &'static OpDef,
    inputs: &[Option<ValueId>],
    attrs: Attrs,
) -> Result<Vec<ValueId>> {
    required(inputs, 0)?;
    let made = b.apply(op, inputs, attrs)?[0];
    Ok(vec![made, b.full(&info(cx)?, 0.0)?])
}

fn matrices(name: &'static str) -> Case {
    let values = vec![2.0, 0.5, -0.3, 1.5, 0.2, 1.0, 3.0, -0.4];
    Case::new(name).arg(DType::F64, &[2, 2, 2], Sample::Values(values))
}
