//! Degrees and radians.

use super::{chain, float_input, float_like};
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use std::f64::consts::PI;

/// `self · π / 180`.
pub static DEG2RAD: OpDef = OpDef {
    name: "deg2rad",
    schemas: &["deg2rad(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| chain(cx, |b, g, _, _| b.scale(g, PI / 180.0))),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)? * float(PI / 180.0)])),
    cases: || vec![Case::new("plain").range(&[3], -180.0, 180.0)],
};

/// `self · 180 / π`.
pub static RAD2DEG: OpDef = OpDef {
    name: "rad2deg",
    schemas: &["rad2deg(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::Rule(|cx| chain(cx, |b, g, _, _| b.scale(g, 180.0 / PI))),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| Ok(vec![float_input(cx)? * float(180.0 / PI)])),
    cases: || vec![Case::new("plain").f(&[3])],
};
