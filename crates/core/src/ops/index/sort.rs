//! Sorting along a dimension.

use super::given;
use super::scatter::SCATTER;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::tensor::{Data, Tensor, TensorType};
use std::cmp::Ordering;

/// Values in ascending (or `descending`) order along `dim` (absent: the last), NaN counting as largest, and
/// their i64 indices. Always stable.
pub static SORT: OpDef = OpDef {
    name: "sort",
    schemas: &[
        "sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)",
        "sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)",
    ],
    infer,
    derivative: Derivative::Rule(gradient),
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Kernel(|cx, inputs, outs| {
        let x = given(inputs, 0)?;
        Ok(selected(x, dim(cx)?, x.shape().get(dim(cx)?).copied().unwrap_or(1), cx.flag("descending")?, outs))
    }),
    cases,
};

/// The indices that sort.
pub static ARGSORT: OpDef = OpDef {
    name: "argsort",
    schemas: &[
        "argsort(Tensor self, int dim=-1, bool descending=False) -> Tensor",
        "argsort.stable(Tensor self, *, bool stable, int dim=-1, bool descending=False) -> Tensor",
    ],
    infer: |cx| Ok(infer(cx)?.split_off(1)),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let attrs = Attrs::new().with("dim", dim(cx)? as i64).with("descending", cx.flag("descending")?);
        Ok(b.apply(&SORT, inputs, attrs)?.split_off(1))
    }),
    cases,
};

/// Values in ascending order along dimension 0.
pub static MSORT: OpDef = OpDef {
    name: "msort",
    schemas: &["msort(Tensor self) -> Tensor"],
    infer: |cx| Ok(vec![cx.ty(0)?.clone()]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(10),
    body: Body::Decompose(|b: &mut Builder, _: &OpCx, inputs: &[Option<ValueId>]| {
        let attrs = Attrs::new().with("dim", 0).with("descending", false);
        Ok(b.apply(&SORT, inputs, attrs)?[..1].to_vec())
    }),
    cases: || vec![Case::new("columns").distinct(&[3, 2]), Case::new("scalar").f(&[])],
};

fn infer(cx: &OpCx) -> Result<Vec<TensorType>> {
    let x = cx.ty(0)?;
    dim(cx)?;
    Ok(vec![x.clone(), TensorType::new(DType::I64, x.shape.clone())])
}

/// The attribute `dim`, the last if absent.
pub fn dim(cx: &OpCx) -> Result<usize> {
    let rank = cx.shape(0)?.rank();
    if cx.opt_int("dim")?.is_some() { cx.dim("dim", rank) } else { Ok(rank.saturating_sub(1)) }
}

/// The gradient goes back to where each value came from.
pub(super) fn gradient(cx: &mut GradCx) -> Result<()> {
    let (g, x, index) = (cx.grad(0)?, cx.x(0)?, cx.y(1));
    let ty = TensorType::new(cx.ty(g).dtype, cx.ty(x).shape.clone());
    let zeros = cx.full(&ty, 0.0)?;
    let dim = cx.args().opt_int("dim")?.unwrap_or(-1);
    let dx = cx.one(&SCATTER, &[zeros, index, g], Attrs::new().with("dim", dim))?;
    cx.set(0, dx)
}

/// The first `k` in sorted order along `dim`: values and indices.
pub(super) fn selected(
    x: &Tensor,
    dim: usize,
    k: usize,
    descending: bool,
    outs: &[TensorType],
) -> Vec<Tensor> {
    let (before, n, after) = x.shape().around(dim);
    let order = |a: &usize, b: &usize| {
        let order = match &x.data {
            Data::Float(v) => compare(v[*a], v[*b]),
            Data::Int(v) => v[*a].cmp(&v[*b]),
        };
        if descending { order.reverse() } else { order }
    };
    let mut from = vec![0; before * k * after];
    // Nothing may be selected from very many lanes.
    let lanes = if from.is_empty() { 0 } else { before };
    for (outer, inner) in (0..lanes).flat_map(|b| (0..after).map(move |a| (b, a))) {
        let mut lane: Vec<usize> = (0..n).map(|i| (outer * n + i) * after + inner).collect();
        lane.sort_by(order);
        for (i, &at) in lane[..k].iter().enumerate() {
            from[(outer * k + i) * after + inner] = at;
        }
    }
    let index = from.iter().map(|&at| (at / after % n) as i64).collect();
    let values = Tensor { ty: outs[0].clone(), data: super::take(x, &from) };
    vec![values, Tensor::int(DType::I64, outs[1].shape.clone(), index)]
}

/// NaN is largest.
fn compare(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn cases() -> Vec<Case> {
    let tie = crate::ops::Sample::Values(vec![2.0, 1.0, 2.0, 1.0, 0.0]);
    vec![
        Case::new("last").distinct(&[2, 5]).attr("dim", -1).attr("descending", false),
        Case::new("middle down").distinct(&[2, 3, 2]).attr("dim", 1).attr("descending", true),
        Case::new("ties").arg(DType::I64, &[5], tie).attr("dim", 0).attr("descending", true),
        Case::new("scalar").f(&[]).attr("dim", -1).attr("descending", false),
        Case::new("nothing").f(&[2, 0]).attr("dim", -1).attr("descending", false),
    ]
}
