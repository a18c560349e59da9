//! Optimizers: their settings, what they keep for each parameter, the numbers of each step, and the graph of one step over
//! the flat buckets. The arithmetic itself is an operator of the core (`ops::update`), one file an optimizer.

mod adamw;
mod sgd;

pub use adamw::AdamW;
pub use sgd::Sgd;

use crate::error::{Error, Result};
use crate::layout::{BLOCK, BucketLayout};
use headwater_core::graph::{InputRole, OutputRole, Phase};
use headwater_core::ops::movement::cat::CAT;
use headwater_core::ops::reduce::{amax::AMAX, sum::SUM};
use headwater_core::ops::update::{gradient_scale::GRADIENT_SCALE, gradient_statistics::GRADIENT_STATISTICS};
use headwater_core::{Attrs, Builder, DType, Graph, OpDef, TensorType};
use serde::{Deserialize, Serialize};

/// An optimizer by name, with its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum Optimizer {
    /// `torch.optim.AdamW`
    #[serde(alias = "AdamW")]
    AdamW(AdamW),
    /// `torch.optim.SGD`
    #[serde(alias = "SGD")]
    Sgd(Sgd),
}

impl Default for Optimizer {
    fn default() -> Self {
        Optimizer::AdamW(AdamW::default())
    }
}

/// What an optimizer states about itself.
pub trait Rule {
    /// The operator of a step: reads parameter, gradient, moments, `scale`, `apply`, scalars; writes parameter and moments.
    fn op(&self) -> &'static OpDef;
    /// Names of the moments kept for each parameter, PyTorch's; `None` where the operator has one that this setting leaves
    /// out.
    fn moments(&self) -> Vec<Option<&'static str>>;
    /// Names of the numbers that change from step to step.
    fn scalars(&self) -> &'static [&'static str];
    /// Their values at optimizer step `t`, counted from 1.
    fn values(&self, t: u64, lr: f64, decays: bool) -> Vec<f64>;
    /// Attributes of the operator.
    fn attrs(&self, decays: bool) -> Attrs;
    /// Peak learning rate.
    fn lr(&self) -> f64;
    /// Refuses settings out of range.
    fn check(&self) -> Result<()>;
}

impl Optimizer {
    /// Its rule.
    pub fn rule(&self) -> &dyn Rule {
        match self {
            Optimizer::AdamW(o) => o,
            Optimizer::Sgd(o) => o,
        }
    }
}

/// How gradients are limited before the update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Clip {
    /// Largest global L2 norm, as `clip_grad_norm_`.
    pub norm: Option<f64>,
    /// Largest magnitude of an element, as `clip_grad_value_`.
    pub value: Option<f64>,
}

/// Names of the state that the update graph reads and writes, by bucket.
pub(crate) mod names {
    /// What gradients are multiplied by first (f64): 1 / (micro-batches · loss scale).
    pub const UNSCALE: &str = "unscale";
    pub fn parameters(bucket: usize) -> String {
        format!("parameters/{bucket}")
    }
    pub fn gradients(bucket: usize) -> String {
        format!("gradients/{bucket}")
    }
    pub fn moment(bucket: usize, moment: &str) -> String {
        format!("{moment}/{bucket}")
    }
    pub fn scalar(bucket: usize, scalar: &str) -> String {
        format!("scalar/{bucket}/{scalar}")
    }
}

/// Outputs of the update graph.
pub(crate) const NORM: usize = 0;
pub(crate) const LARGEST: usize = 1;
pub(crate) const APPLIED: usize = 2;

