//! Absolute value.

use super::{chain, same};
use crate::dtype::Class;
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `|self|`; its derivative at 0 is 0, as PyTorch's.
pub static ABS: OpDef = OpDef {
    name: "abs",
    schemas: &["abs(Tensor self) -> Tensor", "absolute(Tensor self) -> Tensor"],
    infer: same,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let s = b.call(&super::sign::SIGN, &[x])?;
            b.mul(g, s)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        Ok(vec![match cx.dtype(0)?.class() {
            Class::Bool => input(0),
            _ => input(0).abs(),
        }])
    }),
    cases: || vec![Case::new("off zero").distinct(&[3, 4])],
};
