//! Largest and smallest element along one dimension, with its index.

use super::argmax::extremum;
use super::{program, reduced_count, reduced_shape, restore_reduced};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::expr::{Expr, float, input};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::Reduce;
use crate::tensor::TensorType;

/// Values and first indices (i64) of the largest elements along `dim`; the gradient goes to that element
/// alone.
pub static MAX: OpDef = OpDef {
    name: "max",
    schemas: &["max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"],
    infer,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| {
        program(cx, out, |b, s, v| Ok(<[_; 2]>::from(extremum(cx, b, s, v, Reduce::Max)?)))
    }),
    cases,
};

/// Values and first indices (i64) of the smallest elements along `dim`; otherwise as [`MAX`].
pub static MIN: OpDef = OpDef {
    name: "min",
    schemas: &["min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"],
    infer,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| {
        program(cx, out, |b, s, v| Ok(<[_; 2]>::from(extremum(cx, b, s, v, Reduce::Min)?)))
    }),
    cases,
};

/// Gradient of [`MAX`] and [`MIN`]: `(grad, indices)`, both with `dim` kept as 1; `sizes` is the input's
/// shape.
pub static VALUE_SELECTING_REDUCTION_BACKWARD: OpDef = OpDef {
    name: "value_selecting_reduction_backward",
    schemas: &[],
    infer: |cx| {
        let (g, sizes) = (cx.ty(0)?, cx.sizes("sizes")?);
        let mut kept = sizes.to_vec();
        if let Some(n) = kept.get_mut(cx.dim("dim", sizes.rank())?) {
            *n = 1;
        }
        cx.expect_floats(0, &kept)?;
        let index = cx.ty(1)?;
        ensure!(index.dtype == DType::I64 && index.shape == g.shape, Shape, "indices {index} for {g}");
        Ok(vec![TensorType::new(g.dtype, sizes)])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Pointwise(|cx| {
        let rank = cx.shape(0)?.rank();
        if rank == 0 {
            return Ok(vec![input(0)]);
        }
        let here = Expr::Coord(cx.dim("dim", rank)?).eq(input(1));
        Ok(vec![here.select(input(0), float(0.0))])
    }),
    cases: || {
        vec![Case::new("middle").f(&[2, 1, 3]).index(&[2, 1, 3], 4).attr("dim", 1).attr("sizes", [2, 4, 3])]
    },
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    cx.int("dim")?;
    ensure!(reduced_count(cx)? > 0, Shape, "no largest or smallest of nothing in {}", cx.ty(0)?);
    let shape = reduced_shape(cx)?;
    Ok(vec![TensorType::new(cx.dtype(0)?, shape.clone()), TensorType::new(DType::I64, shape)])
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, x, index) = (cx.grad(0)?, cx.x(0)?, cx.y(1));
    let (g, index) = (restore_reduced(cx, g)?, restore_reduced(cx, index)?);
    let sizes = cx.ty(x).shape.to_ints();
    let dim = cx.args().int("dim")?;
    let attrs = Attrs::new().with("dim", dim).with("sizes", sizes);
    let dx = cx.one(&VALUE_SELECTING_REDUCTION_BACKWARD, &[g, index], attrs)?;
    cx.set(0, dx)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("last").distinct(&[2, 3]).attr("dim", -1),
        Case::new("middle kept").distinct(&[2, 3, 4]).attr("dim", 1).attr("keepdim", true),
        Case::new("scalar").f(&[]).attr("dim", 0),
        Case::new("bools").mask(&[2, 3]).attr("dim", 0),
    ]
}
