//! The identity between two bounds, flat outside.

use super::{NO_SECOND, element, number, number_like, promoted, tensor, through_input};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::Expr;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};

/// `min(max(self, min_val), max_val)`; at the bounds its derivative is 0. NaN stays.
pub static HARDTANH: OpDef = OpDef {
    name: "hardtanh",
    schemas: &["hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor"],
    infer: number_like,
    derivative: Derivative::Rule(|cx| through_input(cx, &HARDTANH_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Pointwise(|cx| {
        let dtype = cx.dtype(0)?;
        let (min, max) = bounds(cx, dtype)?;
        Ok(vec![tensor(cx, 0, dtype)?.max(min).min(max)])
    }),
    cases: || vec![Case::new("plain").distinct(&[7]).attr("min_val", -1).attr("max_val", 1.25)],
};

/// `hardtanh` between 0 and 6.
pub static RELU6: OpDef = OpDef {
    name: "relu6",
    schemas: &["relu6(Tensor self) -> Tensor"],
    infer: number_like,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(2),
    body: Body::Decompose(|b, _, inputs| {
        b.apply(&HARDTANH, inputs, Attrs::new().with("min_val", 0).with("max_val", 6))
    }),
    cases: || vec![Case::new("plain").range(&[7], -4.0, 9.0)],
};

/// Gradient of [`HARDTANH`]: `(grad_output, self)`; `g` strictly between the bounds, else 0.
pub static HARDTANH_BACKWARD: OpDef = OpDef {
    name: "hardtanh_backward",
    schemas: &[
        "hardtanh_backward(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> Tensor",
    ],
    infer: promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(3),
    body: Body::Pointwise(|cx| {
        let dtype = cx.result_type(&[]);
        let (g, x) = (tensor(cx, 0, dtype)?, tensor(cx, 1, dtype)?);
        let (min, max) = bounds(cx, dtype)?;
        // Written as outside, so that the gradient passes where x is NaN, as in PyTorch.
        Ok(vec![x.clone().le(min).or(x.ge(max)).select(number(0.0, dtype), g)])
    }),
    cases: || vec![Case::new("plain").f(&[7]).distinct(&[7]).attr("min_val", -1).attr("max_val", 1)],
};

fn bounds(cx: &OpCx, dtype: DType) -> Result<(Expr, Expr)> {
    let bound = |name, default| match cx.attrs.get(name) {
        Some(_) => element(cx, name, dtype),
        None => Ok(number(default, dtype)),
    };
    Ok((bound("min_val", -1.0)?, bound("max_val", 1.0)?))
}
