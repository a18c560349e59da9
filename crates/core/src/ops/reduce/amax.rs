//! Largest and smallest element over dimensions.

use super::{dims, kept_shape, program, reduced_count, reduced_shape, restore_reduced};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::ensure;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, required};
use crate::row::{Instr, Reduce, ReduceSpace, RowProgram};
use crate::tensor::TensorType;

/// Largest element over `dim` (absent or empty: all); NaN if any is. Its gradient is shared evenly among
/// ties.
pub static AMAX: OpDef = OpDef {
    name: "amax",
    schemas: &[
        "amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor",
        "max(Tensor self) -> Tensor",
    ],
    infer,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| body(cx, out, Reduce::Max)),
    cases,
};

/// Smallest element; otherwise as [`AMAX`].
pub static AMIN: OpDef = OpDef {
    name: "amin",
    schemas: &[
        "amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor",
        "min(Tensor self) -> Tensor",
    ],
    infer,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| body(cx, out, Reduce::Min)),
    cases,
};

/// Smallest and largest element along `dim`, or of all; as [`AMIN`] and [`AMAX`].
pub static AMINMAX: OpDef = OpDef {
    name: "aminmax",
    schemas: &["aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)"],
    infer: |cx| {
        let ty = infer(cx)?.remove(0);
        Ok(vec![ty.clone(), ty])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerInput(2),
    body: Body::Decompose(|b, cx, inputs| {
        let x = required(inputs, 0)?;
        let dims: Vec<i64> = dims(cx)?.into_iter().map(|d| d as i64).collect();
        let attrs = Attrs::new().with("dim", dims).with("keepdim", cx.flag("keepdim")?);
        Ok(vec![b.one(&AMIN, &[x], attrs.clone())?, b.one(&AMAX, &[x], attrs)?])
    }),
    cases: || {
        vec![
            Case::new("all").distinct(&[2, 3]),
            Case::new("rows, kept").distinct(&[2, 3]).attr("dim", 1).attr("keepdim", true),
        ]
    },
};

/// Gradient of [`AMAX`] and [`AMIN`]: `(grad, self, result)`, the latter two reduced ones with `dim` kept as
/// 1. Every element equal to the result gets an even share, as PyTorch's `scale_grad_by_count`.
pub static EVENLY_DISTRIBUTE: OpDef = OpDef {
    name: "evenly_distribute_backward",
    schemas: &[],
    infer: |cx| {
        let x = cx.ty(1)?;
        let kept = kept_shape(cx, 1)?;
        cx.expect_floats(1, &x.shape)?;
        [0, 2].into_iter().try_for_each(|i| cx.expect_floats(i, &kept))?;
        Ok(vec![x.clone()])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Same,
    cost: Cost::PerOutput(3),
    body: Body::Rows(|cx, out| {
        let x = cx.ty(1)?;
        let space = ReduceSpace::new(&x.shape, &cx.dims("dim", x.shape.rank())?);
        let mut b = space.builder();
        let g = b.read(cx.dtype(0)?, space.kept.clone());
        let v = b.read(x.dtype, space.full.clone());
        let y = b.read(cx.dtype(2)?, space.kept.clone());
        let nan = input(0).is_nan().and(input(1).is_nan());
        let hit = b.expr(&input(0).eq(input(1)).or(nan), &[v, y]);
        let one = b.expr(&input(0).select(float(1.0), float(0.0)), &[hit]);
        let count = b.sum(one);
        let dx = b.expr(&input(0).select(input(1) / input(2), float(0.0)), &[hit, g, count]);
        b.store(out[0].dtype, space.full.clone(), dx);
        Ok(b.finish())
    }),
    cases: || {
        let tie = crate::ops::Sample::Values(vec![1.0, 3.0, 3.0, 2.0]);
        vec![
            Case::new("tie")
                .f(&[1])
                .arg(DType::F64, &[4], tie)
                .arg(DType::F64, &[1], crate::ops::Sample::Values(vec![3.0]))
                .attr("dim", [0]),
        ]
    },
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    ensure!(reduced_count(cx)? > 0, Shape, "no largest or smallest of nothing in {}", cx.ty(0)?);
    Ok(vec![TensorType::new(cx.dtype(0)?, reduced_shape(cx)?)])
}

fn body(cx: &OpCx, out: &[TensorType], op: Reduce) -> Result<RowProgram> {
    program(cx, out, |b, _, v| {
        if cx.dtype(0)?.class() != Class::Bool {
            return Ok([b.reduce(op, v)]);
        }
        let v = b.push(Instr::Cast(DType::I64, v));
        let v = b.reduce(op, v);
        Ok([b.push(Instr::Cast(DType::Bool, v))])
    })
}

fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, x, y) = (cx.grad(0)?, cx.x(0)?, cx.y(0));
    let (g, y) = (restore_reduced(cx, g)?, restore_reduced(cx, y)?);
    let dims: Vec<i64> = cx.of(dims)?.into_iter().map(|d| d as i64).collect();
    let dx = cx.one(&EVENLY_DISTRIBUTE, &[g, x, y], Attrs::new().with("dim", dims))?;
    cx.set(0, dx)
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("all").distinct(&[2, 3]),
        Case::new("two kept").distinct(&[2, 3, 4]).attr("dim", [0, -1]).attr("keepdim", true),
        Case::new("one").distinct(&[2, 3]).attr("dim", [1]),
        Case::new("scalar").f(&[]),
        Case::new("ints").index(&[2, 3], 9).attr("dim", [0]),
        Case::new("bools").mask(&[2, 3]).attr("dim", [0]),
    ]
}
