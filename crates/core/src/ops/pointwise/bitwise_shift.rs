//! Integers shifted by bits.

use super::{DISCRETE, operand};
use crate::diagnostic::Result;
use crate::dtype::Class;
use crate::ensure;
use crate::expr::Expr;
use crate::ops::{Body, Case, Cost, OpCx, OpDef, Precision, Sample};
use crate::tensor::TensorType;

/// `self · 2^other`, what leaves the dtype lost; 0 for as many bits as it has or more, and for a negative
/// number of bits. With one input, `other` is an attribute.
pub static BITWISE_LEFT_SHIFT: OpDef = OpDef {
    name: "bitwise_left_shift",
    schemas: &[
        "bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor",
        "bitwise_left_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor",
        "__lshift__.Tensor(Tensor self, Tensor other) -> Tensor",
        "__lshift__.Scalar(Tensor self, Scalar other) -> Tensor",
        "__ilshift__.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
        "__ilshift__.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)",
    ],
    infer,
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        let (x, n, bits) = operands(cx)?;
        let fits = n.clone().ge(Expr::Int(0)).and(n.clone().lt(Expr::Int(bits)));
        let power = Expr::Int(2).pow(fits.clone().select(n, Expr::Int(0)));
        Ok(vec![fits.select(x * power, Expr::Int(0))])
    }),
    cases,
};

/// `self / 2^other`, rounded down; 0 or −1 for as many bits as the dtype has or more, and for a negative
/// number of bits. With one input, `other` is an attribute.
pub static BITWISE_RIGHT_SHIFT: OpDef = OpDef {
    name: "bitwise_right_shift",
    schemas: &[
        "bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor",
        "bitwise_right_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor",
        "__rshift__.Tensor(Tensor self, Tensor other) -> Tensor",
        "__rshift__.Scalar(Tensor self, Scalar other) -> Tensor",
        "__irshift__.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
        "__irshift__.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)",
    ],
    infer,
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        let (x, n, bits) = operands(cx)?;
        // The bits of an i64 but its sign are 63: no power of two beyond is an i64.
        let fits = n.clone().ge(Expr::Int(0)).and(n.clone().lt(Expr::Int(bits.min(63))));
        let power = Expr::Int(2).pow(fits.clone().select(n, Expr::Int(0)));
        let rest = x.clone().lt(Expr::Int(0)).select(Expr::Int(-1), Expr::Int(0));
        Ok(vec![fits.select(x.floor_div(power), rest)])
    }),
    cases,
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let dtype = cx.result_type(&["other"]);
    ensure!(dtype.class() == Class::Int, DType, "shifts are of integers, got {}", cx.list_types());
    if cx.opt(1).is_none() {
        cx.int("other")?;
    }
    Ok(vec![TensorType::new(dtype, cx.broadcast()?)])
}

/// The number, the number of bits it is shifted by, and the bits of the dtype.
fn operands(cx: &OpCx) -> Result<(Expr, Expr, i64)> {
    let dtype = cx.result_type(&["other"]);
    Ok((operand(cx, 0, dtype)?, operand(cx, 1, dtype)?, 8 * dtype.size() as i64))
}

fn cases() -> Vec<Case> {
    let values = |v: [f64; 5]| Sample::Values(v.to_vec());
    let int = crate::DType::I64;
    vec![
        Case::new("tensors").arg(int, &[5], values([5.0, -5.0, 1.0, -1.0, 7.0])).arg(
            int,
            &[5],
            values([2.0, 1.0, 62.0, 64.0, 0.0]),
        ),
        Case::new("number").arg(int, &[3], Sample::Uniform(-99.0, 99.0)).attr("other", 3),
    ]
}
