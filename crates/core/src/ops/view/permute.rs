//! Dimensions reordered.

use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, View};
use crate::shape::{Layout, wrap_dim};
use crate::tensor::TensorType;

/// Result dimension `i` is dimension `dims[i]` of the input.
pub static PERMUTE: OpDef = OpDef {
    name: "permute",
    schemas: &["permute(Tensor(a) self, int[] dims) -> Tensor(a)"],
    infer: |cx| {
        let x = cx.ty(0)?;
        Ok(vec![TensorType::new(x.dtype, dims(cx)?.iter().map(|&d| x.shape[d]).collect::<Vec<_>>())])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, types) = (cx.grad(0)?, cx.types());
        let inverse = inverse(&OpCx { inputs: types.iter().map(Option::as_ref).collect(), attrs: cx.attrs() })?;
        let dx = cx.permute(g, &inverse)?;
        cx.set(0, dx)
    }),
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::View(View {
        layout: |cx, l, _| {
            let dims = dims(cx)?;
            Ok(Some(Layout {
                shape: dims.iter().map(|&d| l.shape[d]).collect(),
                strides: dims.iter().map(|&d| l.strides[d]).collect(),
                offset: l.offset,
            }))
        },
        scatter: Some(|b, cx, _, new, _| b.permute(new, &inverse(cx)?)),
    }),
    cases: || vec![Case::new("rotate").f(&[2, 3, 4]).attr("dims", [2, 0, -2])],
};

fn dims(cx: &OpCx) -> Result<Vec<usize>> {
    let (rank, given) = (cx.shape(0)?.rank(), cx.ints("dims")?);
    let dims: Vec<usize> = given.iter().filter_map(|&d| wrap_dim(d, rank)).collect();
    let once = (0..rank).all(|d| dims.contains(&d));
    ensure!(dims.len() == rank && given.len() == rank && once, Attribute, "{given:?} does not order {rank} dimensions");
    Ok(dims)
}

fn inverse(cx: &OpCx) -> Result<Vec<usize>> {
    let dims = dims(cx)?;
    let mut inverse = vec![0; dims.len()];
    dims.iter().enumerate().for_each(|(i, &d)| inverse[d] = i);
    Ok(inverse)
}
