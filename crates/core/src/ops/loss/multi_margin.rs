//! Hinge loss of several classes: Crammer and Singer 2001.

use super::{Reduction, class_terms, classes, pair};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::index::check_index::CHECK_INDEX;
use crate::ops::index::gather::GATHER;
use crate::ops::index::one_hot::ONE_HOT_ROWS;
use crate::ops::pointwise::{compare::EQ, relu::RELU};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample};
use crate::tensor::TensorType;

/// `(scores [N, C] or [C], target, weight?)`: `Σ w[t] · max(0, margin − x[t] + x[j])^p / C` over the classes
/// j other than the target t, reduced; `p` is 1 or 2.
pub static MULTI_MARGIN_LOSS: OpDef = OpDef {
    name: "multi_margin_loss",
    schemas: &[
        "multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? weight=None, int reduction=1) -> Tensor",
    ],
    infer: |cx| {
        let terms = terms(cx)?;
        Ok(vec![TensorType::new(cx.dtype(0)?, Reduction::of(cx)?.shape(&terms.shape))])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(8),
    body: Body::Decompose(|b, cx, inputs| {
        let ([x, target], terms) = (pair(inputs)?, terms(cx)?);
        let dim = classes(cx.shape(0)?)?.0;
        let count = cx.shape(0)?[dim];
        let x = b.cast(x, terms.dtype)?;
        let target = b.one(&CHECK_INDEX, &[target], Attrs::new().with("limit", count as i64))?;
        let hit = b.one(&ONE_HOT_ROWS, &[target], Attrs::new().with("num_classes", count as i64))?;
        let others = b.one(&EQ, &[hit], Attrs::new().with("other", 0))?;
        let column = b.unsqueeze(target, dim)?;
        let own = b.one(&GATHER, &[x, column], Attrs::new().with("dim", dim as i64))?;
        let ahead = b.sub(x, own)?;
        let gap = b.shift(ahead, cx.opt_float("margin")?.unwrap_or(1.0))?;
        let mut gap = b.call(&RELU, &[gap])?;
        if cx.opt_float("p")? == Some(2.0) {
            gap = b.mul(gap, gap)?;
        }
        let gap = b.keep_where(others, gap)?;
        let sum = b.sum(gap, &[dim], false)?;
        let mut loss = b.scale(sum, 1.0 / count as f64)?;
        if let Some(weight) = inputs.get(2).copied().flatten() {
            let weight = b.cast(weight, terms.dtype)?;
            let flat = b.reshape(target, &[terms.shape.numel()])?;
            let weight = b.one(&GATHER, &[weight, flat], Attrs::new().with("dim", 0))?;
            let weight = b.reshape(weight, &terms.shape)?;
            loss = b.mul(loss, weight)?;
        }
        let loss = Reduction::of(cx)?.apply(b, loss)?;
        Ok(vec![b.cast(loss, cx.dtype(0)?)?])
    }),
    cases: || {
        let case = |name, p: i64, reduction: i64| {
            let target = Sample::Values(vec![1.0, 0.0, 3.0]);
            let case = Case::new(name).distinct(&[3, 4]).arg(crate::DType::I64, &[3], target);
            case.attr("p", p).attr("margin", 1.03).attr("reduction", reduction)
        };
        let one = Case::new("one sample").distinct(&[3]).index(&[], 3).attr("p", 1).attr("margin", 1.03);
        vec![
            case("each", 1, 0).none(),
            case("squares", 2, 1).none(),
            case("weighted", 1, 2).range(&[4], 0.5, 2.0).constant(),
            one.none().attr("reduction", 1),
        ]
    },
};

/// Type of the terms.
fn terms(cx: &OpCx) -> Result<TensorType> {
    let rank = cx.shape(0)?.rank();
    ensure!((1..=2).contains(&rank), Shape, "scores are [N, C] or [C], got {}", cx.ty(0)?);
    let p = cx.opt_float("p")?.unwrap_or(1.0);
    ensure!(p == 1.0 || p == 2.0, Attribute, "`p` is 1 or 2, not {p}");
    cx.opt_float("margin")?;
    ensure!(cx.shape(0)?[rank - 1] > 0, Shape, "no classes in {}", cx.ty(0)?);
    class_terms(cx)
}
