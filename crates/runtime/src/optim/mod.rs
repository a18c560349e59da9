//! Optimizers: their settings, what they keep for each parameter, the numbers of each step, and the graph of
//! one step over the flat buckets. The arithmetic itself is an operator of the core (`ops::update`), one file
//! an optimizer.

mod adadelta;
mod adagrad;
mod adam;
mod adamp;
mod adamw;
mod bert_adam;
mod groups;
mod lamb;
mod larc;
mod novograd;
mod rmsprop;
mod rmsprop_tf;
mod sgd;
mod span;

pub use adadelta::Adadelta;
pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adamp::AdamP;
pub use adamw::AdamW;
pub use bert_adam::BertAdam;
pub use groups::{Decay, Group, Groups};
pub use lamb::Lamb;
pub use larc::Larc;
pub use novograd::NovoGrad;
pub use rmsprop::RmsProp;
pub use rmsprop_tf::RmsPropTf;
pub use sgd::Sgd;
pub use span::Span;

use crate::error::{Error, Result};
use headwater_core::graph::{InputRole, OutputRole, Phase};
use headwater_core::ops::movement::cat::CAT;
use headwater_core::ops::random::philox::PHILOX_UNIFORM;
use headwater_core::ops::reduce::{amax::AMAX, sum::SUM};
use headwater_core::ops::update::gradient_scale::GRADIENT_SCALE;
use headwater_core::ops::update::gradient_statistics::GRADIENT_STATISTICS;
use headwater_core::ops::update::master::{MASTER_JOIN, MASTER_SPLIT};
use headwater_core::ops::update::stochastic_round::STOCHASTIC_ROUND;
use headwater_core::train::{Bucket, BucketLayout, Master};
use headwater_core::{Attrs, Builder, DType, Graph, TensorType, ValueId};
use serde::{Deserialize, Serialize};

/// An optimizer by name, with its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum Optimizer {
    /// `torch.optim.Adadelta`
    #[serde(alias = "Adadelta")]
    Adadelta(Adadelta),
    /// `torch.optim.Adagrad`
    #[serde(alias = "Adagrad")]
    Adagrad(Adagrad),
    /// `torch.optim.Adam`
    #[serde(alias = "Adam")]
    Adam(Adam),
    /// AdamP
    #[serde(alias = "AdamP")]
    AdamP(AdamP),
    /// `torch.optim.AdamW`
    #[serde(alias = "AdamW")]
    AdamW(AdamW),
    /// BERT's own Adam
    #[serde(alias = "BertAdam")]
    BertAdam(BertAdam),
    /// LAMB
    #[serde(alias = "LAMB")]
    Lamb(Lamb),
    /// Layer-wise adaptive rates around another
    #[serde(alias = "LARC")]
    Larc(Larc),
    /// NovoGrad
    #[serde(alias = "NovoGrad")]
    NovoGrad(NovoGrad),
    /// `torch.optim.RMSprop`
    #[serde(alias = "RMSprop")]
    RmsProp(RmsProp),
    /// TensorFlow's RMSprop
    #[serde(alias = "RMSpropTF")]
    RmsPropTf(RmsPropTf),
    /// `torch.optim.SGD`
    #[serde(alias = "SGD")]
    Sgd(Sgd),
}

impl Default for Optimizer {
    fn default() -> Self {
        Optimizer::AdamW(AdamW::default())
    }
}

/// What an optimizer keeps for each parameter, in f32 or wider.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// PyTorch's name.
    pub name: &'static str,
    /// What it is before the first step.
    pub initial: f64,
    /// One number for the whole parameter instead of one for each element.
    pub single: bool,
}

impl Moment {
    /// One for each element that starts at 0.
    pub fn new(name: &'static str) -> Moment {
        Moment { name, initial: 0.0, single: false }
    }

    /// Its type over a whole bucket.
    pub fn span(&self, bucket: &Bucket) -> TensorType {
        let all = bucket.span(bucket.wide());
        if self.single { TensorType::new(all.dtype, [bucket.entries.len()]) } else { all }
    }
}

