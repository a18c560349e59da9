//! The identity matrix.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::Expr;
use crate::ops::pointwise::number;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// `n × m` (`m` absent: `n × n`) with ones on the diagonal, zeros elsewhere; f32 unless a dtype is given.
pub static EYE: OpDef = OpDef {
    name: "eye",
    schemas: &[
        "eye(SymInt n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        "eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
    infer: |cx| {
        let n = cx.size("n")?;
        let m = if cx.opt_int("m")?.is_some() { cx.size("m")? } else { n };
        Ok(vec![TensorType::new(dtype(cx)?, [n, m])])
    },
    derivative: Derivative::NotDifferentiable("it has no tensor input"),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let dtype = dtype(cx)?;
        Ok(vec![Expr::Coord(0).eq(Expr::Coord(1)).select(number(1.0, dtype), number(0.0, dtype))])
    }),
    cases: || {
        vec![
            Case::new("square").attr("n", 3),
            Case::new("wide").attr("n", 2).attr("m", 4).attr("dtype", DType::I64),
            Case::new("empty").attr("n", 0).attr("dtype", DType::Bool),
        ]
    },
};

fn dtype(cx: &OpCx) -> Result<DType> {
    Ok(cx.opt_dtype("dtype")?.unwrap_or(DType::F32))
}
