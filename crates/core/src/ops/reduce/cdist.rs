//! Distances between all pairs of two sets of vectors.

use super::vector_norm::VECTOR_NORM;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, required};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `(x1 [..., P, M], x2 [..., R, M])` to the `p`-norms `[..., P, R]` of the differences of their rows;
/// leading dimensions broadcast. Differences are taken one by one, whatever `compute_mode` says: no digits
/// cancel.
pub static CDIST: OpDef = OpDef {
    name: "cdist",
    schemas: &[
        "cdist(Tensor x1, Tensor x2, float p=2., int? compute_mode=None) -> Tensor",
        "_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor",
    ],
    infer: |cx| {
        let shape = shape(cx)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, Shape::new(&shape[..shape.len() - 1]))])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Custom(|cx, out| {
        let width = cx.shape(0).ok().and_then(|s| s.last().copied()).unwrap_or(0);
        3.0 * out[0].shape.numel() as f64 * width as f64
    }),
    body: Body::Decompose(|b, cx, inputs| {
        let all = shape(cx)?;
        let (x1, x2) = (required(inputs, 0)?, required(inputs, 1)?);
        if all.last() == Some(&0) {
            return Ok(vec![b.full(&TensorType::new(cx.dtype(0)?, Shape::new(&all[..all.len() - 1])), 0.0)?]);
        }
        let x1 = b.unsqueeze(x1, cx.shape(0)?.rank() - 1)?;
        let x2 = b.unsqueeze(x2, cx.shape(1)?.rank() - 2)?;
        let difference = b.sub(x1, x2)?;
        let attrs = Attrs::new().with("ord", cx.opt_float("p")?.unwrap_or(2.0)).with("dim", [-1]);
        Ok(vec![b.one(&VECTOR_NORM, &[difference], attrs)?])
    }),
    cases: || {
        let case = |name, x1: &[usize], x2: &[usize], p: f64| {
            Case::new(name).range(x1, -2.0, -0.1).range(x2, 0.1, 2.0).attr("p", p)
        };
        vec![
            case("euclidean", &[3, 2], &[4, 2], 2.0),
            case("sums, broadcast", &[2, 1, 3, 2], &[2, 2, 2], 1.0),
            case("cubic", &[2, 3], &[1, 3], 3.0),
            case("largest", &[2, 3], &[2, 3], f64::INFINITY),
            case("vectors of nothing", &[2, 0], &[3, 0], 2.0),
            case("no vectors", &[0, 2], &[3, 2], 2.0),
        ]
    },
};

/// `[..., P, R, M]`, the shape of all differences.
fn shape(cx: &OpCx) -> Result<Vec<usize>> {
    let (x1, x2) = (cx.ty(0)?, cx.ty(1)?);
    let (&[ref lead1 @ .., p, m], &[ref lead2 @ .., r, m2]) = (&x1.shape[..], &x2.shape[..]) else {
        return Err(fail!(Shape, "cdist needs sets of vectors, got {} ", cx.list_types()));
    };
    ensure!(m == m2, Shape, "vectors of {m} and of {m2} elements: {}", cx.list_types());
    ensure!(
        x1.dtype.is_float() && x1.dtype == x2.dtype,
        DType,
        "cdist needs one float dtype: {}",
        cx.list_types()
    );
    let p_norm = cx.opt_float("p")?.unwrap_or(2.0);
    ensure!(p_norm >= 0.0, Attribute, "`p` must not be negative, got {p_norm}");
    let lead = Shape::new(lead1).broadcast(lead2);
    let lead = lead.ok_or_else(|| fail!(Shape, "{} do not broadcast", cx.list_types()))?;
    let all = Shape::from([&lead[..], &[p, r, m]].concat());
    ensure!(all.checked_numel().is_some(), Size, "{all} differences are larger than memory can be");
    Ok(all.to_vec())
}
