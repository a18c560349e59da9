//! Ranks and condition numbers of matrices.

use super::inverse::INVERSE;
use super::svdvals::SVDVALS;
use super::{matrices, squares, transposed};
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::pointwise::compare::GT;
use crate::ops::pointwise::maximum::MAXIMUM;
use crate::ops::reduce::matrix_norm::LINALG_MATRIX_NORM;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Number (i64) of the singular values of each matrix `[..., m, n]` above the larger of `atol` and `rtol`
/// times the largest. Absent, they are 0 and the dtype's epsilon times `max(m, n)` (0 beside an `atol`). The
/// older `tol` is an `atol`. Each is a number, or a tensor that broadcasts.
pub static LINALG_MATRIX_RANK: OpDef = OpDef {
    name: "linalg_matrix_rank",
    schemas: &[
        "linalg_matrix_rank(Tensor self, float tol, bool hermitian=False) -> Tensor",
        "linalg_matrix_rank.tol_tensor(Tensor input, Tensor tol, bool hermitian=False) -> Tensor",
        "linalg_matrix_rank.atol_rtol_float(Tensor self, *, float? atol=None, float? rtol=None, bool hermitian=False) -> Tensor",
        "linalg_matrix_rank.atol_rtol_tensor(Tensor input, *, Tensor? atol=None, Tensor? rtol=None, bool hermitian=False) -> Tensor",
    ],
    infer: |cx| {
        let t = matrices(cx, 0)?.0;
        tolerances(cx)?;
        cx.flag("hermitian")?;
        let mut shape = Shape::new(&t.shape[..t.shape.rank() - 2]);
        for given in cx.inputs.iter().skip(1).flatten() {
            ensure!(given.dtype == t.dtype, DType, "a tolerance {given} of {t}");
            let both = shape.broadcast(&given.shape);
            shape = both.ok_or_else(|| fail!(Shape, "{} do not broadcast", cx.list_types()))?;
        }
        Ok(vec![TensorType::new(DType::I64, shape)])
    },
    derivative: Derivative::NotDifferentiable("a rank is an integer"),
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (t, [m, n]) = matrices(cx, 0)?;
        let out = (LINALG_MATRIX_RANK.infer)(cx)?.remove(0);
        if m.min(n) == 0 {
            return Ok(vec![b.full(&out, 0.0)?]);
        }
        let mut x = required(inputs, 0)?;
        if cx.flag("hermitian")? {
            // The lower triangle is read.
            let attrs = |from: i64| Attrs::new().with("diagonal", from);
            let low = b.one(&crate::ops::movement::tril::TRIL, &[x], attrs(0))?;
            let below = b.one(&crate::ops::movement::tril::TRIL, &[x], attrs(-1))?;
            let above = transposed(b, below)?;
            x = b.add(low, above)?;
        }
        let values = b.call(&SVDVALS, &[x])?;
        let last = t.shape.rank() - 2;
        let largest = b.slice(values, last, 0, 1)?;
        let [atol, rtol] = tolerances(cx)?;
        let given = |b: &mut Builder, i: usize, number: f64| match inputs.get(i).copied().flatten() {
            Some(v) => {
                let rank = b.ty(v).shape.rank();
                b.unsqueeze(v, rank)
            }
            None => b.full(&TensorType::new(t.dtype, [1]), number),
        };
        let (least, share) = (given(b, 1, atol)?, given(b, 2, rtol)?);
        let relative = b.mul(largest, share)?;
        let least = b.one(&MAXIMUM, &[least, relative], Attrs::new())?;
        let counted = b.call(&GT, &[values, least])?;
        let counted = b.cast(counted, DType::I64)?;
        let dim = b.ty(counted).shape.rank() - 1;
        Ok(vec![b.sum(counted, &[dim], false)?])
    }),
    cases: || {
        let flat = || Sample::Values(vec![1.0, 2.0, 2.0, 4.0, 1.0, 0.5, -0.5, 3.0]);
        let case = |name| Case::new(name).arg(DType::F64, &[2, 2, 2], flat());
        vec![
            case("default"),
            case("absolute").attr("atol", 3.5),
            case("older").attr("tol", 1e-3),
            case("by tensors").arg(DType::F64, &[2], Sample::Values(vec![0.1, 9.0])),
            case("of a triangle").attr("hermitian", true),
        ]
    },
};

