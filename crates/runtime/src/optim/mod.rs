//! Optimizers: their settings, what they keep for each parameter, the numbers of each step, and how their
//! operators (`ops::update` of the core) update a bucket. The graph of one step over all buckets is
//! `core::train::update_graph`.

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

use crate::error::{Error, Result};
pub use headwater_core::train::{Clip, Moment, Span, UpdateRule};
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

/// Settings of an optimizer as numbers, beside its update of a bucket.
pub trait Rule: UpdateRule {
    /// Values of [`UpdateRule::scalars`] at optimizer step `t`, counted from 1.
    fn values(&self, _: u64, lr: f64) -> Vec<f64> {
        vec![lr]
    }
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

    /// Its name as papers and PyTorch spell it.
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Adadelta(_) => "Adadelta",
            Optimizer::Adagrad(_) => "Adagrad",
            Optimizer::Adam(_) => "Adam",
            Optimizer::AdamP(_) => "AdamP",
            Optimizer::AdamW(_) => "AdamW",
            Optimizer::BertAdam(_) => "BertAdam",
            Optimizer::Lamb(_) => "LAMB",
            Optimizer::Larc(_) => "LARC",
            Optimizer::NovoGrad(_) => "NovoGrad",
            Optimizer::RmsProp(_) => "RMSprop",
            Optimizer::RmsPropTf(_) => "RMSpropTF",
            Optimizer::Sgd(_) => "SGD",
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
