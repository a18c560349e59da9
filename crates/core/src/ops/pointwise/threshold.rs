//! A value put where a number does not exceed a threshold.

use super::relu::THRESHOLD_BACKWARD;
use super::{element, number_like, scalar, tensor};
use crate::attr::Attrs;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};

/// `self > threshold ? self : value`; NaN stays.
pub static THRESHOLD: OpDef = OpDef {
    name: "threshold",
    schemas: &["threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor"],
    infer: number_like,
    derivative: Derivative::Rule(|cx| {
        let (g, x) = (cx.grad(0)?, cx.x(0)?);
        let attrs = Attrs::new().with("threshold", cx.args().float("threshold")?);
        let dx = cx.one(&THRESHOLD_BACKWARD, &[g, x], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let dtype = cx.dtype(0)?;
        let (x, value) = (tensor(cx, 0, dtype)?, element(cx, "value", dtype)?);
        Ok(vec![x.clone().le(scalar(cx, "threshold", dtype)?).select(value, x)])
    }),
    cases: || vec![Case::new("plain").distinct(&[7]).attr("threshold", 0.1).attr("value", -3)],
};
