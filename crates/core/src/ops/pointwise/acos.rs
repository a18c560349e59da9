//! Arc cosine.

use super::{chain, float_input, float_like};
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `arccos self`, as [`super::asin`].
pub static ACOS: OpDef = OpDef {
    name: "acos",
    schemas: &["acos(Tensor self) -> Tensor", "arccos(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let r = super::asin::inverse_leg(b, x)?;
            let dx = b.mul(g, r)?;
            b.neg(dx)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(15),
    body: Body::Pointwise(|cx| {
        let x = float_input(cx)?;
        let leg = ((x.clone() + 1.0) * (float(1.0) - x.clone())).sqrt();
        Ok(vec![leg.atan2(x)])
    }),
    cases: || {
        vec![Case::new("inside").range(&[3, 4], -0.95, 0.95), Case::new("scalar").range(&[], -0.5, 0.5)]
    },
};
