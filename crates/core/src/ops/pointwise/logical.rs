//! Logic on truth values; numbers count as true unless they are 0.

use super::{DISCRETE, tensor};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ops::{Body, Case, Cost, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

macro_rules! logical {
    ($($def:ident $name:literal $method:ident;)*) => {$(
        #[doc = concat!("`", $name, "(self, other)`, broadcast.")]
        pub static $def: OpDef = OpDef {
            name: $name,
            schemas: &[concat!($name, "(Tensor self, Tensor other) -> Tensor")],
            infer,
            derivative: DISCRETE,
            precision: Precision::Same,
            cost: Cost::PerOutput(1),
            body: Body::Pointwise(|cx| {
                Ok(vec![tensor(cx, 0, DType::Bool)?.$method(tensor(cx, 1, DType::Bool)?)])
            }),
            cases: || vec![
                Case::new("masks").mask(&[2, 3]).mask(&[3]),
                Case::new("numbers").f(&[3]).index(&[3], 2),
            ],
        };
    )*};
}

logical! {
    LOGICAL_AND "logical_and" and;
    LOGICAL_OR "logical_or" or;
    LOGICAL_XOR "logical_xor" xor;
}

/// True where `self` is 0 or false.
pub static LOGICAL_NOT: OpDef = OpDef {
    name: "logical_not",
    schemas: &["logical_not(Tensor self) -> Tensor"],
    infer,
    derivative: DISCRETE,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| Ok(vec![!tensor(cx, 0, DType::Bool)?])),
    cases: || vec![Case::new("mask").mask(&[3]), Case::new("numbers").index(&[3], 2)],
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    Ok(vec![TensorType::new(DType::Bool, cx.broadcast()?)])
}
