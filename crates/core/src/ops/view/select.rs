//! One index of a dimension, and writing it.

use super::{scatter_gradient, slice, slice_attrs};
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::tensor::TensorType;

/// Index `index` of dimension `dim`, the dimension dropped.
pub static SELECT: OpDef = OpDef {
    name: "select",
    schemas: &["select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)"],
    infer: |cx| {
        let (x, (dim, _)) = (cx.ty(0)?, place(cx)?);
        let mut shape = x.shape.to_vec();
        shape.remove(dim);
        Ok(vec![TensorType::new(x.dtype, shape)])
    },
    derivative: Derivative::Rule(scatter_gradient),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| {
            let (dim, index) = place(cx)?;
            let mut l = l.clone();
            l.offset += index as isize * l.strides[dim];
            let mut shape = l.shape.to_vec();
            shape.remove(dim);
            l.strides.remove(dim);
            l.shape = shape.into();
            Ok(Some(l))
        },
        scatter: Some(|b, cx, base, new, _| b.one(&SELECT_SCATTER, &[base, new], cx.attrs.clone())),
    }),
    cases: || {
        vec![
            Case::new("first").f(&[2, 3]).attr("dim", 0).attr("index", 1),
            Case::new("negative").f(&[2, 3]).attr("dim", -1).attr("index", -1),
        ]
    },
};

/// `self` with that index replaced by `src`.
pub static SELECT_SCATTER: OpDef = OpDef {
    name: "select_scatter",
    schemas: &["select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor"],
    infer: |cx| {
        let (x, src, (dim, _)) = (cx.ty(0)?, cx.ty(1)?, place(cx)?);
        let mut want = x.shape.to_vec();
        want.remove(dim);
        ensure!(
            src.shape[..] == want[..],
            Shape,
            "source {src} does not fit index of dimension {dim} of {x}"
        );
        Ok(vec![x.clone()])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Decompose(|b, cx, inputs| {
        let (Some(base), Some(src)) = (inputs[0], inputs[1]) else {
            return Err(crate::fail!(Attribute, "an input is missing"));
        };
        let (dim, index) = place(cx)?;
        let mut shape = cx.shape(0)?.to_vec();
        shape[dim] = 1;
        let src = b.reshape(src, &shape)?;
        Ok(vec![b.one(&slice::SLICE_SCATTER, &[base, src], slice_attrs(dim, index, index + 1))?])
    }),
    cases: || vec![Case::new("middle").f(&[2, 3]).f(&[2]).attr("dim", 1).attr("index", 1)],
};

pub(crate) fn place(cx: &OpCx) -> Result<(usize, usize)> {
    let x = cx.shape(0)?;
    ensure!(x.rank() > 0, Shape, "a scalar has no index to select");
    let (dim, index) = (cx.dim("dim", x.rank())?, cx.int("index")?);
    let n = x[dim] as i64;
    ensure!((-n..n).contains(&index), Attribute, "index {index} is out of range for dimension {dim} of {x}");
    Ok((dim, index.rem_euclid(n) as usize))
}