/// What an optimizer states about itself.
pub trait Rule {
    /// The moments in the operator's order; `None` where the operator has one that this setting leaves out.
    fn moments(&self) -> Vec<Option<Moment>>;
    /// Names of the numbers that change from step to step: the learning rate, unless the rule has others.
    fn scalars(&self) -> Vec<&'static str> {
        vec!["lr"]
    }
    /// Their values at optimizer step `t`, counted from 1.
    fn values(&self, _: u64, lr: f64) -> Vec<f64> {
        vec![lr]
    }
    /// Appends a step over a bucket to a graph. Returns the new parameters, then the new moments that are
    /// there.
    fn step(&self, b: &mut Builder, span: &Span) -> Result<Vec<ValueId>>;
    /// Peak learning rate.
    fn lr(&self) -> f64;
    /// Weight decay of either kind.
    fn weight_decay(&self) -> f64;
    /// Refuses settings out of range.
    fn check(&self) -> Result<()>;
}

impl Optimizer {
    /// Its rule.
    pub fn rule(&self) -> &dyn Rule {
        match self {
            Optimizer::Adadelta(o) => o,
            Optimizer::Adagrad(o) => o,
            Optimizer::Adam(o) => o,
            Optimizer::AdamP(o) => o,
            Optimizer::AdamW(o) => o,
            Optimizer::BertAdam(o) => o,
            Optimizer::Lamb(o) => o,
            Optimizer::Larc(o) => o,
            Optimizer::NovoGrad(o) => o,
            Optimizer::RmsProp(o) => o,
            Optimizer::RmsPropTf(o) => o,
            Optimizer::Sgd(o) => o,
        }
    }

