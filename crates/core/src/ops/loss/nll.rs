//! Negative log-likelihood of log-probabilities.

use super::weighted_mean::WEIGHTED_MEAN;
use super::{Reduction, checked_target, class_terms, classes, ignore_index, pair, row_terms, target_weight};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::expr::{Expr, float, input};
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::ReduceSpace;
use crate::tensor::TensorType;

/// `(log-probabilities, target, weight?)` with classes in dimension 1 (0 of a single sample): `−w[t] · x[t]`,
/// the mean weighted by `w[t]`; rows whose target is `ignore_index` do not count. Outputs: the loss, and the
/// sum of the weights (0 without reduction, as PyTorch).
pub static NLL_LOSS: OpDef = OpDef {
    name: "nll_loss",
    schemas: &[
        "nll_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100) -> Tensor",
        "nll_loss2d(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100) -> Tensor",
        "nll_loss_nd(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100) -> Tensor",
        "nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)",
        "nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)",
    ],
    infer: |cx| {
        let (dtype, rows) = (cx.dtype(0)?, class_terms(cx)?.shape);
        ignore_index(cx)?;
        let loss = TensorType::new(dtype, Reduction::of(cx)?.shape(&rows));
        Ok(vec![loss, TensorType::new(dtype, [])])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(1),
    body: Body::Decompose(decompose),
    cases: || {
        let of = |c: Case, reduction: i64, ignored: i64| {
            c.attr("reduction", reduction).attr("ignore_index", ignored)
        };
        let case = |name| Case::new(name).f(&[4, 5]).index(&[4], 5);
        vec![
            of(case("mean").none(), 1, -100),
            of(case("weights").range(&[5], 0.1, 2.0).constant(), 1, 2),
            of(Case::new("images").f(&[2, 3, 2, 2]).index(&[2, 2, 2], 3).none(), 0, 1),
            of(Case::new("one sample").f(&[5]).index(&[], 5).none(), 2, -100),
        ]
    },
};

fn decompose(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<Vec<ValueId>> {
    let [x, target] = pair(inputs)?;
    let target = checked_target(b, cx, target)?;
    let attrs = Attrs::new().with("ignore_index", ignore_index(cx)?);
    let weight = target_weight(b, cx, target, inputs.get(2).copied().flatten())?;
    let terms = b.one(&NLL, &[x, target, weight], attrs)?;
    let reduction = Reduction::of(cx)?;
    let loss = match reduction {
        Reduction::Mean => b.call(&WEIGHTED_MEAN, &[terms, weight])?,
        other => other.apply(b, terms)?,
    };
    let total = match reduction {
        Reduction::None => b.full(&TensorType::new(b.ty(weight).dtype, []), 0.0)?,
        _ => Reduction::Sum.apply(b, weight)?,
    };
    let dtype = cx.dtype(0)?;
    Ok(vec![b.cast(loss, dtype)?, b.cast(total, dtype)?])
}

/// In the place of an input that there is not.
const ABSENT: usize = usize::MAX;

/// Each row's `−w · x[t]` of `(x, t, w)`, `w` a row's weight; 0 where `t` is `ignore_index`, and no other
/// index out of range.
pub static NLL: OpDef = OpDef {
    name: "nll",
    schemas: &[],
    infer: |cx| Ok(vec![row_terms(cx, [0, 1, ABSENT], &[2])?]),
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x, target, w) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?, cx.x(2)?);
        let sizes = cx.ty(x).shape.to_ints();
        let attrs = cx.attrs().clone().with("sizes", sizes);
        let dx = cx.one(&NLL_BACKWARD, &[g, target, w], attrs)?;
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| {
        let x = cx.ty(0)?;
        let space = ReduceSpace::new(&x.shape, &[classes(&x.shape)?.0]);
        let mut b = space.builder();
        let v = b.read(x.dtype, space.full.clone());
        let [target, weight] = [cx.dtype(1)?, cx.dtype(2)?].map(|d| b.read(d, space.dropped.clone()));
        let here = b.expr(&Expr::Coord(space.outer.len()).eq(input(0)), &[target]);
        let v = b.expr(&input(0).select(input(1), float(0.0)), &[here, v]);
        let v = b.sum(v);
        let kept = input(0).ne(Expr::Int(ignore_index(cx)?));
        let term = b.expr(&kept.select(-(input(1) * input(2)), float(0.0)), &[target, v, weight]);
        b.store(out[0].dtype, space.dropped.clone(), term);
        Ok(b.finish())
    }),
    cases: || {
        vec![
            Case::new("weights")
                .f(&[4, 5])
                .index(&[4], 5)
                .range(&[4], 0.1, 2.0)
                .constant()
                .attr("ignore_index", 2),
        ]
    },
};

/// Gradient of [`NLL`] by its input, of shape `sizes`: `(grad, t, w)` to `−g · w` where `c = t`, else 0.
pub static NLL_BACKWARD: OpDef = OpDef {
    name: "nll_backward",
    schemas: &[],
    infer: |cx| {
        let x = TensorType::new(cx.dtype(0)?, cx.sizes("sizes")?);
        let of = OpCx { inputs: vec![Some(&x), cx.opt(1), cx.opt(0), cx.opt(2)], attrs: cx.attrs };
        row_terms(&of, [0, 1, ABSENT], &[2, 3])?;
        Ok(vec![x])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(1),
    body: Body::Rows(|cx, out| {
        let dim = classes(&out[0].shape)?.0;
        let space = ReduceSpace::new(&out[0].shape, &[dim]);
        let mut b = space.builder();
        let [g, target, weight] = [0, 1, 2].map(|i| cx.dtype(i));
        let [g, target, weight] = [g?, target?, weight?].map(|d| b.read(d, space.dropped.clone()));
        let here = Expr::Coord(space.outer.len()).eq(input(0)).and(input(0).ne(Expr::Int(ignore_index(cx)?)));
        let dx = b.expr(&here.select(-(input(1) * input(2)), float(0.0)), &[target, g, weight]);
        b.store(out[0].dtype, space.full.clone(), dx);
        Ok(b.finish())
    }),
    cases: || {
        let case = Case::new("weights").f(&[4]).index(&[4], 5).range(&[4], 0.1, 2.0).constant();
        vec![case.attr("ignore_index", 2).attr("sizes", [4, 5])]
    },
};
