//! Inverses of matrices.

use super::dense::inverse;
use super::{each_matrix, squares, transposed};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpDef, Precision, Sample};

/// The inverse of each matrix `[..., n, n]`. A singular one is refused when it is met.
pub static INVERSE: OpDef = OpDef {
    name: "linalg_inv",
    schemas: &["linalg_inv(Tensor A) -> Tensor", "inverse(Tensor self) -> Tensor"],
    infer: |cx| Ok(vec![squares(cx, 0)?.0.clone()]),
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        // −Yᵀ g Yᵀ.
        let (g, y) = (cx.grad(0)?, cx.y(0));
        let t = transposed(cx, y)?;
        let dx = cx.matmul(t, g)?;
        let dx = cx.matmul(dx, t)?;
        let dx = cx.neg(dx)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, out| {
        2.0 * out[0].shape.numel() as f64 * squares(cx, 0).map_or(0, |s| s.1) as f64
    }),
    body: Body::Kernel(|cx, inputs, outs| {
        let n = squares(cx, 0)?.1;
        let x = inputs[0].expect("typed").floats();
        each_matrix([x], [n * n], outs, [n * n], |[x], [y]| inverse(x, n, y))
    }),
    cases: || {
        let values =
            vec![0.5, 2.0, 1.0, 3.0, -1.0, 0.2, 1.0, 0.3, 2.5, 2.0, 0.1, -0.4, 1.5, 1.0, 0.3, -0.7, 0.2, 1.8];
        vec![
            Case::new("two").arg(crate::DType::F64, &[2, 3, 3], Sample::Values(values)),
            Case::new("none").f(&[0, 2, 2]),
            Case::new("of order 0").f(&[2, 0, 0]),
        ]
    },
};
