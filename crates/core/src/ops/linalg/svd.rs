//! Singular value decompositions.

use super::dense::singular;
use super::eigh::skew;
use super::factor::complete;
use super::svdvals::SVDVALS;
use super::{each_matrix, matrices, transposed};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::create::eye::EYE;
use crate::ops::pointwise::mul::MUL;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// `U · diag(S) · Vh` of each matrix `[..., m, n]`: singular values, the largest first, and the vectors that
/// belong to them, in columns of U and rows of Vh. With `full_matrices` both are square, else there are
/// `min(m, n)` vectors. A pair of vectors' sign is one choice of two, so that a loss must not depend on it.
///
/// The gradient through vectors divides by differences of squares of singular values, as PyTorch's: of equal
/// ones it is not finite. It is by the first `min(m, n)` vectors.
pub static LINALG_SVD: OpDef = OpDef {
    name: "linalg_svd",
    schemas: &[
        "linalg_svd(Tensor A, bool full_matrices=True, *, str? driver=None) -> (Tensor U, Tensor S, Tensor Vh)",
        "_linalg_svd(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? driver=None) -> (Tensor U, Tensor S, Tensor Vh)",
    ],
    infer: |cx| types(cx, cx.flag("full_matrices")?, wanted(cx)?),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        parts(b, required(inputs, 0)?, cx.flag("full_matrices")?, wanted(cx)?)
    }),
    cases: || {
        vec![
            matrix("tall", &[2, 3, 2]).attr("full_matrices", false),
            matrix("wide", &[3, 4]).attr("full_matrices", false),
            matrix("square", &[3, 3]).attr("full_matrices", true),
            matrix("full", &[2, 4]).constant().attr("full_matrices", true),
            matrix("values", &[3, 2]).attr("full_matrices", false).attr("compute_uv", false),
        ]
    },
};

/// The older call: `U`, `S` and V, whose columns are vectors. Without `compute_uv` the vectors are zeros.
pub static SVD: OpDef = OpDef {
    name: "svd",
    schemas: &["svd(Tensor self, bool some=True, bool compute_uv=True) -> (Tensor U, Tensor S, Tensor V)"],
    infer: |cx| {
        let mut types = types(cx, !wanted(cx)? || !cx.flag("some")?, true)?;
        let rank = types[2].shape.rank();
        let mut v = types[2].shape.to_vec();
        v.swap(rank - 2, rank - 1);
        types[2].shape = v.into();
        Ok(types)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let wanted = wanted(cx)?;
        let mut made = parts(b, required(inputs, 0)?, !cx.flag("some")?, wanted)?;
        if !wanted {
            let types = (SVD.infer)(cx)?;
            (made[0], made[2]) = (b.full(&types[0], 0.0)?, b.full(&types[2], 0.0)?);
            return Ok(made);
        }
        made[2] = transposed(b, made[2])?;
        Ok(made)
    }),
    cases: || {
        vec![
            matrix("some", &[2, 3, 2]).attr("some", true).attr("compute_uv", true),
            matrix("values", &[2, 3]).attr("some", true).attr("compute_uv", false),
        ]
    },
};

/// [`LINALG_SVD`] with vectors, square matrices of them with `full`.
pub static FACTORS: OpDef = OpDef {
    name: "svd_factors",
    schemas: &["headwater::svd_factors(Tensor A, *, bool full=False) -> (Tensor U, Tensor S, Tensor Vh)"],
    infer: |cx| types(cx, cx.flag("full")?, true),
    derivative: Derivative::Rule(gradient),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, _| {
        matrices(cx, 0).map_or(0.0, |(t, [m, n])| 40.0 * t.shape.numel() as f64 * m.min(n) as f64)
    }),
    body: Body::Kernel(|cx, inputs, outs| {
        let ([m, n], full) = (matrices(cx, 0)?.1, cx.flag("full")?);
        let x = inputs[0].expect("typed").floats();
        let [mu, nv] = if full { [m, n] } else { [m.min(n); 2] };
        each_matrix([x], [m * n], outs, [m * mu, m.min(n), nv * n], |[x], [u, s, vh]| {
            factors(x, [m, n], full, u, s, vh);
            Ok(())
        })
    }),
    cases: || {
        vec![
            matrix("tall", &[2, 3, 2]),
            matrix("wide", &[3, 4]),
            matrix("full", &[4, 2]).constant().attr("full", true),
            Case::new("of rank 1").arg(crate::DType::F64, &[3, 2], rank_one()).constant().attr("full", true),
            Case::new("none").f(&[0, 2, 2]),
        ]
    },
};

/// The decomposition of one matrix `[m, n]`; `full` if U and Vh are square.
pub fn factors(x: &[f64], [m, n]: [usize; 2], full: bool, u: &mut [f64], s: &mut [f64], vh: &mut [f64]) {
    let k = m.min(n);
    let (mut left, mut right) = (vec![0.0; m * k], vec![0.0; n * k]);
    singular(x, [m, n], s, &mut left, &mut right);
    // Vectors of the value 0 are missing on one side.
    let known = s.iter().take_while(|&&s| s != 0.0).count();
    let square = |from: &[f64], rows: usize, columns: usize, known: usize| {
        let mut all = vec![0.0; rows * columns];
        for (to, from) in all.chunks_exact_mut(columns).zip(from.chunks_exact(k)) {
            to[..k].copy_from_slice(from);
        }
        complete(&mut all, [rows, columns], known);
        all
    };
    let [mu, nv] = if full { [m, n] } else { [k, k] };
    u.copy_from_slice(&square(&left, m, mu, if m < n { k } else { known }));
    let v = square(&right, n, nv, if m < n { known } else { k });
    (0..nv * n).for_each(|i| vh[i] = v[i % n * nv + i / n]);
}

