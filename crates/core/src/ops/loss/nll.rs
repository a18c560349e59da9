//! Negative log-likelihood of log-probabilities.

use super::weighted_mean::WEIGHTED_MEAN;
use super::{Reduction, checked_target, class_terms, classes, ignore_index, pair};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::expr::{Expr, float, input};
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::ReduceSpace;
use crate::tensor::TensorType;

/// `(log-probabilities, target, weight?)` with classes in dimension 1 (0 of a single sample): `−w[t] · x[t]`, the mean
/// weighted by `w[t]`; rows whose target is `ignore_index` do not count. Outputs: the loss, and the sum of the weights
/// (0 without reduction, as PyTorch).
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
        let of = |c: Case, reduction: i64, ignored: i64| c.attr("reduction", reduction).attr("ignore_index", ignored);
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
    let outs = b.apply(&NLL, &[Some(x), Some(target), inputs.get(2).copied().flatten()], attrs)?;
    let reduction = Reduction::of(cx)?;
    let loss = match reduction {
        Reduction::Mean => b.one(&WEIGHTED_MEAN, &outs, Attrs::new())?,
        other => other.apply(b, outs[0])?,
    };
    let total = match reduction {
        Reduction::None => b.full(&TensorType::new(b.ty(outs[1]).dtype, []), 0.0)?,
        _ => Reduction::Sum.apply(b, outs[1])?,
    };
    let dtype = cx.dtype(0)?;
    Ok(vec![b.cast(loss, dtype)?, b.cast(total, dtype)?])
}

/// Each row's `−w[t] · x[t]` and weight `w[t]` of `(x, t, w?)`, no index out of range; both 0 where `t` is `ignore_index`.
pub static NLL: OpDef = OpDef {
    name: "nll",
    schemas: &[],
    infer: |cx| {
        ignore_index(cx)?;
        Ok(vec![class_terms(cx)?; 2])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        cx.only_outputs_before(1)?;
        ensure!(!cx.needs(2), Gradient, "class weights are not differentiated");
        let (g, x, target, w) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?, cx.opt_x(2));
        let sizes = cx.ty(x).shape.to_ints();
        let attrs = cx.attrs().clone().with("sizes", sizes);
        let dx = cx.apply(&NLL_BACKWARD, &[Some(g), Some(target), w], attrs)?[0];
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerInput(1),
    body: Body::Rows(|cx, out| {
        let x = cx.ty(0)?;
        let dim = classes(&x.shape)?.0;
        let space = ReduceSpace::new(&x.shape, &[dim]);
        let mut b = space.builder();
        let v = b.read(x.dtype, space.full.clone());
        let target = b.read(cx.dtype(1)?, space.dropped.clone());
        let weight = cx.opt(2).map(|w| b.read(w.dtype, space.along(dim)));
        let here = Expr::Coord(space.outer.len()).eq(input(0)).and(input(0).ne(Expr::Int(ignore_index(cx)?)));
        let here = b.expr(&here, &[target]);
        let weight = weight.unwrap_or_else(|| b.expr(&float(1.0), &[]));
        let own = b.expr(&input(0).select(input(1), float(0.0)), &[here, weight]);
        let term = b.expr(&input(0).select(-(input(1) * input(2)), float(0.0)), &[here, v, weight]);
        for (ty, v) in out.iter().zip([term, own]) {
            let v = b.sum(v);
            b.store(ty.dtype, space.dropped.clone(), v);
        }
        Ok(b.finish())
    }),
    cases: || vec![Case::new("weights").f(&[4, 5]).index(&[4], 5).range(&[5], 0.1, 2.0).constant().attr("ignore_index", 2)],
};

/// Gradient of [`NLL`] by its input, of shape `sizes`: `(grad, t, w?)` to `−g · w[c]` where `c = t`, else 0.
pub static NLL_BACKWARD: OpDef = OpDef {
    name: "nll_backward",
    schemas: &[],
    infer: |cx| {
        ignore_index(cx)?;
        let x = TensorType::new(cx.dtype(0)?, cx.sizes("sizes")?);
        let rows = class_terms(&OpCx { inputs: vec![Some(&x), cx.opt(1), cx.opt(2)], attrs: cx.attrs })?.shape;
        cx.expect_floats(0, &rows)?;
        Ok(vec![x])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(1),
    body: Body::Rows(|cx, out| {
        let dim = classes(&out[0].shape)?.0;
        let space = ReduceSpace::new(&out[0].shape, &[dim]);
        let mut b = space.builder();
        let g = b.read(cx.dtype(0)?, space.dropped.clone());
        let target = b.read(cx.dtype(1)?, space.dropped.clone());
        let weight = cx.opt(2).map(|w| b.read(w.dtype, space.along(dim)));
        let weight = weight.unwrap_or_else(|| b.expr(&float(1.0), &[]));
        let here = Expr::Coord(space.outer.len()).eq(input(0)).and(input(0).ne(Expr::Int(ignore_index(cx)?)));
        let dx = b.expr(&here.select(-(input(1) * input(2)), float(0.0)), &[target, g, weight]);
        b.store(out[0].dtype, space.full.clone(), dx);
        Ok(b.finish())
    }),
    cases: || {
        let case = Case::new("weights").f(&[4]).index(&[4], 5).range(&[5], 0.1, 2.0).constant();
        vec![case.attr("ignore_index", 2).attr("sizes", [4, 5])]
    },
};
