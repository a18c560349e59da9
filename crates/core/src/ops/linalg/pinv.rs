//! Pseudo-inverses.

use super::dense::singular;
use super::{each_matrix, matrices, transposed};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample, required};
use crate::shape::Shape;
use crate::tensor::TensorType;

/// The pseudo-inverse `[..., n, m]` of Moore and Penrose of each matrix `[..., m, n]`. Singular values up to
/// the larger of `atol` and `rtol` times the largest count as 0; absent, they are 0 and the dtype's epsilon
/// times `max(m, n)` (0 beside an `atol`). `hermitian` promises a symmetric matrix, which changes nothing
/// here.
pub static LINALG_PINV: OpDef = OpDef {
    name: "linalg_pinv",
    schemas: &[
        "linalg_pinv(Tensor self, float rcond, bool hermitian=False) -> Tensor",
        "linalg_pinv.atol_rtol_float(Tensor self, *, float? atol=None, float? rtol=None, bool hermitian=False) -> Tensor",
        "linalg_pinv.atol_rtol_tensor(Tensor self, *, Tensor? atol=None, Tensor? rtol=None, bool hermitian=False) -> Tensor",
        "pinverse(Tensor self, float rcond=1e-15) -> Tensor",
    ],
    infer: |cx| {
        tolerances(cx)?;
        cx.flag("hermitian")?;
        types(cx)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let [atol, rtol] = tolerances(cx)?;
        Ok(vec![b.one(&PINV, &[required(inputs, 0)?], Attrs::new().with("atol", atol).with("rtol", rtol))?])
    }),
    cases: || {
        let even = Case::new("symmetric").arg(DType::F64, &[2, 2], Sample::Values(vec![1.0, 0.5, 0.5, -2.0]));
        vec![
            matrix("tall", &[2, 3, 2]),
            matrix("wide", &[2, 4]).attr("atol", 1e-3),
            matrix("older", &[2, 3]).attr("rcond", 1e-10),
            even.attr("rtol", 1e-12).attr("hermitian", true),
        ]
    },
};

/// The pseudo-inverse with both tolerances.
pub static PINV: OpDef = OpDef {
    name: "pseudo_inverse",
    schemas: &["headwater::pseudo_inverse(Tensor A, *, float atol, float rtol) -> Tensor"],
    infer: |cx| {
        for tolerance in ["atol", "rtol"] {
            cx.float(tolerance)?;
        }
        types(cx)
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, _| {
        matrices(cx, 0).map_or(0.0, |(t, [m, n])| 34.0 * t.shape.numel() as f64 * m.min(n) as f64)
    }),
    body: Body::Kernel(|cx, inputs, outs| {
        let ([m, n], given) = (matrices(cx, 0)?.1, [cx.float("atol")?, cx.float("rtol")?]);
        let x = inputs[0].expect("typed").floats();
        each_matrix([x], [m * n], outs, [m * n], |[x], [y]| {
            pseudo_inverse(x, [m, n], given, y);
            Ok(())
        })
    }),
    cases: || {
        let with = |case: Case| case.attr("atol", 0.0).attr("rtol", 1e-12);
        // A matrix of rank 1 has no derivative: it keeps its rank in few directions.
        let flat = Case::new("of rank 1").arg(DType::F64, &[2, 2], Sample::Values(vec![1.0, 2.0, 2.0, 4.0]));
        vec![
            with(matrix("tall", &[2, 3, 2])),
            with(matrix("wide", &[2, 3])),
            with(flat.constant()),
            with(Case::new("none").f(&[0, 2, 2])),
        ]
    },
};

/// The pseudo-inverse `[n, m]` of one matrix `[m, n]`, by its singular values; NaN of one with NaN.
pub fn pseudo_inverse(x: &[f64], [m, n]: [usize; 2], [atol, rtol]: [f64; 2], y: &mut [f64]) {
    let k = m.min(n);
    let (mut values, mut u, mut v) = (vec![0.0; k], vec![0.0; m * k], vec![0.0; n * k]);
    singular(x, [m, n], &mut values, &mut u, &mut v);
    let least = atol.max(rtol * values[0]);
    y.fill(0.0);
    for (c, &s) in values.iter().enumerate().filter(|(_, s)| s.is_nan() || **s > least) {
        for i in 0..n {
            for j in 0..m {
                y[i * m + j] += v[i * k + c] / s * u[j * k + c];
            }
        }
    }
}

/// The attributes `atol` and `rtol`, or `rcond` of the older call.
///
/// # Errors
/// `Unsupported` if they are tensors.
pub fn tolerances(cx: &OpCx) -> Result<[f64; 2]> {
    ensure!(
        cx.inputs.iter().skip(1).all(Option::is_none),
        Unsupported,
        "tolerances of `linalg_pinv` that are data, {}: give numbers, `torch.linalg.pinv(A, rtol=1e-5)`",
        cx.list_types()
    );
    if let Some(rcond) = cx.opt_float("rcond")? {
        return Ok([0.0, rcond]);
    }
    let (atol, rtol) = (cx.opt_float("atol")?, cx.opt_float("rtol")?);
    let (t, [m, n]) = matrices(cx, 0)?;
    let epsilon = if t.dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let default = if atol.is_some_and(|a| a > 0.0) { 0.0 } else { epsilon * m.max(n) as f64 };
    Ok([atol.unwrap_or(0.0), rtol.unwrap_or(default)])
}

fn types(cx: &OpCx) -> Result<Vec<TensorType>> {
    let (t, [m, n]) = matrices(cx, 0)?;
    let shape = Shape::from([&t.shape[..t.shape.rank() - 2], &[n, m]].concat());
    Ok(vec![TensorType::new(t.dtype, shape)])
}

/// Golub and Pereyra 1973, for a rank that stays: `−Yᵀ g Yᵀ + (1 − A Y) gᵀ Y Yᵀ + Yᵀ Y gᵀ (1 − Y A)`.
fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, a, y) = (cx.grad(0)?, cx.x(0)?, cx.y(0));
    let (gt, yt) = (transposed(cx, g)?, transposed(cx, y)?);
    let inner = cx.matmul(yt, g)?;
    let inner = cx.matmul(inner, yt)?;
    let left = cx.matmul(gt, y)?;
    let left = cx.matmul(left, yt)?;
    let seen = cx.matmul(y, left)?;
    let seen = cx.matmul(a, seen)?;
    let left = cx.sub(left, seen)?;
    let right = cx.matmul(y, gt)?;
    let right = cx.matmul(yt, right)?;
    let seen = cx.matmul(right, y)?;
    let seen = cx.matmul(seen, a)?;
    let right = cx.sub(right, seen)?;
    let dx = cx.add(left, right)?;
    let dx = cx.sub(dx, inner)?;
    cx.set(0, dx)
}

fn matrix(name: &'static str, shape: &[usize]) -> Case {
    let values =
        [2.0, 0.5, -0.3, 1.5, 0.2, -1.0, 3.0, -0.4, 1.1, 0.7, -2.0, 0.9][..shape.iter().product()].to_vec();
    Case::new(name).arg(DType::F64, shape, Sample::Values(values))
}