/// The condition number of each matrix for the norm `p`: by default that of the largest singular value and
/// the least. For 2, −2 and the default of `[..., m, n]`; for other norms of square matrices, by the inverse.
pub static LINALG_COND: OpDef = OpDef {
    name: "linalg_cond",
    schemas: &[
        "linalg_cond(Tensor self, Scalar? p=None) -> Tensor",
        "linalg_cond.p_str(Tensor self, str p) -> Tensor",
    ],
    infer: |cx| {
        let (t, [m, n]) = matrices(cx, 0)?;
        ensure!(m > 0 && n > 0, Shape, "no condition of {t}");
        if spectral(cx)?.is_none() {
            squares(cx, 0)?;
            return (LINALG_MATRIX_NORM.infer)(&OpCx { inputs: vec![Some(t)], attrs: &order(cx)? });
        }
        Ok(vec![TensorType::new(t.dtype, Shape::new(&t.shape[..t.shape.rank() - 2]))])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (t, [m, n]) = matrices(cx, 0)?;
        let x = required(inputs, 0)?;
        let Some(largest) = spectral(cx)? else {
            let inverse = b.call(&INVERSE, &[x])?;
            let (own, other) = (
                b.one(&LINALG_MATRIX_NORM, &[x], order(cx)?)?,
                b.one(&LINALG_MATRIX_NORM, &[inverse], order(cx)?)?,
            );
            return Ok(vec![b.mul(own, other)?]);
        };
        let values = b.call(&SVDVALS, &[x])?;
        let dim = t.shape.rank() - 2;
        let (high, low) = (b.select(values, dim, 0)?, b.select(values, dim, m.min(n) - 1)?);
        Ok(vec![if largest { b.div(high, low)? } else { b.div(low, high)? }])
    }),
    cases: || {
        let values = vec![2.0, 0.5, -0.3, 1.5, 0.2, 1.0, 3.0, -0.4];
        let case =
            |name, shape: &[usize]| Case::new(name).arg(DType::F64, shape, Sample::Values(values.clone()));
        vec![
            case("default", &[2, 2, 2]),
            case("wide, inverse", &[2, 4]).attr("p", -2),
            case("columns", &[2, 2, 2]).attr("p", 1),
            case("frobenius", &[2, 2, 2]).attr("p", "fro"),
        ]
    },
};

/// Tolerances that are numbers, `atol` and `rtol`.
fn tolerances(cx: &OpCx) -> Result<[f64; 2]> {
    if let Some(tol) = cx.opt_float("tol")? {
        return Ok([tol, 0.0]);
    }
    let (t, [m, n]) = matrices(cx, 0)?;
    let (atol, rtol) = (cx.opt_float("atol")?, cx.opt_float("rtol")?);
    let epsilon = if t.dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    // A tensor's content is not known: beside one the default is 0.
    let given = atol.is_some_and(|a| a > 0.0) || cx.opt(1).is_some();
    Ok([atol.unwrap_or(0.0), rtol.unwrap_or(if given { 0.0 } else { epsilon * m.max(n) as f64 })])
}

/// If singular values give the condition number: true for the largest by the least, false for the inverse.
fn spectral(cx: &OpCx) -> Result<Option<bool>> {
    if matches!(cx.attrs.get("p"), Some(Attr::Str(_))) {
        return Ok(None);
    }
    Ok(match cx.opt_float("p")? {
        None => Some(true),
        Some(2.0) => Some(true),
        Some(-2.0) => Some(false),
        Some(_) => None,
    })
}

/// Attributes of the norm `p`.
fn order(cx: &OpCx) -> Result<Attrs> {
    let p = cx.attrs.get("p").ok_or_else(|| fail!(Attribute, "attribute `p` is missing"))?;
    Ok(Attrs::new().with("ord", p.clone()).with("dim", [-2, -1]).with("keepdim", false))
}
