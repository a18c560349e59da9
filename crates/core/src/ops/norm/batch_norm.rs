//! Batch normalisation: Ioffe and Szegedy 2015. Every spelling becomes one of two operators, by `training`.

use super::{affine, backward, moments, only, output_mask, stat_dtype};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::expr::{float, input};
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision};
use crate::row::{ReduceSpace, RowBuilder};
use crate::tensor::TensorType;
use crate::{ensure, fail};

/// Normalises each channel (dimension 1) of `(input, weight?, bias?, running_mean?, running_var?)`.
///
/// Outputs: result; mean and reciprocal standard deviation of the batch (empty unless training). If there are
/// running statistics, their new contents follow, which are the old ones unless training.
pub static BATCH_NORM: OpDef = OpDef {
    name: "batch_norm",
    schemas: &[
        "batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor",
        "native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        "_native_batch_norm_legit(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, Tensor(b!) running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        "_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        "_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)",
        "_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
    ],
    infer: |cx| {
        let (x, c) = (cx.ty(0)?, channels(cx, 0, &[1, 2, 3, 4])?);
        let stats = if cx.flag("training")? { c } else { 0 };
        let stat = TensorType::new(stat_dtype(x.dtype)?, [stats]);
        running_pair(cx)?;
        ensure!(
            cx.flag("training")? || cx.opt(3).is_some(),
            Attribute,
            "evaluation needs running mean and variance"
        );
        let running = [cx.opt(3), cx.opt(4)].into_iter().flatten().cloned();
        Ok([x.clone(), stat.clone(), stat].into_iter().chain(running).collect())
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::PerOutput(8),
    body: Body::Decompose(decompose),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 3, 2]).f(&[3]).f(&[3]);
        let attrs = |c: Case, training: bool| {
            c.attr("training", training).attr("momentum", 0.1).attr("eps", 1e-5).attr("cudnn_enabled", false)
        };
        vec![
            attrs(case("training").f(&[3]).range(&[3], 0.5, 2.0), true),
            attrs(case("without running statistics").none().none(), true),
            attrs(case("evaluation").f(&[3]).range(&[3], 0.5, 2.0), false),
            attrs(Case::new("no affine").f(&[4, 3]).none().none().f(&[3]).range(&[3], 0.5, 2.0), true),
        ]
    },
};

