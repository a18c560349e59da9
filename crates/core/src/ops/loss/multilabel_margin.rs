//! Hinge loss of several labels a sample.

use super::{Reduction, pair, term_dtype};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::index::check_index::CHECK_INDEX;
use crate::ops::index::gather::GATHER;
use crate::ops::index::scatter::SCATTER;
use crate::ops::pointwise::{compare::EQ, compare::GE, compare::GT, relu::RELU};
use crate::ops::reduce::cumsum::CUMSUM;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample};
use crate::shape::Shape;
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// `(scores [N, C] or [C], targets i64 of the same shape)`: `Σ max(0, 1 − x[y] + x[j]) / C` over the labels y
/// of a sample and the classes j that are none, reduced. A sample's labels are its targets before the first
/// that is negative.
pub static MULTILABEL_MARGIN_LOSS: OpDef = OpDef {
    name: "multilabel_margin_loss",
    schemas: &["multilabel_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor"],
    infer: |cx| Ok(types(cx)?[..1].to_vec()),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| Ok(vec![loss(b, cx, inputs)?.0])),
    cases,
};

/// [`MULTILABEL_MARGIN_LOSS`], and 1 where a class is one of the labels.
pub static MULTILABEL_MARGIN_LOSS_FORWARD: OpDef = OpDef {
    name: "multilabel_margin_loss_forward",
    schemas: &[
        "multilabel_margin_loss_forward(Tensor self, Tensor target, int reduction) -> (Tensor output, Tensor is_target)",
    ],
    infer: types,
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let (loss, hit) = loss(b, cx, inputs)?;
        Ok(vec![loss, hit])
    }),
    cases,
};

fn types(cx: &OpCx) -> Result<Vec<TensorType>> {
    let (x, target) = (cx.ty(0)?, cx.ty(1)?);
    term_dtype(x.dtype)?;
    let rank = x.shape.rank();
    let fits = (1..=2).contains(&rank) && x.shape == target.shape && target.dtype == DType::I64;
    ensure!(fits, Shape, "scores [N, C] or [C] and i64 targets as many are needed, got {}", cx.list_types());
    let classes = x.shape[rank - 1];
    ensure!(classes > 0, Shape, "no classes in {x}");
    let most = Shape::from([x.shape.numel(), classes]).checked_numel();
    most.ok_or_else(|| fail!(Size, "the pairs of {x} are more than memory can hold"))?;
    let rows = Shape::new(&x.shape[..rank - 1]);
    Ok(vec![TensorType::new(x.dtype, Reduction::of(cx)?.shape(&rows)), x.clone()])
}

/// The loss, and 1 for each class that is a label.
fn loss(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<(ValueId, ValueId)> {
    let ([x, target], dtype, shape) = (pair(inputs)?, term_dtype(cx.dtype(0)?)?, cx.shape(0)?);
    let (dim, classes) = (shape.rank() - 1, shape[shape.rank() - 1]);
    let x = b.cast(x, dtype)?;
    let along = Attrs::new().with("dim", dim as i64);
    // Targets count up to the first that is negative.
    let ended = b.one(&GE, &[target], Attrs::new().with("other", 0))?;
    let ended = b.one(&EQ, &[ended], Attrs::new().with("other", false))?;
    let ended = b.cast(ended, DType::I64)?;
    let ended = b.one(&CUMSUM, &[ended], along.clone())?;
    let counts = b.one(&EQ, &[ended], Attrs::new().with("other", 0))?;
    let zero = b.full(&TensorType::new(DType::I64, shape.clone()), 0.0)?;
    let label = b.choose(counts, target, zero)?;
    let label = b.one(&CHECK_INDEX, &[label], Attrs::new().with("limit", classes as i64))?;
    let ones = b.cast(counts, dtype)?;
    let none = b.full(&TensorType::new(dtype, shape.clone()), 0.0)?;
    let hits = b.one(&SCATTER, &[none, label, ones], along.clone().with("reduce", "sum"))?;
    let hit = b.one(&GT, &[hits], Attrs::new().with("other", 0))?;
    let own = b.one(&GATHER, &[x, label], along)?;
    // [..., labels, classes]
    let (own, all) = (b.unsqueeze(own, dim + 1)?, b.unsqueeze(x, dim)?);
    let gap = b.sub(all, own)?;
    let gap = b.shift(gap, 1.0)?;
    let gap = b.call(&RELU, &[gap])?;
    let chosen = b.unsqueeze(counts, dim + 1)?;
    let gap = b.keep_where(chosen, gap)?;
    let labels = b.unsqueeze(hit, dim)?;
    let gap = b.drop_where(labels, gap)?;
    let sum = b.sum(gap, &[dim, dim + 1], false)?;
    let terms = b.scale(sum, 1.0 / classes as f64)?;
    let loss = Reduction::of(cx)?.apply(b, terms)?;
    Ok((b.cast(loss, cx.dtype(0)?)?, b.cast(hit, cx.dtype(0)?)?))
}

fn cases() -> Vec<Case> {
    let case = |name, reduction: i64| {
        let target = Sample::Values(vec![2.0, 0.0, -1.0, 3.0, 1.0, 1.0, 3.0, -5.0, -1.0, 0.0, 0.0, 0.0]);
        let case = Case::new(name).distinct(&[3, 4]).arg(DType::I64, &[3, 4], target);
        case.attr("reduction", reduction)
    };
    let one = Case::new("one sample").distinct(&[3]).index(&[3], 3).attr("reduction", 1);
    vec![case("each", 0), case("mean", 1), case("sum", 2), one]
}
