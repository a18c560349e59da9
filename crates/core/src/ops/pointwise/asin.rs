//! Arc sine.

use super::{chain, float_input, float_like};
use crate::diagnostic::Result;
use crate::expr::float;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `arcsin self`, from `arctan(x / √(1 - x²))` with `1 - x²` factored so that it keeps its digits near ±1.
pub static ASIN: OpDef = OpDef {
    name: "asin",
    schemas: &["asin(Tensor self) -> Tensor", "arcsin(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let r = inverse_leg(b, x)?;
            b.mul(g, r)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(15),
    body: Body::Pointwise(|cx| {
        let x = float_input(cx)?;
        let leg = ((x.clone() + 1.0) * (float(1.0) - x.clone())).sqrt();
        Ok(vec![x.atan2(leg)])
    }),
    cases: || {
        vec![Case::new("inside").range(&[3, 4], -0.95, 0.95), Case::new("scalar").range(&[], -0.5, 0.5)]
    },
};

/// `1 / √(1 - x²)`, which is the derivative of the arc sine.
pub fn inverse_leg(b: &mut Builder, x: ValueId) -> Result<ValueId> {
    let square = b.mul(x, x)?;
    let minus = b.neg(square)?;
    let left = b.shift(minus, 1.0)?;
    b.call(&super::rsqrt::RSQRT, &[left])
}
