//! Bit operations on integers, logic on truth values.

use super::{DISCRETE, operand};
use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::input;
use crate::ops::{Body, Case, Cost, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// All three differ in one scalar operation. With one input, `other` is an attribute.
macro_rules! bitwise {
    ($($def:ident $name:literal $python:literal $in_place:literal $method:ident;)*) => {$(
        #[doc = concat!("`", $name, "(self, other)`, broadcast and promoted.")]
        pub static $def: OpDef = OpDef {
            name: $name,
            schemas: &[
                concat!($name, ".Tensor(Tensor self, Tensor other) -> Tensor"),
                concat!($name, ".Scalar(Tensor self, Scalar other) -> Tensor"),
                concat!($python, ".Tensor(Tensor self, Tensor other) -> Tensor"),
                concat!($python, ".Scalar(Tensor self, Scalar other) -> Tensor"),
                concat!($in_place, ".Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)"),
                concat!($in_place, ".Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)"),
            ],
            infer,
            derivative: DISCRETE,
            precision: Precision::Same,
            cost: Cost::PerOutput(1),
            body: Body::Pointwise(|cx| {
                let dtype = cx.result_type(&["other"]);
                Ok(vec![operand(cx, 0, dtype)?.$method(operand(cx, 1, dtype)?)])
            }),
            cases,
        };
    )*};
}

bitwise! {
    BITWISE_AND "bitwise_and" "__and__" "__iand__" and;
    BITWISE_OR "bitwise_or" "__or__" "__ior__" or;
    BITWISE_XOR "bitwise_xor" "__xor__" "__ixor__" xor;
}

/// Every bit inverted; of truth values, the other one.
pub static BITWISE_NOT: OpDef = OpDef {
    name: "bitwise_not",
    schemas: &["bitwise_not(Tensor self) -> Tensor"],
    infer,
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|_| Ok(vec![!input(0)])),
    cases: || vec![Case::new("mask").mask(&[3]), Case::new("integers").index(&[3], 9)],
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let dtype = cx.result_type(&["other"]);
    ensure!(!dtype.is_float(), DType, "floats have no bit operations: {}", cx.list_types());
    Ok(vec![TensorType::new(dtype, cx.broadcast()?)])
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("masks").mask(&[2, 3]).mask(&[3]),
        Case::new("integers").index(&[3], 9).attr("other", 5),
        Case::new("mask and integers").mask(&[3]).index(&[3], 9),
    ]
}
