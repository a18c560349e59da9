//! The way of gradients after the backward pass: measuring and scaling them, and the optimizers. Every
//! operator here works on flat spans that hold many consecutive parameters, so that a step is one pass over
//! memory.
//!
//! An optimizer reads the parameter, its gradient and its moments, then row scalars. `scale` multiplies the
//! gradient: unscaling and norm clipping in one, a scalar or one for each block of the span. With `apply`
//! false every output is its input, bit for bit. Its own hyperparameters of the step follow. It writes the
//! new parameter and moments. Attributes that all of them take: `clip_value` (gradients are clipped to its
//! plus and minus after scaling) and `maximize` (they are negated).
//!
//! Adam, AdamW, SGD and RMSprop take settings that change from step to step as further scalars, in place of
//! the attributes: `l2` for `weight_decay`, `mean_weight` ([`lerp_weight`]), `square_decay` and
//! `square_weight` (1 less it) for the decay rates of means, `buffer_decay` for `momentum`. The numbers
//! that are computed are the same, bit for bit.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::expr::{Expr, float, input};
use crate::ops::{Case, OpCx, Sample};
use crate::tensor::TensorType;
use std::ops::Range;

operators! {
    adadelta: ADADELTA;
    adagrad: ADAGRAD;
    adam: ADAM;
    adam_moments: ADAM_MOMENTS;
    adamax: ADAMAX;
    adamp: ADAMP_PRODUCTS, ADAMP_PROJECTION, ADAMP_STEP;
    adamw: ADAMW;
    bert_adam: BERT_ADAM;
    gradient_scale: GRADIENT_SCALE;
    gradient_statistics: GRADIENT_STATISTICS;
    lamb: LAMB_NORMS, LAMB_RATIO, LAMB_STEP;
    larc: LARC_RATE, LARC;
    lion: LION;
    master: MASTER_SPLIT, MASTER_JOIN;
    moment_codes: QUANTIZE_BLOCK, DEQUANTIZE_BLOCK;
    nadam: NADAM;
    novograd: NOVOGRAD_NORM, NOVOGRAD;
    pack: PACK;
    radam: RADAM;
    rmsprop: RMSPROP;
    rmsprop_tf: RMSPROP_TF;
    rows: GATHER_ROWS, UPDATE_ROWS;
    segment: SEGMENT_SUM, SEGMENT_SUM_PAIR, SEGMENT_SPREAD;
    sgd: SGD;
    stochastic_round: STOCHASTIC_ROUND;
    unsaturate: UNSATURATE;
}

/// Type rule of an optimizer whose inputs `0` and `2..scalars.start` (as far as given) are replaced: the
/// outputs have their types. All are spans of one shape, as is the gradient (input 1). `scalars` are scalars,
/// but the first, `scale`, may be one number for each block.
fn span_types(cx: &OpCx, scalars: Range<usize>) -> Result<Vec<TensorType>> {
    span_types_by_step(cx, scalars.clone(), scalars.end)
}

/// The same, where the scalars from `required` on may be absent.
fn span_types_by_step(cx: &OpCx, scalars: Range<usize>, required: usize) -> Result<Vec<TensorType>> {
    let span = cx.shape(0)?;
    let states = || std::iter::once(0).chain(2..scalars.start).filter(|&i| i == 0 || cx.opt(i).is_some());
    for i in states().chain([1]) {
        let t = cx.ty(i)?;
        ensure!(
            t.shape == *span && t.dtype.is_float(),
            Shape,
            "input {i} is {t}, the parameters are {}",
            cx.ty(0)?
        );
    }
    let states = states().map(|i| cx.ty(i).cloned()).collect();
    for i in scalars.clone().filter(|&i| i < required || cx.opt(i).is_some()) {
        let t = cx.ty(i)?;
        let by_block = i == scalars.start && span.rank() == 2 && t.shape[..] == [span[0], 1];
        ensure!(t.shape.rank() == 0 || by_block, Shape, "input {i} must be a scalar, it is {t}");
    }
    states
}

/// Input `i`, if it is given: absent ones are skipped in the numbering of expressions.
fn given(cx: &OpCx, i: usize) -> Option<Expr> {
    cx.opt(i).map(|_| input((0..i).filter(|&j| cx.opt(j).is_some()).count()))
}

/// Inputs `first..`, which must be there.
fn taken<const N: usize>(cx: &OpCx, first: usize) -> Result<[Expr; N]> {
    let missing = |i| crate::fail!(Attribute, "input {i} is missing");
    let all: Result<Vec<Expr>> = (first..first + N).map(|i| given(cx, i).ok_or_else(|| missing(i))).collect();
    Ok(all?.try_into().expect("N were collected"))
}

