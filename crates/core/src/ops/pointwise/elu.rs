//! Exponential linear units: Clevert, Unterthiner and Hochreiter 2016; self-normalizing: Klambauer et al.
//! 2017.

use super::{NO_SECOND, float_only, float_promoted, through_input};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};

/// `scale · x` above 0, `scale · alpha · (e^(input_scale · x) - 1)` below.
pub static ELU: OpDef = OpDef {
    name: "elu",
    schemas: &["elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor"],
    infer: float_only,
    derivative: Derivative::Rule(|cx| through_input(cx, &ELU_BACKWARD)),
    precision: Precision::Same,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| {
        let (x, c) = (input(0), Coefficients::of(cx)?);
        let below = (x.clone() * c.input_scale).expm1() * (c.alpha * c.scale);
        Ok(vec![x.clone().le(float(0.0)).select(below, x * c.scale)])
    }),
    cases: || {
        vec![
            Case::new("plain").distinct(&[7]).attr("alpha", 1),
            Case::new("all").distinct(&[7]).attr("alpha", 1.5).attr("scale", 0.5).attr("input_scale", 2),
        ]
    },
};

/// [`ELU`] with the coefficients that keep mean 0 and variance 1.
pub static SELU: OpDef = OpDef {
    name: "selu",
    schemas: &["selu(Tensor self) -> Tensor"],
    infer: float_only,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(12),
    body: Body::Decompose(|b, _, inputs| {
        let attrs = Attrs::new().with("alpha", 1.6732632423543772).with("scale", 1.0507009873554805);
        b.apply(&ELU, inputs, attrs)
    }),
    cases: || vec![Case::new("plain").distinct(&[7])],
};

/// [`ELU`] with `input_scale = 1 / alpha`, whose derivative has no step: Barron 2017.
pub static CELU: OpDef = OpDef {
    name: "celu",
    schemas: &["celu(Tensor self, Scalar alpha=1.) -> Tensor"],
    infer: |cx| {
        let alpha = cx.opt_float("alpha")?.unwrap_or(1.0);
        crate::ensure!(alpha != 0.0, Attribute, "`alpha` must not be 0");
        float_only(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(12),
    body: Body::Decompose(|b, cx, inputs| {
        let alpha = cx.opt_float("alpha")?.unwrap_or(1.0);
        b.apply(&ELU, inputs, Attrs::new().with("alpha", alpha).with("input_scale", 1.0 / alpha))
    }),
    cases: || vec![Case::new("plain").distinct(&[7]).attr("alpha", 2.0)],
};

/// Gradient of [`ELU`]: `(grad_output, self_or_result)`.
pub static ELU_BACKWARD: OpDef = OpDef {
    name: "elu_backward",
    schemas: &[
        "elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result, Tensor self_or_result) -> Tensor",
    ],
    infer: float_promoted,
    derivative: NO_SECOND,
    precision: Precision::Same,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| {
        let (g, x, c) = (input(0), input(1), Coefficients::of(cx)?);
        let slope = if cx.flag("is_result")? {
            (x.clone() + c.alpha * c.scale) * c.input_scale
        } else {
            (x.clone() * c.input_scale).exp() * (c.input_scale * c.alpha * c.scale)
        };
        Ok(vec![g.clone() * x.le(float(0.0)).select(slope, float(c.scale))])
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[7]).distinct(&[7]).attr("alpha", 1.5).attr("scale", 0.5);
        vec![case("of the input"), case("of the result").attr("is_result", true).attr("input_scale", 2)]
    },
};

struct Coefficients {
    alpha: f64,
    scale: f64,
    input_scale: f64,
}

impl Coefficients {
    fn of(cx: &OpCx) -> Result<Coefficients> {
        let get = |name| Ok::<_, crate::Error>(cx.opt_float(name)?.unwrap_or(1.0));
        Ok(Coefficients { alpha: get("alpha")?, scale: get("scale")?, input_scale: get("input_scale")? })
    }
}
