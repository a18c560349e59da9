//! A given number of points at equal distances.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::{Expr, float};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `steps` numbers from `start` to `end`, both included; f32 unless a dtype is given. Computed in f64 from
/// the nearer end, as PyTorch does, so that both ends are exact; integers are truncated.
pub static LINSPACE: OpDef = OpDef {
    name: "linspace",
    schemas: &[
        "linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(dtype(cx)?, [cx.size("steps")?])]),
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Pointwise(|cx| Ok(vec![points(cx)?.cast(dtype(cx)?)])),
    cases: || {
        let case = |name| Case::new(name).attr("start", -1.0).attr("end", 2);
        vec![
            case("seven").attr("steps", 7).attr("dtype", DType::F64),
            case("one").attr("steps", 1),
            case("none").attr("steps", 0),
            case("integers").attr("steps", 6).attr("dtype", DType::I64),
        ]
    },
};

/// The points in f64.
pub fn points(cx: &OpCx) -> Result<Expr> {
    let (start, end, steps) = (cx.float("start")?, cx.float("end")?, cx.size("steps")?);
    let step = if steps > 1 { (end - start) / (steps - 1) as f64 } else { 0.0 };
    let i = Expr::Coord(0).cast(DType::F64);
    let rest = float(steps as f64 - 1.0) - i.clone();
    let near = Expr::Coord(0).lt(Expr::Int(steps as i64 / 2));
    // One point is `start`.
    let far = if steps > 1 { float(end) - rest * step } else { float(start) };
    Ok(near.select(i * step + float(start), far))
}

fn dtype(cx: &OpCx) -> Result<DType> {
    Ok(cx.opt_dtype("dtype")?.unwrap_or(DType::F32))
}
