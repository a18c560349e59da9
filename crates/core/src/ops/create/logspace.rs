//! A given number of powers at equal distances of their exponents.

use super::linspace::points;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::expr::float;
use crate::ops::{Body, Case, Cost, Derivative, OpDef, Precision};
use crate::tensor::TensorType;

/// `base` to the powers that [`super::linspace::LINSPACE`] gives; f32 unless a dtype is given. Computed in
/// f64; integers are truncated.
pub static LOGSPACE: OpDef = OpDef {
    name: "logspace",
    schemas: &[
        "logspace(Scalar start, Scalar end, int steps, float base=10.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| {
        let dtype = cx.opt_dtype("dtype")?.unwrap_or(DType::F32);
        ensure!(dtype.class() != Class::Bool, DType, "powers are no truth values");
        cx.opt_float("base")?;
        Ok(vec![TensorType::new(dtype, [cx.size("steps")?])])
    },
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::PerOutput(14),
    body: Body::Pointwise(|cx| {
        let dtype = cx.opt_dtype("dtype")?.unwrap_or(DType::F32);
        let base = float(cx.opt_float("base")?.unwrap_or(10.0));
        Ok(vec![base.pow(points(cx)?).cast(dtype)])
    }),
    cases: || {
        let case = |name| Case::new(name).attr("start", -1.0).attr("end", 2).attr("base", 10.0);
        vec![
            case("seven").attr("steps", 7).attr("dtype", DType::F64),
            case("one").attr("steps", 1),
            case("none").attr("steps", 0),
            Case::new("of two").attr("start", 0).attr("end", 3).attr("base", 2.0).attr("steps", 4),
        ]
    },
};
