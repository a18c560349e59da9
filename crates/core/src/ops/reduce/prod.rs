//! Product over dimensions.

use super::sum::sum_dtype;
use super::{kept_shape, program, reduced_shape, restore_reduced};
use crate::attr::Attrs;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision, Sample};
use crate::row::{Instr, Reduce, ReduceSpace};
use crate::tensor::TensorType;

/// Product over `dim` (absent: all). Integers and bools multiply in i64.
pub static PROD: OpDef = OpDef {
    name: "prod",
    schemas: &[
        "prod(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        "prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    ],
    infer: |cx| Ok(vec![TensorType::new(sum_dtype(cx)?, reduced_shape(cx)?)]),
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x) = (cx.grad(0)?, cx.x(0)?);
        let g = restore_reduced(cx, g)?;
        let dims = cx.of(super::dims)?.into_iter().map(|d| d as i64).collect::<Vec<_>>();
        let dx = cx.one(&PROD_BACKWARD, &[g, x], Attrs::new().with("dim", dims))?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| {
        program(cx, out, |b, _, v| {
            let same = cx.dtype(0)?.class() == out[0].dtype.class();
            let v = if same { v } else { b.push(Instr::Cast(out[0].dtype, v)) };
            Ok([b.reduce(Reduce::Prod, v)])
        })
    }),
    cases: || {
        let zeros = |v: &[f64]| Sample::Values(v.to_vec());
        let float = crate::DType::F64;
        vec![
            Case::new("all").f(&[2, 3]),
            Case::new("middle kept").f(&[2, 3, 2]).attr("dim", 1).attr("keepdim", true),
            Case::new("one zero").arg(float, &[4], zeros(&[2.0, 0.0, -1.5, 3.0])).attr("dim", 0),
            Case::new("two zeros").arg(float, &[4], zeros(&[2.0, 0.0, 0.0, 3.0])).attr("dim", -1),
            Case::new("of nothing").f(&[2, 0]).attr("dim", 1),
            Case::new("ints").index(&[2, 3], 9),
        ]
    },
};

/// Gradient of [`PROD`]: `(grad, self)`, the gradient with `dim` kept as 1. Each element gets the product of
/// the others, without dividing by zero.
pub static PROD_BACKWARD: OpDef = OpDef {
    name: "prod_backward",
    schemas: &[],
    infer: |cx| {
        let x = cx.ty(1)?;
        cx.expect_floats(1, &x.shape)?;
        cx.expect_floats(0, &kept_shape(cx, 1)?)?;
        Ok(vec![x.clone()])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(5),
    body: Body::Rows(|cx, out| {
        let x = cx.ty(1)?;
        let space = ReduceSpace::new(&x.shape, &cx.dims("dim", x.shape.rank())?);
        let mut b = space.builder();
        let g = b.read(cx.dtype(0)?, space.kept.clone());
        let v = b.read(x.dtype, space.full.clone());
        let zero = b.expr(&input(0).eq(float(0.0)), &[v]);
        let others = b.expr(&input(0).select(float(1.0), input(1)), &[zero, v]);
        let others = b.reduce(Reduce::Prod, others);
        let count = b.expr(&input(0).select(float(1.0), float(0.0)), &[zero]);
        let count = b.sum(count);
        let at_zero = input(3).eq(float(1.0)).select(input(2), float(0.0));
        let elsewhere = input(3).eq(float(0.0)).select(input(2) / input(1), float(0.0));
        let dx = input(0).select(at_zero, elsewhere) * input(4);
        let dx = b.expr(&dx, &[zero, v, others, count, g]);
        b.store(out[0].dtype, space.full.clone(), dx);
        Ok(b.finish())
    }),
    cases: || vec![Case::new("middle").f(&[2, 1, 3]).f(&[2, 4, 3]).attr("dim", [1])],
};
