//! Entropy of each number.

use super::{chain, float_like, log::LOG};
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `−self · ln self`: 0 of 0, and −∞ of a number below 0.
pub static ENTR: OpDef = OpDef {
    name: "special_entr",
    schemas: &["special_entr(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let log = b.call(&LOG, &[x])?;
            let slope = b.shift(log, 1.0)?;
            let slope = b.neg(slope)?;
            b.mul(g, slope)
        })
    }),
    precision: Precision::Full,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| {
        let x = super::float_input(cx)?;
        let inside = x.clone().eq(float(0.0)).select(float(0.0), -(x.clone() * x.clone().log()));
        Ok(vec![x.lt(float(0.0)).select(float(f64::NEG_INFINITY), inside)])
    }),
    cases: || {
        let edges = crate::ops::Sample::Values(vec![0.0, 1.0, -2.0, f64::NAN]);
        vec![
            Case::new("inside").range(&[5], 0.1, 3.0),
            Case::new("edges").arg(crate::DType::F64, &[4], edges).constant(),
        ]
    },
};
