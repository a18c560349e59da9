//! Norms of vectors.

use super::{dims, kept_shape, program, reduced_count, reduced_shape, restore_reduced};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::{float, input};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::{Reduce, ReduceSpace};
use crate::tensor::TensorType;

/// `(Σ |x|^ord)^(1/ord)` over `dim` (absent or empty: all); `ord` inf and -inf are the largest and smallest
/// magnitude, 0 counts what is not zero. The older spelling calls it `p`; absent it is 2.
pub static VECTOR_NORM: OpDef = OpDef {
    name: "linalg_vector_norm",
    schemas: &[
        "linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        "norm.Scalar(Tensor self, Scalar p=2) -> Tensor",
        "norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor",
        "norm.ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype) -> Tensor",
        "norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> Tensor",
    ],
    infer: |cx| {
        let dtype = cx.opt_dtype("dtype")?.unwrap_or(cx.dtype(0)?);
        ensure!(dtype.is_float() && cx.dtype(0)?.is_float(), DType, "a norm needs floats, got {}", cx.ty(0)?);
        ensure!(
            order(cx)?.is_finite() || reduced_count(cx)? > 0,
            Shape,
            "no largest of nothing in {}",
            cx.ty(0)?
        );
        Ok(vec![TensorType::new(dtype, reduced_shape(cx)?)])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x, y) = (cx.grad(0)?, cx.x(0)?, cx.y(0));
        let (g, y) = (restore_reduced(cx, g)?, restore_reduced(cx, y)?);
        let dims: Vec<i64> = cx.of(dims)?.into_iter().map(|d| d as i64).collect();
        let attrs = Attrs::new().with("ord", cx.of(order)?).with("dim", dims);
        let dx = cx.one(&VECTOR_NORM_BACKWARD, &[g, x, y], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerInput(3),
    body: Body::Rows(|cx, out| {
        let p = order(cx)?;
        program(cx, out, |b, _, v| {
            let term = match p {
                0.0 => input(0).eq(float(0.0)).select(float(0.0), float(1.0)),
                2.0 => input(0) * input(0),
                p if p == 1.0 || p.is_infinite() => input(0).abs(),
                p => input(0).abs().pow(float(p)),
            };
            let term = b.expr(&term, &[v]);
            let reduce = match p {
                f64::INFINITY => Reduce::Max,
                f64::NEG_INFINITY => Reduce::Min,
                _ => Reduce::Sum,
            };
            let all = b.reduce(reduce, term);
            Ok([match p {
                2.0 => b.expr(&input(0).sqrt(), &[all]),
                p if p == 0.0 || p == 1.0 || p.is_infinite() => all,
                p => b.expr(&input(0).pow(float(1.0 / p)), &[all]),
            }])
        })
    }),
    cases: || {
        let case = |name| Case::new(name).distinct(&[2, 3]);
        vec![
            case("euclidean").attr("ord", 2),
            case("sum").attr("ord", 1).attr("dim", [1]),
            case("largest").attr("ord", f64::INFINITY).attr("dim", [0]).attr("keepdim", true),
            case("smallest").attr("ord", f64::NEG_INFINITY).attr("dim", [1]),
            case("count").attr("ord", 0).attr("dim", [1]),
            case("cubic").attr("ord", 3.0),
            case("half").attr("p", 0.5).attr("dim", [-1]),
            case("between").attr("p", 1.5).attr("dim", [0]),
        ]
    },
};

/// Gradient of [`VECTOR_NORM`]: `(grad, self, result)`, the first and last with `dim` kept as 1. It is
/// `g · sign(x) · (|x| / result)^(ord − 1)`, 0 where x or the result is 0; ties of the largest share evenly.
pub static VECTOR_NORM_BACKWARD: OpDef = OpDef {
    name: "linalg_vector_norm_backward",
    schemas: &[],
    infer: |cx| {
        let (x, kept) = (cx.ty(1)?, kept_shape(cx, 1)?);
        order(cx)?;
        cx.expect_floats(1, &x.shape)?;
        [0, 2].into_iter().try_for_each(|i| cx.ty(i).and(cx.expect_floats(i, &kept)))?;
        Ok(vec![x.clone()])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(6),
    body: Body::Rows(|cx, out| {
        let x = cx.ty(1)?;
        let space = ReduceSpace::new(&x.shape, &cx.dims("dim", x.shape.rank())?);
        let mut b = space.builder();
        let g = b.read(cx.dtype(0)?, space.kept.clone());
        let v = b.read(x.dtype, space.full.clone());
        let y = b.read(cx.dtype(2)?, space.kept.clone());
        let dx = match order(cx)? {
            0.0 => b.expr(&float(0.0), &[]),
            1.0 => b.expr(&(input(0) * input(1).sign()), &[g, v]),
            2.0 => b.expr(
                &input(2).eq(float(0.0)).select(float(0.0), input(0) * (input(1) / input(2))),
                &[g, v, y],
            ),
            p if p.is_infinite() => {
                let hit = input(0).abs().eq(input(1)).or(input(0).is_nan());
                let hit = b.expr(&hit.select(float(1.0), float(0.0)), &[v, y]);
                let count = b.sum(hit);
                b.expr(&(input(0) * input(1).sign() * input(2) / input(3)), &[g, v, hit, count])
            }
            p => {
                let nothing = input(1).eq(float(0.0)).or(input(2).eq(float(0.0)));
                let slope = input(1).sign() * (input(1).abs() / input(2)).pow(float(p - 1.0));
                b.expr(&nothing.select(float(0.0), input(0) * slope), &[g, v, y])
            }
        };
        b.store(out[0].dtype, space.full.clone(), dx);
        Ok(b.finish())
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 1]).f(&[2, 3]).range(&[2, 1], 1.0, 3.0).attr("dim", [1]);
        vec![case("euclidean").attr("ord", 2.0), case("cubic").attr("ord", 3.0)]
    },
};

fn order(cx: &OpCx) -> Result<f64> {
    Ok(cx.opt_float("ord")?.or(cx.opt_float("p")?).unwrap_or(2.0))
}
