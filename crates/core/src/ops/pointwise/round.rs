//! Rounding to nearest.

use super::{STEPS, number_like};
use crate::expr::input;
use crate::ops::{Body, Case, Cost, OpDef, Precision};

/// To the nearest whole number, ties to even; with `decimals`, to that many decimal places, in the operator's
/// dtype.
pub static ROUND: OpDef = OpDef {
    name: "round",
    schemas: &["round(Tensor self) -> Tensor", "round.decimals(Tensor self, *, int decimals) -> Tensor"],
    infer: |cx| {
        let decimals = cx.opt_int("decimals")?;
        crate::ensure!(decimals.is_none() || cx.dtype(0)?.is_float(), DType, "decimals of {}", cx.ty(0)?);
        number_like(cx)
    },
    derivative: STEPS,
    precision: Precision::Same,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|cx| {
        Ok(vec![match cx.opt_int("decimals")?.unwrap_or(0) {
            0 => input(0).round(),
            d if d > 0 => (input(0) * 10f64.powi(d.min(400) as i32)).round() / 10f64.powi(d.min(400) as i32),
            d => {
                (input(0) / 10f64.powi(d.max(-400).abs() as i32)).round()
                    * 10f64.powi(d.max(-400).abs() as i32)
            }
        }])
    }),
    cases: || {
        let values = crate::ops::case::Sample::Values(vec![-1.5, -0.5, 0.5, 1.5, 2.51]);
        vec![
            Case::new("ties").arg(crate::DType::F64, &[5], values).constant(),
            Case::new("between ties").range(&[5], -3.0, 3.0),
            Case::new("tenths").f(&[5]).attr("decimals", 1),
            Case::new("tens").range(&[5], -99.0, 99.0).attr("decimals", -1),
        ]
    },
};