/// The graph of one step over all buckets: measure the gradients, find their scale, update.
///
/// Its inputs are `State`: `unscale` (f64, what gradients are multiplied by first) and for each bucket `b`
/// `parameters/<b>`, `gradients/<b>`, `<moment>/<b>` and `scalar/<b>/<name>`. Its first outputs are the norm of the unscaled
/// gradients (f64), the largest magnitude of the gradients as they lie in memory (f64) and whether the step was applied: it
/// is not if the norm is not finite. `accumulated`: gradients are held in [`crate::layout::Bucket::wide`], not in the
/// parameters' dtype.
///
/// # Errors
/// What the operators refuse; none for a layout made by [`BucketLayout::new`].
pub fn update_graph(layout: &BucketLayout, rule: &dyn Rule, clip: Clip, accumulated: bool) -> Result<Graph> {
    let mut b = Builder::new();
    b.phase = Phase::Update;
    let scalar = |dtype| TensorType::new(dtype, [0usize; 0]);
    let mut gradients = Vec::new();
    let (mut squares, mut magnitudes) = (Vec::new(), Vec::new());
    for (i, bucket) in layout.buckets.iter().enumerate() {
        let dtype = if accumulated { bucket.wide() } else { bucket.dtype };
        let g = b.input(names::gradients(i), TensorType::new(dtype, [bucket.elements]), InputRole::State);
        let blocks = b.reshape(g, &[bucket.elements / BLOCK, BLOCK])?;
        let stats = b.apply(&GRADIENT_STATISTICS, &[Some(blocks)], Attrs::new())?;
        // Sums over blocks are in f64: a narrow sum of millions of them would lose the small ones.
        squares.push(b.cast(stats[0], DType::F64)?);
        magnitudes.push(b.cast(stats[1], DType::F64)?);
        gradients.push(g);
    }
    let squares = b.one(&CAT, &squares, Attrs::new().with("dim", 0))?;
    let squares = b.one(&SUM, &[squares], Attrs::new())?;
    let unscale = b.input(names::UNSCALE, scalar(DType::F64), InputRole::State);
    let mut attrs = Attrs::new();
    if let Some(limit) = clip.norm {
        attrs.set("max_norm", limit);
    }
    let scaled = b.apply(&GRADIENT_SCALE, &[Some(squares), Some(unscale)], attrs)?;
    let (norm, scale, finite) = (scaled[0], scaled[1], scaled[2]);
    let magnitudes = b.one(&CAT, &magnitudes, Attrs::new().with("dim", 0))?;
    let largest = b.one(&AMAX, &[magnitudes], Attrs::new())?;
    b.output("norm", norm, OutputRole::User);
    b.output("largest", largest, OutputRole::User);
    b.output("applied", finite, OutputRole::User);
    for (i, bucket) in layout.buckets.iter().enumerate() {
        let (wide, n) = (bucket.wide(), bucket.elements);
        let p = b.input(names::parameters(i), TensorType::new(bucket.dtype, [n]), InputRole::State);
        let mut inputs = vec![Some(p), Some(gradients[i])];
        let mut targets = vec![p];
        for moment in rule.moments() {
            let m =
                moment.map(|m| b.input(names::moment(i, m), TensorType::new(wide, [n]), InputRole::State));
            targets.extend(m);
            inputs.push(m);
        }
        inputs.push(Some(b.cast(scale, wide)?));
        inputs.push(Some(finite));
        for s in rule.scalars() {
            inputs.push(Some(b.input(names::scalar(i, s), scalar(wide), InputRole::State)));
        }
        let mut attrs = rule.attrs(bucket.decays);
        if let Some(limit) = clip.value {
            attrs.set("clip_value", limit);
        }
        let outputs = b.apply(rule.op(), &inputs, attrs)?;
        for (target, new) in targets.into_iter().zip(outputs) {
            let name = b.graph().inputs[b.graph().input_index(target).expect("a state input")].name.clone();
            b.output(name, new, OutputRole::Mutation(target));
        }
    }
    Ok(b.finish())
}

/// Sets all gradients to zero before the first micro-batch is accumulated.
pub(crate) fn zero_graph(layout: &BucketLayout) -> Result<Graph> {
    let mut b = Builder::new();
    b.phase = Phase::Update;
    for (i, bucket) in layout.buckets.iter().enumerate() {
        let ty = TensorType::new(bucket.wide(), [bucket.elements]);
        let g = b.input(names::gradients(i), ty.clone(), InputRole::State);
        let zero = b.full(&ty, 0.0)?;
        b.output(names::gradients(i), zero, OutputRole::Mutation(g));
    }
    Ok(b.finish())
}

/// Refuses a number outside `[low, high)`, NaN included.
fn within(setting: &'static str, x: f64, low: f64, high: f64) -> Result<()> {
    if x >= low && x < high {
        return Ok(());
    }
    Err(Error::config(setting, format!("must be at least {low} and below {high}, it is {x}")))
}
