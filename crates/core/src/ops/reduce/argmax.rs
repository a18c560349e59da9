//! Index of the largest and of the smallest element.

use super::{program, reduced_count, reduced_shape};
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::expr::{Expr, input};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::row::{Instr, Reduce, ReduceSpace, Reg, RowBuilder};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// Index (i64) along `dim` of the first largest element, NaN counting as largest; absent `dim`: in the
/// flattened tensor.
pub static ARGMAX: OpDef = OpDef {
    name: "argmax",
    schemas: &["argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"],
    infer,
    derivative: Derivative::NotDifferentiable("an index has no derivative"),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| program(cx, out, |b, s, v| Ok([extremum(cx, b, s, v, Reduce::Max)?.1]))),
    cases,
};

/// Index of the first smallest element, NaN counting as smallest; otherwise as [`ARGMAX`].
pub static ARGMIN: OpDef = OpDef {
    name: "argmin",
    schemas: &["argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"],
    infer,
    derivative: Derivative::NotDifferentiable("an index has no derivative"),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| program(cx, out, |b, s, v| Ok([extremum(cx, b, s, v, Reduce::Min)?.1]))),
    cases,
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    ensure!(reduced_count(cx)? > 0, Shape, "no largest or smallest of nothing in {}", cx.ty(0)?);
    Ok(vec![TensorType::new(DType::I64, reduced_shape(cx)?)])
}

/// The extreme value of the columns of `v` and its first index. The reduction must not be of nothing.
pub(super) fn extremum(
    cx: &OpCx,
    b: &mut RowBuilder,
    space: &ReduceSpace,
    v: Reg,
    op: Reduce,
) -> Result<(Reg, Reg)> {
    let class = cx.dtype(0)?.class();
    let v = if class == Class::Bool { b.push(Instr::Cast(DType::I64, v)) } else { v };
    let best = b.reduce(op, v);
    let mut hit = input(0).eq(input(1));
    if class == Class::Float {
        // If the best is NaN nothing equals it; otherwise no element is NaN.
        hit = hit.or(input(0).is_nan());
    }
    let mut position = vec![0; space.outer.len()];
    position.extend(Shape::new(&space.inner).strides().iter().map(|&s| s as i64));
    let position = b.push(Instr::Iota(position));
    // There is a hit in every row: the last index stands for none, and results are indices by their range.
    let last = space.inner.iter().product::<usize>().saturating_sub(1);
    let candidate = b.expr(&hit.select(input(2), Expr::Int(last as i64)), &[v, best, position]);
    let index = b.reduce(Reduce::Min, candidate);
    let best = if class == Class::Bool { b.push(Instr::Cast(DType::Bool, best)) } else { best };
    Ok((best, index))
}

fn cases() -> Vec<Case> {
    let tie = crate::ops::Sample::Values(vec![1.0, 5.0, 5.0, -2.0, -2.0, 0.0]);
    vec![
        Case::new("flattened").distinct(&[2, 3]),
        Case::new("middle kept").distinct(&[2, 3, 4]).attr("dim", 1).attr("keepdim", true),
        Case::new("ties").arg(DType::I64, &[6], tie).attr("dim", -1),
        Case::new("scalar").f(&[]).attr("dim", 0),
    ]
}
