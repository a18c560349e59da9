//! Angles of real numbers in the complex plane.

use super::{STEPS, float_input, float_like};
use crate::expr::float;
use crate::ops::{Body, Case, Cost, OpDef, Precision, Sample};

/// π below 0, and 0 elsewhere; NaN of NaN. The importer takes those of complex numbers.
pub static ANGLE: OpDef = OpDef {
    name: "angle",
    schemas: &["angle(Tensor self) -> Tensor"],
    infer: float_like,
    derivative: STEPS,
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| {
        let x = float_input(cx)?;
        let side = x.clone().lt(float(0.0)).select(float(std::f64::consts::PI), float(0.0));
        Ok(vec![x.clone().is_nan().select(x, side)])
    }),
    cases: || {
        let edges = Sample::Values(vec![0.0, -0.0, f64::NAN]);
        vec![
            Case::new("plain").distinct(&[4]),
            Case::new("edges").arg(crate::DType::F64, &[3], edges).constant(),
        ]
    },
};
