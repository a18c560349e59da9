//! Singular values.

use super::dense::singular;
use super::{each_matrix, matrices, transposed};
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// The singular values of each matrix `[..., m, n]`, the largest first, `[..., k]` with `k = min(m, n)`; for
/// the gradient also the vectors `[..., m, k]` and `[..., n, k]`. Of equal values the vectors, and so the
/// gradients, are one choice of many.
pub static SVDVALS: OpDef = OpDef {
    name: "linalg_svdvals",
    schemas: &["linalg_svdvals(Tensor A, *, str? driver=None) -> Tensor"],
    infer: |cx| {
        let (t, [m, n]) = matrices(cx, 0)?;
        let with = |last: &[usize]| Shape::from([&t.shape[..t.shape.rank() - 2], last].concat());
        let k = m.min(n);
        Ok([with(&[k]), with(&[m, k]), with(&[n, k])].map(|s| TensorType::new(t.dtype, s)).to_vec())
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Full,
    cost: Cost::Custom(|cx: &OpCx, _| {
        let (t, [m, n]) = match matrices(cx, 0) {
            Ok(found) => found,
            Err(_) => return 0.0,
        };
        30.0 * t.shape.numel() as f64 * m.min(n) as f64
    }),
    body: Body::Kernel(|cx, inputs, outs| {
        let [m, n] = matrices(cx, 0)?.1;
        let k = m.min(n);
        let x = inputs[0].expect("typed").floats();
        each_matrix([x], [m * n], outs, [k, m * k, n * k], |[x], [values, u, v]| {
            singular(x, [m, n], values, u, v);
            Ok(())
        })
    }),
    cases: || {
        let values = vec![2.0, 0.5, -0.3, 0.5, 1.5, 0.2, -0.3, 0.2, 3.0, 1.0, -0.4, 0.1];
        let of = |name, shape: &[usize]| {
            Case::new(name).arg(crate::DType::F64, shape, Sample::Values(values.clone()))
        };
        vec![of("tall", &[1, 4, 3]), of("wide", &[2, 2, 3]), Case::new("none").f(&[0, 2, 2])]
    },
};

/// `U · diag(g) · Vᵀ`.
fn gradient(cx: &mut GradCx) -> Result<()> {
    cx.only_outputs_before(1)?;
    let (g, u, v) = (cx.grad(0)?, cx.y(1), cx.y(2));
    let rank = cx.ty(g).shape.rank();
    let g = cx.unsqueeze(g, rank - 1)?;
    let scaled = cx.mul(u, g)?;
    let v = transposed(cx, v)?;
    let dx = cx.matmul(scaled, v)?;
    cx.set(0, dx)
}
