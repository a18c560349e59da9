//! Rounding up.

use super::{STEPS, number_like};
use crate::expr::input;
use crate::ops::{Body, Case, Cost, OpDef, Precision};

/// Rounding up to a whole number.
pub static CEIL: OpDef = OpDef {
    name: "ceil",
    schemas: &["ceil(Tensor self) -> Tensor"],
    infer: number_like,
    derivative: STEPS,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|_| Ok(vec![input(0).ceil()])),
    cases: || vec![Case::new("plain").range(&[7], -3.0, 3.0)],
};
