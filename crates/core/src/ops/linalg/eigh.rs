//! Eigenvalues of symmetric matrices.

use super::factor::symmetric;
use super::{each_matrix, squares, transposed};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::create::eye::EYE;
use crate::ops::movement::tril::TRIL;
use crate::ops::pointwise::mul::MUL;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// The eigenvalues of each symmetric matrix `[..., n, n]`, the least first, and in columns the eigenvectors
/// that belong to them. Both triangles count the same, where PyTorch reads the one that `UPLO` names; the
/// gradient is symmetric, as PyTorch's.
///
/// A vector's sign is one choice of two, so that a loss must not depend on it. The gradient through vectors
/// divides by differences of eigenvalues, as PyTorch's: of equal ones it is not finite.
pub static LINALG_EIGH: OpDef = OpDef {
    name: "linalg_eigh",
    schemas: &[
        "linalg_eigh(Tensor self, str UPLO='L') -> (Tensor eigenvalues, Tensor eigenvectors)",
        "_linalg_eigh(Tensor A, str UPLO='L', bool compute_v=True) -> (Tensor eigenvalues, Tensor eigenvectors)",
    ],
    infer: |cx| {
        let mut types = types(cx)?;
        if !vectors(cx)? {
            types[1].shape = [0].into();
        }
        Ok(types)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let mut made = even(b, required(inputs, 0)?)?;
        if !vectors(cx)? {
            made[1] = b.full(&TensorType::new(cx.dtype(0)?, [0]), 0.0)?;
        }
        Ok(made)
    }),
    cases: || {
        vec![
            matrix("lower").attr("UPLO", "L"),
            matrix("upper").attr("UPLO", "U"),
            matrix("values").attr("UPLO", "L").attr("compute_v", false),
        ]
    },
};

/// The eigenvalues of [`LINALG_EIGH`].
pub static LINALG_EIGVALSH: OpDef = OpDef {
    name: "linalg_eigvalsh",
    schemas: &["linalg_eigvalsh(Tensor self, str UPLO='L') -> Tensor"],
    infer: |cx| Ok(types(cx)?[..1].to_vec()),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, _: &OpCx, inputs: &[Option<ValueId>]| {
        Ok(even(b, required(inputs, 0)?)?[..1].to_vec())
    }),
    cases: || vec![matrix("lower").attr("UPLO", "L"), matrix("upper").attr("UPLO", "U")],
};

/// Eigenvalues and eigenvectors by the lower triangle of each matrix `[..., n, n]`.
pub static EIGH: OpDef = OpDef {
    name: "eigh_lower",
    schemas: &["headwater::eigh_lower(Tensor A) -> (Tensor eigenvalues, Tensor eigenvectors)"],
    infer: types,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, _| squares(cx, 0).map_or(0.0, |(t, n)| 50.0 * t.shape.numel() as f64 * n as f64)),
    body: Body::Kernel(|cx, inputs, outs| {
        let n = squares(cx, 0)?.1;
        let x = inputs[0].expect("typed").floats();
        each_matrix([x], [n * n], outs, [n, n * n], |[x], [values, vectors]| {
            symmetric(x, n, values, vectors);
            Ok(())
        })
    }),
    cases: || vec![matrix("two"), Case::new("none").f(&[0, 2, 2])],
};

fn types(cx: &OpCx) -> Result<Vec<TensorType>> {
    let (t, _) = squares(cx, 0)?;
    let side = cx.opt_str("UPLO")?.unwrap_or("L");
    ensure!(["L", "U", "l", "u"].contains(&side), Attribute, "`UPLO` is \"L\" or \"U\", not {side:?}");
    Ok(vec![TensorType::new(t.dtype, Shape::new(&t.shape[..t.shape.rank() - 1])), t.clone()])
}

/// True if the vectors are requested.
fn vectors(cx: &OpCx) -> Result<bool> {
    Ok(cx.attrs.get("compute_v").is_none() || cx.flag("compute_v")?)
}

fn even(b: &mut Builder, x: ValueId) -> Result<Vec<ValueId>> {
    let t = transposed(b, x)?;
    let sum = b.add(x, t)?;
    let even = b.scale(sum, 0.5)?;
    b.apply(&EIGH, &[Some(even)], Attrs::new())
}

/// Giles 2008, "Collected matrix derivative results for forward and reverse mode algorithmic
/// differentiation", section 3.1: `V (diag(gλ) + K / E) Vᵀ` with `E[i, j] = λ[j] − λ[i]`, 1 on the diagonal,
/// and K the skew part of `Vᵀ gV`. An element below the diagonal stands for the one above it too.
fn gradient(cx: &mut GradCx) -> Result<()> {
    let (values, v) = (cx.y(0), cx.y(1));
    let t = transposed(cx, v)?;
    let (rank, n) = (cx.ty(v).shape.rank(), cx.ty(values).shape[cx.ty(v).shape.rank() - 2]);
    let attrs = Attrs::new().with("n", n as i64).with("dtype", cx.ty(v).dtype);
    let one = cx.one(&EYE, &[], attrs)?;
    let g = cx.grad(0)?;
    let g = cx.unsqueeze(g, rank - 2)?;
    let mut inner = cx.call(&MUL, &[one, g])?;
    if let Some(dv) = cx.opt_grad(1) {
        let along = cx.matmul(t, dv)?;
        let skew = skew(cx, along)?;
        let skew = cx.scale(skew, 0.5)?;
        let (across, down) = (cx.unsqueeze(values, rank - 2)?, cx.unsqueeze(values, rank - 1)?);
        let apart = cx.sub(across, down)?;
        let apart = cx.add(apart, one)?;
        let turned = cx.div(skew, apart)?;
        inner = cx.add(inner, turned)?;
    }
    let dx = cx.matmul(v, inner)?;
    let dx = cx.matmul(dx, t)?;
    let low = cx.one(&TRIL, &[dx], Attrs::new().with("diagonal", 0))?;
    let below = cx.one(&TRIL, &[dx], Attrs::new().with("diagonal", -1))?;
    let dx = cx.add(low, below)?;
    cx.set(0, dx)
}

/// `x − xᵀ`.
pub(super) fn skew(b: &mut Builder, x: ValueId) -> Result<ValueId> {
    let t = transposed(b, x)?;
    b.sub(x, t)
}

fn matrix(name: &'static str) -> Case {
    let values =
        vec![2.0, 0.5, -0.3, 0.5, 1.5, 0.2, -0.3, 0.2, 3.0, 1.0, -0.4, 0.1, -0.4, -2.0, 0.6, 0.1, 0.6, 1.2];
    Case::new(name).arg(crate::DType::F64, &[2, 3, 3], Sample::Values(values))
}
