//! Complex conjugates.

use super::pairs;
use crate::expr::{Expr, input};
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// Pairs with the imaginary parts negated: what ATen's `conj` is of pairs.
pub static CONJ: OpDef = OpDef {
    name: "conj",
    schemas: &["headwater::conj(Tensor self) -> Tensor"],
    infer: |cx| Ok(vec![pairs(cx)?.0.clone()]),
    derivative: Derivative::Rule(|cx| {
        let g = cx.grad(0)?;
        let dx = cx.call(&CONJ, &[g])?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let part = Expr::Coord(cx.shape(0)?.rank() - 1);
        Ok(vec![part.eq(Expr::Int(1)).select(-input(0), input(0))])
    }),
    cases: || vec![Case::new("matrix").f(&[2, 3, 2]), Case::new("one").f(&[2])],
};
