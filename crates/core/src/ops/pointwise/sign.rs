//! Sign.

use super::{STEPS, same};
use crate::dtype::Class;
use crate::expr::input;
use crate::ops::{Body, Case, Cost, OpDef, Precision};

/// -1, 0 or 1; NaN stays.
pub static SIGN: OpDef = OpDef {
 name: "sign",
 schemas: &["sign(Tensor self) -> Tensor", "sgn(Tensor self) -> Tensor"],
 infer: same,
 derivative: STEPS,
 precision: Precision::Same,
 cost: Cost::PerOutput(1),
 body: Body::Pointwise(|cx| Ok(vec![match cx.dtype(0)?.class() { Class::Bool => input(0), _ => input(0).sign() }])),
 cases: || vec![Case::new("around zero").arg(crate::DType::F64, &[4], crate::ops::case::Sample::Values(vec![-2.0, 0.0, -0.0, 3.0]))],
};
