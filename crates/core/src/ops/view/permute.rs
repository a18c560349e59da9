//! Dimensions reordered.

use super::{inverse, permute_gradient, permuted};
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, View};
use crate::shape::wrap_dim;
use crate::tensor::TensorType;

/// Result dimension `i` is dimension `dims[i]` of the input.
pub static PERMUTE: OpDef = OpDef {
    name: "permute",
    schemas: &["permute(Tensor(a) self, int[] dims) -> Tensor(a)"],
    infer: |cx| {
        let x = cx.ty(0)?;
        Ok(vec![TensorType::new(x.dtype, dims(cx)?.iter().map(|&d| x.shape[d]).collect::<Vec<_>>())])
    },
    derivative: Derivative::Rule(|cx| permute_gradient(cx, dims)),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| Ok(Some(permuted(l, &dims(cx)?))),
        scatter: Some(|b, cx, _, new, _| b.permute(new, &inverse(&dims(cx)?))),
    }),
    cases: || vec![Case::new("rotate").f(&[2, 3, 4]).attr("dims", [2, 0, -2])],
};

fn dims(cx: &OpCx) -> Result<Vec<usize>> {
    let (rank, given) = (cx.shape(0)?.rank(), cx.ints("dims")?);
    let dims: Vec<usize> = given.iter().filter_map(|&d| wrap_dim(d, rank)).collect();
    let once = (0..rank).all(|d| dims.contains(&d));
    ensure!(
        dims.len() == rank && given.len() == rank && once,
        Attribute,
        "{given:?} does not order {rank} dimensions"
    );
    Ok(dims)
}
