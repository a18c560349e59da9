//! The transform of a rectangle.

use super::{compare::EQ, float_like, floating, sin::SIN, where_self::WHERE};
use crate::attr::Attrs;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision, Sample, required};
use std::f64::consts::PI;

/// `sin(πx) / (πx)`, and 1 at 0, where its slope is 0.
pub static SINC: OpDef = OpDef {
    name: "sinc",
    schemas: &["sinc(Tensor self) -> Tensor", "special_sinc(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerOutput(20),
    body: Body::Decompose(|b, cx, inputs| {
        let x = b.cast(required(inputs, 0)?, floating(cx.dtype(0)?))?;
        let zero = b.one(&EQ, &[x], Attrs::new().with("other", 0.0))?;
        // A place that is not 0, so that no infinite slope meets the choice.
        let one = Attrs::new().with("self", 1.0);
        let place = b.one(&WHERE, &[zero, x], one.clone())?;
        let angle = b.scale(place, PI)?;
        let sine = b.call(&SIN, &[angle])?;
        let share = b.div(sine, angle)?;
        Ok(vec![b.one(&WHERE, &[zero, share], one)?])
    }),
    cases: || {
        let zero = Sample::Values(vec![0.0, 0.5, -0.25]);
        vec![
            Case::new("plain").range(&[3, 4], 0.1, 3.0),
            Case::new("zero").arg(crate::DType::F64, &[3], zero),
        ]
    },
};
