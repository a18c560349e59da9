//! Determinants.

use super::dense::Lu;
use super::inverse::INVERSE;
use super::{each_matrix, squares, transposed};
use crate::diagnostic::Result;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::{log::LOG, mul::MUL};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, required};
use crate::tensor::TensorType;
use crate::{Shape, ensure};

/// The determinant of each matrix `[..., n, n]`. Its gradient goes by the inverse, so that it is refused of
/// singular ones.
pub static DET: OpDef = OpDef {
    name: "linalg_det",
    schemas: &[
        "linalg_det(Tensor A) -> Tensor",
        "det(Tensor self) -> Tensor",
        "_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)",
    ],
    infer: |cx| Ok(vec![numbers(cx)?]),
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, y) = (cx.grad(0)?, cx.y(0));
        let g = cx.call(&MUL, &[g, y])?;
        through_inverse(cx, g)
    }),
    precision: Precision::Full,
    cost: Cost::Custom(cost),
    body: Body::Kernel(|cx, inputs, outs| {
        let n = squares(cx, 0)?.1;
        let x = inputs[0].expect("typed").floats();
        if n == 0 {
            return Ok(vec![crate::Tensor::full(&outs[0], 1.0)]);
        }
        each_matrix([x], [n * n], outs, [1], |[x], [y]| {
            y[0] = Lu::new(x, n).determinant();
            Ok(())
        })
    }),
    cases,
};

/// Sign and logarithm of the magnitude of each determinant; 0 and −∞ of a singular matrix.
pub static SLOGDET: OpDef = OpDef {
    name: "linalg_slogdet",
    schemas: &[
        "linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet)",
        "slogdet(Tensor self) -> (Tensor sign, Tensor logabsdet)",
        "_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor pivots)",
    ],
    infer: |cx| Ok(vec![numbers(cx)?; 2]),
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let g = cx.grad(1)?;
        through_inverse(cx, g)
    }),
    precision: Precision::Full,
    cost: Cost::Custom(cost),
    body: Body::Kernel(|cx, inputs, outs| {
        let n = squares(cx, 0)?.1;
        let x = inputs[0].expect("typed").floats();
        if n == 0 {
            return Ok(vec![crate::Tensor::full(&outs[0], 1.0), crate::Tensor::full(&outs[1], 0.0)]);
        }
        each_matrix([x], [n * n], outs, [1, 1], |[x], [sign, log]| {
            (sign[0], log[0]) = Lu::new(x, n).log_determinant();
            Ok(())
        })
    }),
    cases,
};

/// The logarithm of each determinant; NaN of a negative one.
pub static LOGDET: OpDef = OpDef {
    name: "logdet",
    schemas: &["logdet(Tensor self) -> Tensor"],
    infer: |cx| Ok(vec![numbers(cx)?]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Custom(cost),
    body: Body::Decompose(|b: &mut Builder, _: &OpCx, inputs: &[Option<ValueId>]| {
        let parts = b.apply(&SLOGDET, &[Some(required(inputs, 0)?)], crate::Attrs::new())?;
        // The logarithm of −1 is none.
        let sign = b.call(&LOG, &[parts[0]])?;
        Ok(vec![b.add(parts[1], sign)?])
    }),
    cases: || cases().into_iter().filter(|c| c.name == "positive").collect(),
};

fn numbers(cx: &OpCx) -> Result<TensorType> {
    let (t, n) = squares(cx, 0)?;
    ensure!(n > 0 || t.shape.numel() == 0, Shape, "no determinant of {t}");
    Ok(TensorType::new(t.dtype, Shape::new(&t.shape[..t.shape.rank() - 2])))
}

/// The gradient `g · X⁻ᵀ`.
fn through_inverse(cx: &mut GradCx, g: ValueId) -> Result<()> {
    let x = cx.x(0)?;
    let inverse = cx.call(&INVERSE, &[x])?;
    let inverse = transposed(cx, inverse)?;
    let rank = cx.ty(g).shape.rank();
    let g = cx.unsqueeze(g, rank)?;
    let g = cx.unsqueeze(g, rank + 1)?;
    let dx = cx.mul(inverse, g)?;
    cx.set(0, dx)
}

fn cost(cx: &OpCx, _: &[TensorType]) -> f64 {
    squares(cx, 0).map_or(0.0, |(t, n)| t.shape.numel() as f64 * n as f64 * 2.0 / 3.0)
}

fn cases() -> Vec<Case> {
    let of = |name, shape: &[usize], v: &[f64]| {
        Case::new(name).arg(crate::DType::F64, shape, crate::ops::Sample::Values(v.to_vec()))
    };
    vec![
        of("positive", &[2, 2], &[2.0, 0.5, -0.3, 1.5]),
        of("exchanged", &[1, 3, 3], &[0.1, 2.0, 1.0, 3.0, -1.0, 0.2, 1.0, 0.3, 2.5]),
        Case::new("none").f(&[0, 2, 2]),
    ]
}
