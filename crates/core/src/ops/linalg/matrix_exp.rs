//! Exponentials of matrices.

use super::factor::exponential;
use super::{each_matrix, squares, transposed};
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// `Σ Aᵏ / k!` of each matrix `[..., n, n]`.
pub static MATRIX_EXP: OpDef = OpDef {
    name: "linalg_matrix_exp",
    schemas: &["linalg_matrix_exp(Tensor self) -> Tensor", "matrix_exp(Tensor self) -> Tensor"],
    infer: |cx| {
        let (t, n) = squares(cx, 0)?;
        let twice = Shape::from([&t.shape[..t.shape.rank() - 2], &[2 * n.min(1 << 30); 2]].concat());
        ensure!(twice.checked_numel().is_some(), Size, "the gradient of {t} would not fit memory");
        Ok(vec![t.clone()])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Full,
    cost: Cost::Custom(|cx: &OpCx, _| {
        squares(cx, 0).map_or(0.0, |(t, n)| 20.0 * t.shape.numel() as f64 * n as f64)
    }),
    body: Body::Kernel(|cx, inputs, outs| {
        let n = squares(cx, 0)?.1;
        let x = inputs[0].expect("typed").floats();
        each_matrix([x], [n * n], outs, [n * n], |[x], [y]| exponential(x, n, y))
    }),
    cases: || {
        vec![
            Case::new("two").range(&[2, 3, 3], -1.0, 1.0),
            Case::new("large").range(&[2, 2], -5.0, 5.0),
            Case::new("none").f(&[0, 2, 2]),
        ]
    },
};

/// Mathias 1996, "A chain rule for matrix functions and applications": the upper right block of the
/// exponential of `[[Aᵀ, g], [0, Aᵀ]]`.
fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, x) = (cx.grad(0)?, cx.x(0)?);
    let ty: TensorType = cx.ty(x).clone();
    let (rank, n) = (ty.shape.rank(), ty.shape[ty.shape.rank() - 1]);
    let t = transposed(cx, x)?;
    let zeros = cx.full(&ty, 0.0)?;
    let (above, below) = (cx.cat(&[t, g], rank - 1)?, cx.cat(&[zeros, t], rank - 1)?);
    let blocks = cx.cat(&[above, below], rank - 2)?;
    let made = cx.call(&MATRIX_EXP, &[blocks])?;
    let made = cx.slice(made, rank - 2, 0, n)?;
    let dx = cx.slice(made, rank - 1, n, 2 * n)?;
    cx.set(0, dx)
}
