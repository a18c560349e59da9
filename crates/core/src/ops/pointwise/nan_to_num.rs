//! Numbers that are not finite replaced, where a model requests it.

use super::{chain, held, same};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};

/// NaN becomes `nan` (0), the infinities `posinf` and `neginf` (the dtype's largest and smallest numbers).
pub static NAN_TO_NUM: OpDef = OpDef {
    name: "nan_to_num",
    schemas: &["nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor"],
    infer: same,
    derivative: Derivative::Rule(|cx| {
        chain(cx, |b, g, x, _| {
            let finite = b.call(&super::isnan::ISFINITE, &[x])?;
            b.keep_where(finite, g)
        })
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(body),
    cases: || {
        let values = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5];
        let special =
            || Case::new("special").arg(DType::F64, &[4], crate::ops::case::Sample::Values(values.clone()));
        vec![
            Case::new("finite").f(&[3]),
            Case::new("integers").index(&[3], 9),
            special().attr("posinf", 2.0).attr("neginf", -2.0),
        ]
    },
};

fn body(cx: &OpCx) -> Result<Vec<Expr>> {
    let (x, dtype) = (input(0), cx.dtype(0)?);
    if !dtype.is_float() {
        return Ok(vec![x]);
    }
    let value =
        |name, default| Ok::<_, crate::Error>(held(float(cx.opt_float(name)?.unwrap_or(default)), dtype));
    let (nan, high, low) =
        (value("nan", 0.0)?, value("posinf", dtype.max_value())?, value("neginf", -dtype.max_value())?);
    let infinite = x.clone().gt(float(0.0)).select(high, low);
    Ok(vec![x.clone().is_nan().select(nan, x.clone().is_inf().select(infinite, x))])
}