/// The gradient an optimizer sees: times `scale`, limited and negated as the attributes say.
fn seen_gradient(cx: &OpCx, gradient: Expr, scale: Expr) -> Result<Expr> {
    let mut g = gradient * scale;
    if let Some(limit) = cx.opt_float("clip_value")? {
        g = g.max(float(-limit)).min(float(limit));
    }
    Ok(if cx.flag("maximize")? { -g } else { g })
}

/// [`seen_gradient`] of input 1, plus the attribute `weight_decay` times the parameter (input 0).
fn seen(cx: &OpCx, scale: Expr) -> Result<Expr> {
    let g = seen_gradient(cx, input(1), scale)?;
    let decay = cx.opt_float("weight_decay")?.unwrap_or(0.0);
    Ok(if decay == 0.0 { g } else { g + float(decay) * input(0) })
}

/// The same, where input `l2` is the weight decay if it is given.
fn seen_by_step(cx: &OpCx, scale: Expr, l2: usize) -> Result<Expr> {
    let Some(decay) = given(cx, l2) else { return seen(cx, scale) };
    let g = seen_gradient(cx, input(1), scale)?;
    // Without decay the parameter is not looked at, were it infinite.
    Ok(decay.clone().eq(float(0.0)).select(g.clone(), g + decay * input(0)))
}

/// The weight of `torch.lerp` as a number of the step: below 0 if the result is counted from the new value,
/// which it is nearer to.
pub fn lerp_weight(weight: f64) -> f64 {
    if weight.abs() < 0.5 { weight } else { weight - 1.0 }
}

/// `torch.lerp(old, new, weight)`, which counts from the end that the result is nearer to.
fn lerp(old: &Expr, new: &Expr, weight: f64) -> Expr {
    let difference = new.clone() - old.clone();
    if weight.abs() < 0.5 {
        old.clone() + float(weight) * difference
    } else {
        new.clone() - difference * (1.0 - weight)
    }
}

/// The mean of `old` and `new` that decays by the attribute `decay`, or by input `weight` if it is given.
fn decaying_mean(cx: &OpCx, old: &Expr, new: &Expr, decay: &str, weight: usize) -> Result<Expr> {
    let Some(weight) = given(cx, weight) else { return Ok(lerp(old, new, 1.0 - cx.float(decay)?)) };
    let difference = new.clone() - old.clone();
    let end = weight.clone().gt(float(0.0)).select(old.clone(), new.clone());
    Ok(end + weight * difference)
}

/// `decay · old + (1 − decay) · g²`.
fn mean_square(old: &Expr, g: &Expr, decay: f64) -> Expr {
    weighted_square(old, g, float(decay), float(1.0 - decay))
}

/// The same by the attribute `decay`, or by inputs `first` and the next one if they are given.
fn decaying_square(cx: &OpCx, old: &Expr, g: &Expr, decay: &str, first: usize) -> Result<Expr> {
    if cx.opt(first).is_none() {
        return Ok(mean_square(old, g, cx.float(decay)?));
    }
    let [decay, weight] = taken(cx, first)?;
    Ok(weighted_square(old, g, decay, weight))
}

/// `decay · old + weight · g²`.
fn weighted_square(old: &Expr, g: &Expr, decay: Expr, weight: Expr) -> Expr {
    old.clone() * decay + weight * g.clone() * g.clone()
}

/// The attribute `momentum`, or input `i` if it is given.
fn momentum(cx: &OpCx, i: usize) -> Result<Expr> {
    match given(cx, i) {
        Some(momentum) => Ok(momentum),
        None => Ok(float(cx.opt_float("momentum")?.unwrap_or(0.0))),
    }
}

/// The outputs of a step, given as pairs of new and old: the old ones unless `apply`.
fn applied<const N: usize>(apply: &Expr, pairs: [Option<(Expr, Expr)>; N]) -> Vec<Expr> {
    let chosen = |(new, old)| apply.clone().select(new, old);
    pairs.into_iter().flatten().map(chosen).collect()
}

/// A test case of an optimizer: parameter, gradient and `moments`, all of 5 elements, in the ranges given
/// (`None`: absent). Then come scale, apply and `scalars` in the ranges given.
fn case(name: &'static str, moments: &[Option<(f64, f64)>], apply: bool, scalars: &[(f64, f64)]) -> Case {
    let mut case = Case::new(name).f(&[5]).f(&[5]);
    for m in moments {
        case = match *m {
            Some((low, high)) => case.range(&[5], low, high),
            None => case.none(),
        };
    }
    case = case.range(&[], 0.5, 1.0).arg(DType::Bool, &[], Sample::Values(vec![apply as u8 as f64]));
    scalars.iter().fold(case, |c, &(low, high)| c.range(&[], low, high))
}
