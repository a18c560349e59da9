//! Dropout: Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov 2014.

use super::{draw, transform::UNIFORM_BELOW};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision};
use crate::tensor::TensorType;

/// Elements survive with probability `1 − p` and are scaled up by its inverse. The input itself when not
/// training, or with `p` 0.
pub static DROPOUT: OpDef = OpDef {
    name: "dropout",
    schemas: &["dropout(Tensor input, float p, bool train) -> Tensor"],
    infer: |cx| same(cx).map(|t| vec![t]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let x = inputs[0].expect("typed");
        if !active(cx)? {
            return Ok(vec![x]);
        }
        let kept = survivors(b, cx, &cx.shape(0)?.clone())?;
        Ok(vec![scaled(b, cx, x, kept)?])
    }),
    cases,
};

/// [`DROPOUT`] and the mask of survivors.
pub static NATIVE_DROPOUT: OpDef = OpDef {
    name: "native_dropout",
    schemas: &["native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)"],
    infer: |cx| {
        let x = same(cx)?;
        let mask = TensorType::new(DType::Bool, x.shape.clone());
        Ok(vec![x, mask])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let x = inputs[0].expect("typed");
        let shape = cx.shape(0)?.clone();
        if !active(cx)? {
            return Ok(vec![x, b.full(&TensorType::new(DType::Bool, shape), 1.0)?]);
        }
        let kept = survivors(b, cx, &shape)?;
        Ok(vec![scaled(b, cx, x, kept)?, kept])
    }),
    cases,
};

/// Dropout of whole channels: one decision for each of the first two dimensions' elements.
pub static FEATURE_DROPOUT: OpDef = OpDef {
    name: "feature_dropout",
    schemas: &["feature_dropout(Tensor input, float p, bool train) -> Tensor"],
    infer: |cx| same(cx).map(|t| vec![t]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| {
        let x = inputs[0].expect("typed");
        if !active(cx)? {
            return Ok(vec![x]);
        }
        let kept = survivors(b, cx, &channels(cx)?)?;
        Ok(vec![scaled(b, cx, x, kept)?])
    }),
    cases: || vec![Case::new("channels").f(&[2, 3, 2, 2]).attr("p", 0.5).attr("train", true)],
};

/// Dropout that keeps mean and variance of self-normalizing activations: Klambauer, Unterthiner, Mayr and
/// Hochreiter 2017. What is dropped becomes `−α`, then all is scaled and shifted.
pub static ALPHA_DROPOUT: OpDef = OpDef {
    name: "alpha_dropout",
    schemas: &["alpha_dropout(Tensor input, float p, bool train) -> Tensor"],
    infer: |cx| same(cx).map(|t| vec![t]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| alpha(b, cx, inputs, &cx.shape(0)?.clone())),
    cases,
};

/// [`ALPHA_DROPOUT`] of whole channels.
pub static FEATURE_ALPHA_DROPOUT: OpDef = OpDef {
    name: "feature_alpha_dropout",
    schemas: &["feature_alpha_dropout(Tensor input, float p, bool train) -> Tensor"],
    infer: |cx| same(cx).map(|t| vec![t]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Same,
    cost: Cost::Free,
    body: Body::Decompose(|b, cx, inputs| alpha(b, cx, inputs, &channels(cx)?)),
    cases: || vec![Case::new("channels").f(&[2, 3, 2, 2]).attr("p", 0.5).attr("train", true)],
};

fn cases() -> Vec<Case> {
    vec![
        Case::new("training").f(&[4, 5]).attr("p", 0.3).attr("train", true),
        Case::new("evaluation").f(&[4, 5]).attr("p", 0.3).attr("train", false),
        Case::new("p is 0").f(&[3]).attr("p", 0.0).attr("train", true),
        Case::new("p is 1").f(&[3]).attr("p", 1.0).attr("train", true),
    ]
}

fn same(cx: &OpCx) -> Result<TensorType> {
    let (x, p) = (cx.ty(0)?, probability(cx)?);
    ensure!(x.dtype.is_float(), DType, "dropout needs floats, got {x}");
    ensure!((0.0..=1.0).contains(&p), Attribute, "`p` must be between 0 and 1, got {p}");
    Ok(x.clone())
}

fn probability(cx: &OpCx) -> Result<f64> {
    cx.float("p")
}

/// `native_dropout`'s absent `train` means true; elsewhere it is never absent.
fn active(cx: &OpCx) -> Result<bool> {
    Ok(probability(cx)? > 0.0 && cx.opt_int("train")?.unwrap_or(1) != 0)
}

/// The shape that repeats one number over each channel.
fn channels(cx: &OpCx) -> Result<crate::Shape> {
    let x = cx.shape(0)?;
    ensure!(x.rank() >= 2, Shape, "dropout of channels needs [N, C, ...], got {x}");
    Ok(x.iter().enumerate().map(|(d, &n)| if d < 2 { n } else { 1 }).collect())
}

fn survivors(b: &mut Builder, cx: &OpCx, shape: &crate::Shape) -> Result<ValueId> {
    let u = draw(b, shape, DType::F32)?;
    let attrs = Attrs::new().with("p", 1.0 - probability(cx)?).with("dtype", DType::Bool);
    b.one(&UNIFORM_BELOW, &[u], attrs)
}

fn scaled(b: &mut Builder, cx: &OpCx, x: ValueId, kept: ValueId) -> Result<ValueId> {
    let p = probability(cx)?;
    let y = b.mul(x, kept)?;
    b.scale(y, if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 })
}

fn alpha(
    b: &mut Builder,
    cx: &OpCx,
    inputs: &[Option<ValueId>],
    shape: &crate::Shape,
) -> Result<Vec<ValueId>> {
    // λα of the scaled exponential linear unit.
    const ALPHA: f64 = 1.758_099_340_847_376_6;
    let x = inputs[0].expect("typed");
    if !active(cx)? {
        return Ok(vec![x]);
    }
    let p = probability(cx)?;
    let kept = survivors(b, cx, shape)?;
    let y = b.mul(x, kept)?;
    if p == 1.0 {
        return Ok(vec![b.scale(y, 0.0)?]);
    }
    let a = 1.0 / ((ALPHA * ALPHA * p + 1.0) * (1.0 - p)).sqrt();
    // −α where dropped, that is α · kept − α; times a, plus the shift a·α·p.
    let kept = b.cast(kept, cx.dtype(0)?)?;
    let filled = b.scale(kept, ALPHA * a)?;
    let shift = Attrs::new().with("other", ALPHA * a * (p - 1.0));
    let filled = b.one(&crate::ops::pointwise::add::ADD, &[filled], shift)?;
    let y = b.scale(y, a)?;
    Ok(vec![b.add(y, filled)?])
}
