//! Two dimensions exchanged.

use super::{permute_gradient, permuted};
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::shape::wrap_dim;
use crate::tensor::TensorType;

/// Dimensions `dim0` and `dim1` exchanged; without them, all dimensions reversed (`t`, `numpy_T`).
pub static TRANSPOSE: OpDef = OpDef {
    name: "transpose",
    schemas: &[
        "transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)",
        "swapaxes(Tensor(a) self, int axis0, int axis1) -> Tensor(a)",
        "t(Tensor(a) self) -> Tensor(a)",
        "numpy_T(Tensor(a) self) -> Tensor(a)",
        "numpy_T.a(Tensor(a) self) -> Tensor(a)",
        "swapdims(Tensor(a) self, int dim0, int dim1) -> Tensor(a)",
    ],
    infer: |cx| {
        let x = cx.ty(0)?;
        Ok(vec![TensorType::new(x.dtype, order(cx)?.iter().map(|&d| x.shape[d]).collect::<Vec<_>>())])
    },
    derivative: Derivative::Rule(|cx| permute_gradient(cx, order)),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| Ok(Some(permuted(l, &order(cx)?))),
        scatter: Some(|b, cx, _, new, _| b.permute(new, &super::inverse(&order(cx)?))),
    }),
    cases: || {
        vec![
            Case::new("outer and last").f(&[2, 3, 4]).attr("dim0", 0).attr("dim1", -1),
            Case::new("reversed").f(&[2, 3]),
            Case::new("vector").f(&[3]),
        ]
    },
};

/// The last two dimensions exchanged.
pub static M_T: OpDef = OpDef {
    name: "mT",
    schemas: &[
        "mT(Tensor(a) self) -> Tensor(a)",
        "mT.a(Tensor(a) self) -> Tensor(a)",
        "adjoint(Tensor(a) self) -> Tensor(a)",
        "mH(Tensor(a) self) -> Tensor(a)",
        "matrix_H(Tensor(a) self) -> Tensor(a)",
    ],
    infer: |cx| {
        let x = cx.ty(0)?;
        Ok(vec![TensorType::new(x.dtype, last_two(cx)?.iter().map(|&d| x.shape[d]).collect::<Vec<_>>())])
    },
    derivative: Derivative::Rule(|cx| permute_gradient(cx, last_two)),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| Ok(Some(permuted(l, &last_two(cx)?))),
        scatter: Some(|b, _, _, new, _| b.transpose_last(new)),
    }),
    cases: || vec![Case::new("batch").f(&[2, 3, 4])],
};

fn last_two(cx: &OpCx) -> Result<Vec<usize>> {
    let rank = cx.shape(0)?.rank();
    ensure!(rank >= 2, Shape, "it takes matrices, got {}", cx.ty(0)?);
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    Ok(order)
}

fn order(cx: &OpCx) -> Result<Vec<usize>> {
    let rank = cx.shape(0)?.rank();
    let mut order: Vec<usize> = (0..rank).collect();
    let named = |a: &str, b: &str| Ok::<_, crate::Error>(cx.opt_int(a)?.or(cx.opt_int(b)?));
    let (Some(a), Some(b)) = (named("dim0", "axis0")?, named("dim1", "axis1")?) else {
        order.reverse();
        return Ok(order);
    };
    let (a, b) = (wrap_dim(a, rank), wrap_dim(b, rank));
    ensure!(a.is_some() && b.is_some(), Attribute, "a dimension is out of range for {}", cx.shape(0)?);
    if let (Some(a), Some(b), true) = (a, b, rank > 0) {
        order.swap(a, b);
    }
    Ok(order)
}
