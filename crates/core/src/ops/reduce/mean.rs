//! Mean over dimensions.

use super::{expand_reduced, program, reduced_count, reduced_shape};
use crate::ensure;
use crate::expr::input;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision};
use crate::row::Instr;
use crate::tensor::TensorType;

/// Mean over `dim` (absent or empty: all); NaN of nothing. Integers only with a float `dtype`.
pub static MEAN: OpDef = OpDef {
    name: "mean",
    schemas: &[
        "mean(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        "mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    ],
    infer: |cx| {
        let dtype = cx.opt_dtype("dtype")?.unwrap_or(cx.dtype(0)?);
        ensure!(dtype.is_float(), DType, "the mean of {} needs a float `dtype`", cx.ty(0)?);
        Ok(vec![TensorType::new(dtype, reduced_shape(cx)?)])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let g = cx.grad(0)?;
        let (whole, part) = (cx.x(0)?, cx.y(0));
        let n = cx.ty(whole).shape.numel() as f64 / cx.ty(part).shape.numel() as f64;
        // Scaled while small, then spread.
        let g = cx.scale(g, 1.0 / n)?;
        let dx = expand_reduced(cx, g)?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| {
        program(cx, out, |b, _, v| {
            let v = if cx.dtype(0)?.is_float() { v } else { b.push(Instr::Cast(out[0].dtype, v)) };
            let sum = b.sum(v);
            Ok([b.expr(&(input(0) / reduced_count(cx)? as f64), &[sum])])
        })
    }),
    cases: || {
        vec![
            Case::new("all").f(&[2, 3]),
            Case::new("last kept").f(&[2, 3, 4]).attr("dim", [-1]).attr("keepdim", true),
            Case::new("two").f(&[2, 3, 4]).attr("dim", [2, 0]),
            Case::new("scalar").f(&[]),
        ]
    },
};
