//! Cross-entropy of class scores.

use super::weighted_mean::WEIGHTED_MEAN;
use super::{
    Reduction, checked_target, class_terms, classes, ignore_index, pair, row_terms, target_weight, term_dtype,
};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::expr::{Expr, float, input};
use crate::graph::{Builder, ValueId};
use crate::ops::norm::log_softmax::LOG_SOFTMAX;
use crate::ops::pointwise::add::ADD;
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::{Reduce, ReduceSpace, Reg, RowBuilder};
use crate::tensor::TensorType;

/// `(scores, target, weight?)` with classes in dimension 1 (0 of a single sample). The target is class
/// indices, each in range or `ignore_index`, or class probabilities of the scores' shape. The mean over
/// indices is weighted by the targets' class weights, that over probabilities by nothing. Smoothing as in
/// Szegedy et al. 2015.
pub static CROSS_ENTROPY_LOSS: OpDef = OpDef {
    name: "cross_entropy_loss",
    schemas: &[
        "cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100, float label_smoothing=0.) -> Tensor",
    ],
    infer: |cx| {
        let (x, target) = (cx.ty(0)?, cx.ty(1)?);
        smoothing(cx)?;
        term_dtype(x.dtype)?;
        let rows = if target.dtype.is_float() {
            ensure!(target.shape == x.shape, Shape, "target probabilities {target} for scores {x}");
            let (dim, rows) = classes(&x.shape)?;
            cx.expect_floats(2, &x.shape[dim..=dim])?;
            rows
        } else {
            class_terms(cx)?.shape
        };
        Ok(vec![TensorType::new(x.dtype, Reduction::of(cx)?.shape(&rows))])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerInput(8),
    body: Body::Decompose(|b, cx, inputs| {
        let weight = inputs.get(2).copied().flatten();
        let [x, target] = pair(inputs)?;
        let loss = match cx.dtype(1)?.is_float() {
            true => of_probabilities(b, cx, x, target, weight)?,
            false => of_indices(b, cx, x, target, weight)?,
        };
        Ok(vec![b.cast(loss, cx.dtype(0)?)?])
    }),
    cases: || {
        let of = |c: Case, reduction: i64, ignored: i64, smoothing: f64| {
            c.attr("reduction", reduction).attr("ignore_index", ignored).attr("label_smoothing", smoothing)
        };
        let case = |name| Case::new(name).f(&[4, 5]).index(&[4], 5);
        let wide = |name| Case::new(name).f(&[2, 3, 2, 2]).index(&[2, 2, 2], 3);
        let likely = |name| Case::new(name).f(&[3, 4]).range(&[3, 4], 0.0, 1.0);
        vec![
            of(case("mean").none(), 1, -100, 0.0),
            of(case("weights, ignored, smoothed").range(&[5], 0.1, 2.0).constant(), 1, 2, 0.1),
            of(wide("images").none(), 2, 1, 0.0),
            of(wide("images, each").range(&[3], 0.1, 2.0).constant(), 0, -100, 0.2),
            of(Case::new("one sample").f(&[5]).index(&[], 5).none(), 1, -100, 0.0),
            of(likely("probabilities").none(), 1, -100, 0.0),
            of(likely("probabilities, weights").range(&[4], 0.1, 2.0), 2, -100, 0.1),
        ]
    },
};

fn smoothing(cx: &OpCx) -> Result<f64> {
    let s = cx.opt_float("label_smoothing")?.unwrap_or(0.0);
    ensure!((0.0..=1.0).contains(&s), Attribute, "`label_smoothing` must be between 0 and 1, got {s}");
    Ok(s)
}

fn of_indices(
    b: &mut Builder,
    cx: &OpCx,
    x: ValueId,
    target: ValueId,
    weight: Option<ValueId>,
) -> Result<ValueId> {
    let target = checked_target(b, cx, target)?;
    let (ignored, s) = (ignore_index(cx)?, smoothing(cx)?);
    let attrs = Attrs::new().with("ignore_index", ignored).with("label_smoothing", s);
    let own = target_weight(b, cx, target, weight)?;
    // The weights of all classes matter to smoothing alone.
    let weight = weight.filter(|_| s > 0.0);
    let loss = b.apply(&CROSS_ENTROPY, &[Some(x), Some(target), Some(own), weight], attrs)?[0];
    match Reduction::of(cx)? {
        Reduction::Mean => b.call(&WEIGHTED_MEAN, &[loss, own]),
        other => other.apply(b, loss),
    }
}

fn of_probabilities(
    b: &mut Builder,
    cx: &OpCx,
    x: ValueId,
    target: ValueId,
    weight: Option<ValueId>,
) -> Result<ValueId> {
    let (shape, dtype, s) = (cx.shape(0)?, term_dtype(cx.dtype(0)?)?, smoothing(cx)?);
    let dim = classes(shape)?.0;
    let log = b.one(&LOG_SOFTMAX, &[x], Attrs::new().with("dim", dim as i64).with("dtype", dtype))?;
    let mut target = b.cast(target, dtype)?;
    if s > 0.0 {
        target = b.scale(target, 1.0 - s)?;
        target = b.one(&ADD, &[target], Attrs::new().with("other", s / shape[dim] as f64))?;
    }
    let mut terms = b.mul(log, target)?;
    if let Some(w) = weight {
        let along: Vec<usize> = (0..shape.rank()).map(|d| if d == dim { shape[dim] } else { 1 }).collect();
        let w = b.reshape(w, &along)?;
        terms = b.mul(terms, w)?;
    }
    let rows = b.sum(terms, &[dim], false)?;
    let rows = b.scale(rows, -1.0)?;
    Reduction::of(cx)?.apply(b, rows)
}

/// Cross-entropy of each row of `(scores, class index, the target's weight, class weights?)`, no index out of
/// range. Outputs, one number a row: the loss
/// `(1 − s) · w[t] · (log Σ − (x[t] − m)) + s / classes · Σ w · (log Σ − (x − m))`; `m = max x`;
/// `Σ = Σ exp(x − m)`. `m` and `log Σ` are stored separately: their sum would round away what a small loss
/// consists of. Rows whose target is `ignore_index` have loss 0.
pub static CROSS_ENTROPY: OpDef = OpDef {
    name: "cross_entropy",
    schemas: &[],
    infer: |cx| {
        smoothing(cx)?;
        Ok(vec![row_terms(cx, [0, 1, 3], &[2])?; 3])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        cx.only_outputs_before(1)?;
        let (g, x, target, own, w) = (cx.grad(0)?, cx.x(0)?, cx.x(1)?, cx.x(2)?, cx.opt_x(3));
        let attrs = cx.attrs().clone();
        let inputs = [Some(g), Some(x), Some(target), Some(own), Some(cx.y(1)), Some(cx.y(2)), w];
        let dx = cx.apply(&CROSS_ENTROPY_BACKWARD, &inputs, attrs)?[0];
        cx.set(0, dx)
    }),
    precision: Precision::Full,
    cost: Cost::PerInput(8),
    body: Body::Rows(|cx, out| {
        let (space, s) = (space(cx, 0)?, smoothing(cx)?);
        let mut b = space.builder();
        let x = b.read(cx.dtype(0)?, space.full.clone());
        let [target, own] = [cx.dtype(1)?, cx.dtype(2)?].map(|d| b.read(d, space.dropped.clone()));
        let weight = weight(cx, &space, &mut b, 3)?;
        let max = b.reduce(Reduce::Max, x);
        let e = b.expr(&(input(0) - input(1)).exp_nonpos(), &[x, max]);
        let sum = b.sum(e);
        let log = b.expr(&input(0).log(), &[sum]);
        let here = b.expr(&Expr::Coord(space.outer.len()).eq(input(0)), &[target]);
        let score = b.expr(&input(0).select(input(1), float(0.0)), &[here, x]);
        let score = b.sum(score);
        let term = (input(0) - (input(1) - input(2))) * input(3);
        let mut loss = b.expr(&term, &[log, score, max, own]);
        if s > 0.0 {
            let each = b.expr(&term, &[log, x, max, weight]);
            let all = b.sum(each);
            let n = space.inner[0] as f64;
            loss = b.expr(&(input(0) * (1.0 - s) + input(1) * (s / n)), &[loss, all]);
        }
        let kept = input(0).ne(Expr::Int(ignore_index(cx)?));
        let loss = b.expr(&kept.select(input(1), float(0.0)), &[target, loss]);
        for (ty, v) in out.iter().zip([loss, max, sum]) {
            b.store(ty.dtype, space.dropped.clone(), v);
        }
        Ok(b.finish())
    }),
    cases: || {
        let of = |c: Case, ignored: i64, s: f64| c.attr("ignore_index", ignored).attr("label_smoothing", s);
        let case = Case::new("plain").f(&[4, 5]).index(&[4], 5).range(&[4], 0.1, 2.0).constant();
        let images = Case::new("images").f(&[2, 3, 2]).index(&[2, 2], 3).range(&[2, 2], 0.1, 2.0).constant();
        vec![of(case.none(), -100, 0.0), of(images.range(&[3], 0.1, 2.0).constant(), 1, 0.2)]
    },
};