fn decompose(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<Vec<ValueId>> {
    let at = |i: usize| inputs.get(i).copied().flatten();
    let attrs = Attrs::new().with("eps", cx.float("eps")?);
    if cx.flag("training")? {
        let inputs = [at(0), at(1), at(2), at(3), at(4)];
        return b.apply(&BATCH_NORM_TRAIN, &inputs, attrs.with("momentum", cx.float("momentum")?));
    }
    let y = b.apply(&BATCH_NORM_EVAL, &[at(0), at(1), at(2), at(3), at(4)], attrs)?[0];
    let none = b.full(&TensorType::new(stat_dtype(cx.dtype(0)?)?, [0]), 0.0)?;
    Ok([y, none, none].into_iter().chain(at(3)).chain(at(4)).collect())
}

/// [`BATCH_NORM`] by the statistics of the batch: `(x − mean) / sqrt(var + eps) · weight + bias`, variance
/// biased. With running statistics `r`, these become `(1 − momentum) · r + momentum · batch`, the batch's
/// variance unbiased. Outputs: result, mean, reciprocal standard deviation, new running mean, new running
/// variance.
pub static BATCH_NORM_TRAIN: OpDef = OpDef {
    name: "batch_norm_train",
    schemas: &[],
    infer: |cx| {
        let (x, c) = (cx.ty(0)?, channels(cx, 0, &[1, 2, 3, 4])?);
        let stat = TensorType::new(stat_dtype(x.dtype)?, [c]);
        running_pair(cx)?;
        let running = [cx.opt(3), cx.opt(4)].into_iter().flatten().cloned();
        Ok([x.clone(), stat.clone(), stat].into_iter().chain(running).collect())
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        cx.only_outputs_before(1)?;
        let (g, x, w) = (cx.grad(0)?, cx.x(0)?, cx.opt_x(1));
        let inputs = [Some(g), Some(x), w, Some(cx.y(1)), Some(cx.y(2))];
        backward(cx, &BATCH_NORM_BACKWARD, &inputs, Attrs::new().with("training", true), 3, None)
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(8),
    body: Body::Rows(|cx, out| {
        let (x, space) = (cx.ty(0)?, space(cx, 0)?);
        let n: usize = space.inner.iter().product();
        let mut b = space.builder();
        let v = b.read(x.dtype, space.full.clone());
        let [weight, bias, running_mean, running_var] = [1, 2, 3, 4].map(|i| param(cx, &space, &mut b, i));
        let [mean, var, centred] = moments(&mut b, v, n);
        let invstd = b.expr(&(input(0) + cx.float("eps")?).rsqrt(), &[var]);
        let y = b.expr(&(input(0) * input(1)), &[centred, invstd]);
        let y = affine(&mut b, y, weight, bias);
        b.store(out[0].dtype, space.full.clone(), y);
        b.store(out[1].dtype, space.along(1), mean);
        b.store(out[2].dtype, space.along(1), invstd);
        if let (Some(old_mean), Some(old_var)) = (running_mean, running_var) {
            let m = cx.float("momentum")?;
            let mix = input(0) * (1.0 - m) + input(1) * m;
            let unbiased = b.expr(&(input(0) * (n as f64 / (n as f64 - 1.0))), &[var]);
            let mean = b.expr(&mix, &[old_mean, mean]);
            let var = b.expr(&mix, &[old_var, unbiased]);
            b.store(out[3].dtype, space.along(1), mean);
            b.store(out[4].dtype, space.along(1), var);
        }
        Ok(b.finish())
    }),
    cases: || {
        let attrs = |c: Case| c.attr("momentum", 0.1).attr("eps", 1e-5);
        let running = |c: Case, n: usize| c.f(&[n]).range(&[n], 0.5, 2.0);
        vec![
            attrs(running(Case::new("running").f(&[2, 3, 2, 2]).f(&[3]).f(&[3]), 3)),
            attrs(Case::new("affine").f(&[4, 3]).f(&[3]).f(&[3])),
            attrs(running(Case::new("plain").f(&[2, 3, 2]).none().none(), 3)),
        ]
    },
};

/// [`BATCH_NORM`] by the running statistics: one output.
pub static BATCH_NORM_EVAL: OpDef = OpDef {
    name: "batch_norm_eval",
    schemas: &[],
    infer: |cx| {
        channels(cx, 0, &[1, 2, 3, 4])?;
        stat_dtype(cx.dtype(0)?)?;
        cx.ty(3).and(cx.ty(4))?;
        Ok(vec![cx.ty(0)?.clone()])
    },
    derivative: Derivative::Rule(|cx: &mut GradCx| {
        let (g, x, w) = (cx.grad(0)?, cx.x(0)?, cx.opt_x(1));
        let inputs = [Some(g), Some(x), w, cx.opt_x(3), cx.opt_x(4)];
        let eps = cx.args().float("eps")?;
        backward(
            cx,
            &BATCH_NORM_BACKWARD,
            &inputs,
            Attrs::new().with("training", false).with("eps", eps),
            5,
            None,
        )
    }),
    precision: Precision::Same,
    cost: Cost::PerOutput(4),
    body: Body::Rows(|cx, out| {
        // No row is summed: rows are those of pointwise programs, with which it fuses.
        let x = cx.ty(0)?;
        let space = ReduceSpace::new(&x.shape, &[x.shape.rank() - 1]);
        let mut b = space.builder();
        let v = b.read(x.dtype, space.full.clone());
        let [weight, bias, mean, var] = [1, 2, 3, 4].map(|i| param(cx, &space, &mut b, i));
        let (mean, var) = mean.zip(var).ok_or_else(|| fail!(Attribute, "running statistics are missing"))?;
        let invstd = b.expr(&(input(0) + cx.float("eps")?).rsqrt(), &[var]);
        let y = b.expr(&((input(0) - input(1)) * input(2)), &[v, mean, invstd]);
        let y = affine(&mut b, y, weight, bias);
        b.store(out[0].dtype, space.full.clone(), y);
        Ok(b.finish())
    }),
    cases: || {
        let stats = |c: Case| c.f(&[3]).range(&[3], 0.5, 2.0).attr("eps", 1e-5);
        vec![
            stats(Case::new("affine").f(&[2, 3, 2]).f(&[3]).f(&[3])),
            stats(Case::new("plain").f(&[4, 3]).none().none()),
        ]
    },
};

/// Gradients of batch norm: `(grad_out, input, weight?, mean, spread)` to those of `(input, weight, bias)`,
/// in evaluation also of the statistics `(mean, spread)`, that `output_mask` names. Training: `spread` is the
/// reciprocal standard deviation, and with h the normalised input and n elements a channel, `dx = w · invstd
/// · (g − Σ g / n − h · Σ g·h / n)`. Evaluation: it is the variance, and `dx = w · invstd · g`. Both:
/// `dweight = Σ g·h`, `dbias = Σ g`.
pub static BATCH_NORM_BACKWARD: OpDef = OpDef {
    name: "native_batch_norm_backward",
    schemas: &[],
    infer: |cx| {
        let c = channels(cx, 1, &[2, 3, 4])?;
        cx.expect_floats(0, cx.shape(1)?)?;
        let param = cx.opt(2).map_or(stat_dtype(cx.dtype(1)?)?, |w| w.dtype);
        let param = TensorType::new(param, [c]);
        let all = [cx.ty(1)?, &param, &param, cx.ty(3)?, cx.ty(4)?];
        Ok(only(&grad_mask(cx)?, all).cloned().collect())
    },
    derivative: Derivative::NotDifferentiable("second derivatives are not taken"),
    precision: Precision::Same,
    cost: Cost::PerInput(10),
    body: Body::Rows(|cx, out| {
        let (x, space) = (cx.ty(1)?, space(cx, 1)?);
        let n: usize = space.inner.iter().product();
        let mut b = space.builder();
        let g = b.read(cx.dtype(0)?, space.full.clone());
        let v = b.read(x.dtype, space.full.clone());
        let weight = param(cx, &space, &mut b, 2);
        let mean = b.read(cx.dtype(3)?, space.along(1));
        let mut invstd = b.read(cx.dtype(4)?, space.along(1));
        let training = cx.flag("training")?;
        if !training {
            invstd = b.expr(&(input(0) + cx.float("eps")?).rsqrt(), &[invstd]);
        }
        let hat = b.expr(&((input(0) - input(1)) * input(2)), &[v, mean, invstd]);
        let gh = b.expr(&(input(0) * input(1)), &[g, hat]);
        let (sum, along) = (b.sum(g), b.sum(gh));
        let mut out = out.iter();
        let slope = affine(&mut b, invstd, weight, None);
        for i in only(&grad_mask(cx)?, 0..5) {
            let Some(ty) = out.next() else { break };
            match i {
                0 => {
                    let mean =
                        if training { (input(1) + input(2) * input(3)) / n as f64 } else { float(0.0) };
                    let dx = b.expr(&((input(0) - mean) * input(4)), &[g, sum, hat, along, slope]);
                    b.store(ty.dtype, space.full.clone(), dx);
                }
                1 => b.store(ty.dtype, space.along(1), along),
                2 => b.store(ty.dtype, space.along(1), sum),
                3 => {
                    let mean = b.expr(&(-(input(0) * input(1))), &[slope, sum]);
                    b.store(ty.dtype, space.along(1), mean);
                }
                _ => {
                    let var = b.expr(&(input(0) * input(1) * input(2) * -0.5), &[slope, invstd, along]);
                    b.store(ty.dtype, space.along(1), var);
                }
            }
        }
        Ok(b.finish())
    }),
    cases: || {
        let case = |name| Case::new(name).f(&[2, 3, 2]).f(&[2, 3, 2]);
        let stats = |c: Case| c.f(&[3]).range(&[3], 0.5, 2.0);
        vec![
            stats(case("training").f(&[3])).attr("training", true).attr("output_mask", [1, 1, 1]),
            stats(case("evaluation").f(&[3]))
                .attr("training", false)
                .attr("eps", 1e-5)
                .attr("output_mask", [1, 1, 1, 1, 1]),
            stats(case("bias alone").none()).attr("training", true).attr("output_mask", [0, 0, 1]),
        ]
    },
};

/// Number of channels of input `x`; the inputs `params` that are present must be float vectors of that
/// length.
fn channels(cx: &OpCx, x: usize, params: &[usize]) -> Result<usize> {
    let x = cx.shape(x)?;
    ensure!(x.rank() >= 2, Shape, "batch norm needs [batch, channels, ...], got {x}");
    params.iter().try_for_each(|&i| cx.expect_floats(i, &x[1..2]))?;
    Ok(x[1])
}

/// Running mean and variance must be given both or neither.
fn running_pair(cx: &OpCx) -> Result<()> {
    ensure!(cx.opt(3).is_some() == cx.opt(4).is_some(), Attribute, "running mean and variance come together");
    Ok(())
}

/// Rows are channels, columns everything else.
fn space(cx: &OpCx, x: usize) -> Result<ReduceSpace> {
    let x = cx.shape(x)?;
    Ok(ReduceSpace::new(x, &(0..x.rank()).filter(|&d| d != 1).collect::<Vec<_>>()))
}

/// Which gradients are computed: three in training, the statistics' as well in evaluation.
fn grad_mask(cx: &OpCx) -> Result<Vec<bool>> {
    output_mask(cx, if cx.flag("training")? { 3 } else { 5 })
}

fn param(cx: &OpCx, space: &ReduceSpace, b: &mut RowBuilder, i: usize) -> Option<usize> {
    cx.opt(i).map(|t| b.read(t.dtype, space.along(1)))
}
