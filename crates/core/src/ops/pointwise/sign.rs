//! Sign.

use super::{STEPS, number, same};
use crate::dtype::Class;
use crate::expr::{Expr, input};
use crate::ops::{Body, Case, Cost, OpDef, Precision};

/// -1, 0 or 1; 0 of NaN, as PyTorch's.
pub static SIGN: OpDef = OpDef {
    name: "sign",
    schemas: &["sign(Tensor self) -> Tensor", "sgn(Tensor self) -> Tensor"],
    infer: same,
    derivative: STEPS,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let dtype = cx.dtype(0)?;
        let side = |positive: Expr| positive.cast(dtype);
        let zero = || number(0.0, dtype);
        Ok(vec![match dtype.class() {
            Class::Bool => input(0),
            _ => side(input(0).gt(zero())) - side(input(0).lt(zero())),
        }])
    }),
    cases: || {
        let around = crate::ops::case::Sample::Values(vec![-2.0, 0.0, f64::NAN, 3.0]);
        vec![
            Case::new("around zero").arg(crate::DType::F64, &[4], around).constant(),
            Case::new("off zero").distinct(&[5]),
        ]
    },
};