/// Gradient of [`CROSS_ENTROPY`] by the scores: `(grad, scores, class index, the target's weight, m, Σ, class
/// weights?)`; with p = exp(x − m) / Σ: `g · ((1 − s) · w[t] · (p − [c = t]) + s / classes · (p · Σ w − w))`.
pub static CROSS_ENTROPY_BACKWARD: OpDef = OpDef {
    name: "cross_entropy_backward",
    schemas: &[],
    infer: |cx| {
        smoothing(cx)?;
        row_terms(cx, [1, 2, 6], &[0, 3, 4, 5])?;
        Ok(vec![cx.ty(1)?.clone()])
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Rows(|cx, out| {
        let (space, s) = (space(cx, 1)?, smoothing(cx)?);
        let mut b = space.builder();
        let g = b.read(cx.dtype(0)?, space.dropped.clone());
        let x = b.read(cx.dtype(1)?, space.full.clone());
        let [target, own, max, sum] = [2, 3, 4, 5].map(|i| cx.dtype(i));
        let [target, own, max, sum] = [target?, own?, max?, sum?].map(|d| b.read(d, space.dropped.clone()));
        let weight = weight(cx, &space, &mut b, 6)?;
        // One column of a row is the target's: nothing as wide as the scores is made of that.
        let here = b.expr(&Expr::Coord(space.outer.len()).eq(input(0)), &[target]);
        let e = b.expr(&(input(0) - input(1)).exp_nonpos(), &[x, max]);
        let p = b.expr(&(input(0) * input(1).recip()), &[e, sum]);
        let less = b.expr(&input(0).select(input(1) - 1.0, input(1)), &[here, p]);
        let dx = if s > 0.0 {
            let n = space.inner[0] as f64;
            // A row scalar is summed over the columns as often as there are columns.
            let all = b.sum(weight);
            let smooth = (input(2) * input(3) - input(4)) * (s / n);
            let slope = input(0) * input(1) * (1.0 - s) + smooth;
            b.expr(&(input(5) * slope), &[own, less, p, all, weight, g])
        } else {
            b.expr(&(input(0) * input(1) * input(2)), &[g, own, less])
        };
        let kept = input(0).ne(Expr::Int(ignore_index(cx)?));
        let dx = b.expr(&kept.select(input(1), float(0.0)), &[target, dx]);
        b.store(out[0].dtype, space.full.clone(), dx);
        Ok(b.finish())
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[3]).f(&[3, 4]).index(&[3], 4).range(&[3], 0.1, 2.0);
        let case = |name| case(name).range(&[3], 1.0, 2.0).range(&[3], 1.0, 4.0);
        vec![
            case("plain").none().attr("ignore_index", 1).attr("label_smoothing", 0.0),
            case("weights").range(&[4], 0.1, 2.0).attr("ignore_index", -100).attr("label_smoothing", 0.3),
        ]
    },
};

/// Rows along the classes of input `x`.
fn space(cx: &OpCx, x: usize) -> Result<ReduceSpace> {
    let x = cx.shape(x)?;
    Ok(ReduceSpace::new(x, &[classes(x)?.0]))
}

/// The class weights, input `i`; 1 if absent.
fn weight(cx: &OpCx, space: &ReduceSpace, b: &mut RowBuilder, i: usize) -> Result<Reg> {
    Ok(match cx.opt(i) {
        Some(w) => {
            let dim = space.full.0.last().copied().flatten().map_or(0, |(d, _)| d);
            b.read(w.dtype, space.along(dim))
        }
        None => b.expr(&float(1.0), &[]),
    })
}
