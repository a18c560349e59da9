//! Uniform numbers turned into other distributions, element by element. Internal: importable spellings are
//! beside.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;
use std::f64::consts::PI;

const STOPS: Derivative =
    Derivative::NotDifferentiable("a drawn number does not depend on its distribution smoothly");

/// True if a uniform number is less than the probability: the attribute `p`, or a second input. As `dtype`.
pub static UNIFORM_BELOW: OpDef = OpDef {
    name: "uniform_below",
    schemas: &[
        "headwater::uniform_below(Tensor uniform, Tensor? p_tensor, *, float? p=None, ScalarType dtype) -> Tensor",
    ],
    infer,
    derivative: STOPS,
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let p = match cx.opt(1) {
            Some(t) => cast(input(1), t.dtype, cx.dtype(0)?),
            None => float(cx.float("p")?),
        };
        Ok(vec![input(0).lt(p).cast(dtype(cx)?)])
    }),
    cases: || {
        vec![
            Case::new("number").range(&[6], 0.0, 1.0).attr("p", 0.4).attr("dtype", DType::Bool),
            Case::new("tensor").range(&[2, 3], 0.0, 1.0).range(&[3], 0.0, 1.0).attr("dtype", DType::F64),
        ]
    },
};

/// `from + (to − from) · u` in `dtype`, never rounded up to `to` where `from` is 0 and `to` a power of two.
/// The numbers of f16 and bf16 have as many digits as the dtype.
pub static UNIFORM_BETWEEN: OpDef = OpDef {
    name: "uniform_between",
    schemas: &[
        "headwater::uniform_between(Tensor uniform, *, float from, float to, ScalarType dtype) -> Tensor",
    ],
    infer,
    derivative: STOPS,
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| {
        let (from, to, dtype) = (cx.float("from")?, cx.float("to")?, dtype(cx)?);
        // 2 / epsilon is 2 to the number of digits.
        let steps = 2.0 / dtype.epsilon();
        let u = if matches!(dtype, DType::F16 | DType::BF16) {
            (input(0) * steps).floor() / steps
        } else {
            input(0)
        };
        Ok(vec![(u * (to - from) + from).cast(dtype)])
    }),
    cases: || {
        let case = |name| Case::new(name).range(&[6], 0.0, 1.0).attr("from", -1.0).attr("to", 3.0);
        vec![case("wide").attr("dtype", DType::F64), case("narrow").attr("dtype", DType::BF16)]
    },
};

/// Standard normal numbers of two uniform ones, as `dtype`: `√(−2 ln(1 − u)) · cos(2πv)` (Box and Muller
/// 1958).
pub static UNIFORM_TO_NORMAL: OpDef = OpDef {
    name: "uniform_to_normal",
    schemas: &["headwater::uniform_to_normal(Tensor uniform, Tensor other, *, ScalarType dtype) -> Tensor"],
    infer,
    derivative: STOPS,
    precision: Precision::Full,
    cost: Cost::PerOutput(30),
    body: Body::Pointwise(|cx| {
        let radius = ((-input(0)).log1p() * -2.0).sqrt();
        Ok(vec![(radius * (input(1) * (2.0 * PI)).cos()).cast(dtype(cx)?)])
    }),
    cases: || vec![Case::new("pair").range(&[6], 0.0, 1.0).range(&[6], 0.0, 1.0).attr("dtype", DType::F64)],
};

/// Integers from `low` up to below `high` of two uniform f64, the second giving the lower digits, as `dtype`.
pub static UNIFORM_TO_INTEGER: OpDef = OpDef {
    name: "uniform_to_integer",
    schemas: &[
        "headwater::uniform_to_integer(Tensor uniform, Tensor other, *, int low, int high, ScalarType dtype) -> Tensor",
    ],
    infer,
    derivative: STOPS,
    precision: Precision::Same,
    cost: Cost::PerOutput(5),
    body: Body::Pointwise(|cx| {
        let (low, high) = (cx.int("low")?, cx.int("high")?);
        // 48 random bits: of a larger range some numbers would never come.
        let range = high.checked_sub(low).filter(|r| (1..=1 << 48).contains(r));
        let range = range.ok_or_else(|| {
            crate::fail!(
                Attribute,
                "random integers need `low` < `high`, at most 2^48 apart; got {low} and {high}"
            )
        })?;
        let u = input(0) + input(1) * (-24f64).exp2();
        let drawn = (u * range as f64).floor().cast(DType::I64) + Expr::Int(low);
        Ok(vec![drawn.cast(dtype(cx)?)])
    }),
    cases: || {
        let case =
            |name| Case::new(name).range(&[6], 0.0, 1.0).range(&[6], 0.0, 1.0).attr("dtype", DType::I64);
        vec![case("dice").attr("low", 1).attr("high", 7), case("negative").attr("low", -9).attr("high", -3)]
    },
};

/// Exponentially distributed numbers of rate `lambd`, as `dtype`: `−ln(1 − u) / lambd`.
pub static UNIFORM_TO_EXPONENTIAL: OpDef = OpDef {
    name: "uniform_to_exponential",
    schemas: &[
        "headwater::uniform_to_exponential(Tensor uniform, *, float lambd=1., ScalarType dtype) -> Tensor",
    ],
    infer,
    derivative: STOPS,
    precision: Precision::Full,
    cost: Cost::PerOutput(12),
    body: Body::Pointwise(|cx| {
        Ok(vec![((-input(0)).log1p() * (-1.0 / cx.opt_float("lambd")?.unwrap_or(1.0))).cast(dtype(cx)?)])
    }),
    cases: || vec![Case::new("rate").range(&[6], 0.0, 1.0).attr("lambd", 2.0).attr("dtype", DType::F64)],
};

fn dtype(cx: &OpCx) -> Result<DType> {
    cx.opt_dtype("dtype")?.ok_or_else(|| crate::fail!(Attribute, "attribute `dtype` is missing"))
}

fn cast(e: Expr, from: DType, to: DType) -> Expr {
    if from == to { e } else { e.cast(to) }
}

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let floats = cx.opt(0).is_some() && cx.present().all(|t| t.dtype.is_float());
    ensure!(floats, DType, "uniform numbers are floats, got {}", cx.list_types());
    Ok(vec![TensorType::new(dtype(cx)?, cx.broadcast()?)])
}