fn types(cx: &OpCx, full: bool, vectors: bool) -> Result<Vec<TensorType>> {
    let (t, [m, n]) = matrices(cx, 0)?;
    ensure!(!full || t.shape.numel() > 0, Shape, "no full matrices of {t}");
    let k = m.min(n);
    let with = |last: &[usize]| Shape::from([&t.shape[..t.shape.rank() - 2], last].concat());
    let shapes = match (vectors, full) {
        (false, _) => [[0].into(), with(&[k]), [0].into()],
        (true, true) => [with(&[m, m]), with(&[k]), with(&[n, n])],
        (true, false) => [with(&[m, k]), with(&[k]), with(&[k, n])],
    };
    ensure!(shapes.iter().all(|s| s.checked_numel().is_some()), Size, "the vectors of {t} do not fit memory");
    Ok(shapes.map(|s| TensorType::new(t.dtype, s)).to_vec())
}

/// True if the vectors are requested.
fn wanted(cx: &OpCx) -> Result<bool> {
    Ok(cx.attrs.get("compute_uv").is_none() || cx.flag("compute_uv")?)
}

fn parts(b: &mut Builder, x: ValueId, full: bool, vectors: bool) -> Result<Vec<ValueId>> {
    if vectors {
        return b.apply(&FACTORS, &[Some(x)], Attrs::new().with("full", full));
    }
    let none = TensorType::new(b.ty(x).dtype, [0]);
    let values = b.apply(&SVDVALS, &[Some(x)], Attrs::new())?[0];
    Ok(vec![b.full(&none, 0.0)?, values, b.full(&none, 0.0)?])
}

/// Townsend 2016, "Differentiating the singular value decomposition":
/// `U (diag(gS) + (A / E) S + S (B / E)) Vh`, where A and B are the skew parts of `Uᵀ gU` and `V gVhᵀ`, and
/// `E[i, j] = s[j]² − s[i]²`, 1 on the diagonal; of the longer side also the part of its gradient beyond its
/// vectors, divided by S.
fn gradient(cx: &mut GradCx) -> Result<()> {
    let [m, n] = cx.of(|cx| matrices(cx, 0).map(|m| m.1))?;
    let (mut u, s, mut vh, k) = (cx.y(0), cx.y(1), cx.y(2), m.min(n));
    let last = cx.ty(u).shape.rank() - 1;
    let (mut du, mut dvh) = (cx.opt_grad(0), cx.opt_grad(2));
    (u, vh) = (cx.slice(u, last, 0, k)?, cx.slice(vh, last - 1, 0, k)?);
    if let Some(g) = &mut du {
        *g = cx.slice(*g, last, 0, k)?;
    }
    if let Some(g) = &mut dvh {
        *g = cx.slice(*g, last - 1, 0, k)?;
    }
    let (ut, v) = (transposed(cx, u)?, transposed(cx, vh)?);
    let attrs = Attrs::new().with("n", k as i64).with("dtype", cx.ty(s).dtype);
    let one = cx.one(&EYE, &[], attrs)?;
    let (across, down) = (cx.unsqueeze(s, last - 1)?, cx.unsqueeze(s, last)?);
    let g = cx.grad(1)?;
    let g = cx.unsqueeze(g, last - 1)?;
    let mut inner = cx.call(&MUL, &[one, g])?;
    let (less, more) = (cx.sub(across, down)?, cx.add(across, down)?);
    let apart = cx.mul(less, more)?;
    let apart = cx.add(apart, one)?;
    if let Some(du) = du {
        let along = cx.matmul(ut, du)?;
        let along = skew(cx, along)?;
        let along = cx.div(along, apart)?;
        let along = cx.mul(along, across)?;
        inner = cx.add(inner, along)?;
    }
    if let Some(dvh) = dvh {
        let dv = transposed(cx, dvh)?;
        let along = cx.matmul(vh, dv)?;
        let along = skew(cx, along)?;
        let along = cx.div(along, apart)?;
        let along = cx.mul(down, along)?;
        inner = cx.add(inner, along)?;
    }
    let dx = match (du, dvh) {
        (Some(du), _) if m > k => {
            let along = cx.matmul(ut, du)?;
            let along = cx.matmul(u, along)?;
            let beyond = cx.sub(du, along)?;
            let beyond = cx.div(beyond, across)?;
            let left = cx.matmul(u, inner)?;
            let left = cx.add(left, beyond)?;
            cx.matmul(left, vh)?
        }
        (_, Some(dvh)) if n > k => {
            let along = cx.matmul(dvh, v)?;
            let along = cx.matmul(along, vh)?;
            let beyond = cx.sub(dvh, along)?;
            let beyond = cx.div(beyond, down)?;
            let right = cx.matmul(inner, vh)?;
            let right = cx.add(right, beyond)?;
            cx.matmul(u, right)?
        }
        _ => {
            let left = cx.matmul(u, inner)?;
            cx.matmul(left, vh)?
        }
    };
    cx.set(0, dx)
}

fn matrix(name: &'static str, shape: &[usize]) -> Case {
    let values =
        [2.0, 0.5, -0.3, 1.5, 0.2, -1.0, 3.0, -0.4, 1.1, 0.7, -2.0, 0.9][..shape.iter().product()].to_vec();
    Case::new(name).arg(crate::DType::F64, shape, Sample::Values(values))
}

fn rank_one() -> Sample {
    Sample::Values(vec![1.0, 0.0, 2.0, 0.0, -1.0, 0.0])
}
