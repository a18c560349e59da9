//! Instance normalisation: Ulyanov, Vedaldi and Lempitsky 2016.

use super::batch_norm::BATCH_NORM;
use super::stat_dtype;
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::reduce::mean::MEAN;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};

/// Batch norm of each sample by itself: `(input, weight?, bias?, running_mean?, running_var?)`. Outputs: the
/// result and, if there are running statistics, their new contents: the mean over the samples of what batch
/// norm makes of them.
pub static INSTANCE_NORM: OpDef = OpDef {
    name: "instance_norm",
    schemas: &[
        "instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, bool use_input_stats, float momentum, float eps, bool cudnn_enabled) -> Tensor",
    ],
    infer: |cx| {
        let x = cx.ty(0)?;
        stat_dtype(x.dtype)?;
        ensure!(x.shape.rank() >= 2, Shape, "instance norm needs [batch, channels, ...], got {x}");
        (1..5).try_for_each(|i| cx.expect_floats(i, &x.shape[1..2]))?;
        ensure!(
            cx.opt(3).is_some() == cx.opt(4).is_some()
                && (cx.flag("use_input_stats")? || cx.opt(3).is_some()),
            Attribute,
            "without input statistics, running mean and variance are needed"
        );
        Ok([cx.opt(0), cx.opt(3), cx.opt(4)].into_iter().flatten().cloned().collect())
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::PerOutput(8),
    body: Body::Decompose(decompose),
    cases: || {
        let attrs = |c: Case, own: bool| {
            c.attr("use_input_stats", own)
                .attr("momentum", 0.1)
                .attr("eps", 1e-5)
                .attr("cudnn_enabled", false)
        };
        let case = |name| Case::new(name).f(&[2, 3, 4]).f(&[3]).f(&[3]);
        vec![
            attrs(case("input").none().none(), true),
            attrs(case("input and running").f(&[3]).range(&[3], 0.5, 2.0), true),
            attrs(case("running").f(&[3]).range(&[3], 0.5, 2.0), false),
        ]
    },
};

fn decompose(b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]) -> Result<Vec<ValueId>> {
    let x = cx.shape(0)?;
    let (samples, channels) = (x[0], x[1]);
    // Samples become channels of one sample.
    let mut folded = x.to_vec();
    (folded[0], folded[1]) = (1, samples * channels);
    let mut args = Vec::new();
    for (i, v) in inputs.iter().enumerate() {
        args.push(match *v {
            Some(v) if i == 0 => Some(b.reshape(v, &folded)?),
            Some(v) => {
                let v = b.expand(v, &[samples, channels])?;
                Some(b.reshape(v, &[samples * channels])?)
            }
            None => None,
        });
    }
    let attrs = Attrs::new()
        .with("training", cx.flag("use_input_stats")?)
        .with("momentum", cx.float("momentum")?)
        .with("eps", cx.float("eps")?);
    let outs = b.apply(&BATCH_NORM, &args, attrs)?;
    let mut results = vec![b.reshape(outs[0], x)?];
    for &v in &outs[3..] {
        let v = b.reshape(v, &[samples, channels])?;
        results.push(b.one(&MEAN, &[v], Attrs::new().with("dim", [0]))?);
    }
    Ok(results)
}