    /// The same with other settings, by name.
    ///
    /// # Errors
    /// `Config` for a setting it does not have, or of another type.
    pub fn with(&self, settings: impl IntoIterator<Item = (String, serde_json::Value)>) -> Result<Optimizer> {
        let wrong = |e: serde_json::Error| Error::config("optimizer", e.to_string());
        let mut all = serde_json::to_value(self).map_err(wrong)?;
        for (name, value) in settings {
            // A wrapper passes on what it does not have.
            let own = all.get("optimizer").is_none() || all.get(&name).is_some();
            let target = if own { &mut all } else { &mut all["optimizer"] };
            target[name] = value;
        }
        serde_json::from_value(all).map_err(wrong)
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
    use headwater_core::{DType, TensorType};

    /// What gradients are multiplied by first (f64): 1 / (micro-batches · loss scale).
    pub const UNSCALE: &str = "unscale";
    /// What the loss is multiplied by before it is differentiated.
    pub const LOSS_SCALE: &str = "loss_scale";
    /// Type of [`LOSS_SCALE`].
    pub fn loss_scale_type() -> TensorType {
        TensorType::new(DType::F32, [0usize; 0])
    }
    /// f32 masters of low-precision parameters, which the optimizer steps, or what they have beyond these.
    pub fn masters(bucket: usize) -> String {
        format!("masters/{bucket}")
    }
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
/// `parameters/<b>`, `gradients/<b>`, `<moment>/<b>` and `scalar/<b>/<name>`. Its first outputs are the norm
/// of the unscaled gradients (f64), the largest magnitude of the gradients as they lie in memory (f64) and
/// whether the step was applied: it is not if the norm is not finite. `accumulated`: gradients are held in
/// [`Bucket::wide`], not in the parameters' dtype.
///
/// # Errors
/// What the operators refuse; none for a layout made by [`BucketLayout::new`].
pub fn update_graph(layout: &BucketLayout, groups: &Groups, clip: Clip, accumulated: bool) -> Result<Graph> {
    let mut b = Builder::new();
    b.phase = Phase::Update;
    let scalar = |dtype| TensorType::new(dtype, [0usize; 0]);
    let mut gradients = Vec::new();
    let (mut squares, mut magnitudes) = (Vec::new(), Vec::new());
    for (i, bucket) in layout.buckets.iter().enumerate() {
        let dtype = if accumulated { bucket.wide() } else { bucket.dtype };
        let g = b.input(names::gradients(i), bucket.span(dtype), InputRole::State);
        let stats = b.apply(&GRADIENT_STATISTICS, &[Some(g)], Attrs::new())?;
        gradients.push((g, stats[0]));
        // Sums over blocks are in f64: a narrow sum of millions of them would lose the small ones.
        squares.push(b.cast(stats[0], DType::F64)?);
        magnitudes.push(b.cast(stats[1], DType::F64)?);
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
        let (wide, rule) = (bucket.wide(), groups.rule(bucket.group));
        let low = b.input(names::parameters(i), bucket.span(bucket.dtype), InputRole::State);
        // The master is what is stepped; the parameter is it, rounded.
        let (param, target) = match (bucket.master, bucket.stochastic) {
            (Master::Whole, _) => {
                let master = b.input(names::masters(i), bucket.span(wide), InputRole::State);
                (master, master)
            }
            (Master::Rest, _) => {
                let rest = b.input(names::masters(i), bucket.span(DType::I16), InputRole::State);
                (b.one(&MASTER_JOIN, &[low, rest], Attrs::new())?, rest)
            }
            (Master::None, true) => (b.cast(low, wide)?, low),
            (Master::None, false) => (low, low),
        };
        let mut targets = vec![target];
        let mut moments = Vec::new();
        for moment in rule.moments() {
            let m = moment.map(|m| b.input(names::moment(i, m.name), m.span(bucket), InputRole::State));
            targets.extend(m);
            moments.push(m);
        }
        let scalars = rule.scalars().into_iter();
        let scalars = scalars.map(|s| b.input(names::scalar(i, s), scalar(wide), InputRole::State)).collect();
        let span = Span {
            bucket,
            param,
            gradient: gradients[i].0,
            squares: gradients[i].1,
            moments,
            scale,
            apply: finite,
            scalars,
            clip_value: clip.value,
        };
        let mut outputs = rule.step(&mut b, &span)?;
        if bucket.stochastic {
            // Streams that no node of a model draws from: those are counted from 0.
            let attrs = Attrs::new().with("size", bucket.span(wide).shape.to_ints());
            let attrs = attrs.with("dtype", wide).with("stream", (1i64 << 31) + i as i64);
            let key = b.rng();
            let noise = b.one(&PHILOX_UNIFORM, &[key], attrs)?;
            let to = Attrs::new().with("dtype", bucket.dtype);
            outputs[0] = b.one(&STOCHASTIC_ROUND, &[outputs[0], noise], to)?;
        }
        let rounded = match bucket.master {
            Master::None => None,
            Master::Whole => Some(b.cast(outputs[0], bucket.dtype)?),
            Master::Rest => {
                let parts = b.apply(&MASTER_SPLIT, &[Some(outputs[0])], Attrs::new())?;
                outputs[0] = parts[1];
                Some(parts[0])
            }
        };
        if let Some(rounded) = rounded {
            outputs.push(rounded);
            targets.push(low);
        }
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
        let ty = bucket.span(bucket.wide());
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

/// Learning rate and weight decay as all optimizers have them.
fn rates(lr: f64, weight_decay: f64) -> Result<()> {
    within("lr", lr, 0.0, f64::INFINITY)?;
    within("weight_decay", weight_decay, 0.0, f64::INFINITY)
}

fn check_betas(betas: (f64, f64)) -> Result<()> {
    within("betas", betas.0, 0.0, 1.0)?;
    within("betas", betas.1, 0.0, 1.0)
}

/// What keeps a denominator from being 0 where no gradient has come yet.
fn check_eps(eps: f64) -> Result<()> {
    if eps > 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(Error::config("eps", format!("must be positive, it is {eps}")))
}
