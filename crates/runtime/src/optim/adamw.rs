//! AdamW: settings and the numbers of each step, computed in f64.

use super::{Rule, within};
use crate::error::{Error, Result};
use headwater_core::ops::update::adamw::ADAMW;
use headwater_core::{Attrs, OpDef};
use serde::{Deserialize, Serialize};

/// `torch.optim.AdamW`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamW {
    /// Peak learning rate.
    pub lr: f64,
    /// Decay rates of the moments.
    pub betas: (f64, f64),
    /// Added to the denominator after bias correction.
    pub eps: f64,
    /// Decoupled weight decay, times the learning rate in each step.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        AdamW { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 1e-2 }
    }
}

impl Rule for AdamW {
    fn op(&self) -> &'static OpDef {
        &ADAMW
    }

    fn moments(&self) -> Vec<Option<&'static str>> {
        vec![Some("exp_avg"), Some("exp_avg_sq")]
    }

    fn scalars(&self) -> &'static [&'static str] {
        &["decay", "step_size", "bias_correction2_sqrt"]
    }

    fn values(&self, t: u64, lr: f64, decays: bool) -> Vec<f64> {
        let decay = if decays { 1.0 - lr * self.weight_decay } else { 1.0 };
        let correction = |beta: f64| 1.0 - beta.powf(t as f64);
        vec![decay, lr / correction(self.betas.0), correction(self.betas.1).sqrt()]
    }

    fn attrs(&self, _: bool) -> Attrs {
        Attrs::new().with("beta1", self.betas.0).with("beta2", self.betas.1).with("eps", self.eps)
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn check(&self) -> Result<()> {
        within("lr", self.lr, 0.0, f64::INFINITY)?;
        within("betas", self.betas.0, 0.0, 1.0)?;
        within("betas", self.betas.1, 0.0, 1.0)?;
        within("weight_decay", self.weight_decay, 0.0, f64::INFINITY)?;
        if self.eps > 0.0 && self.eps.is_finite() {
            return Ok(());
        }
        Err(Error::config("eps", format!("must be positive, it is {}", self.eps)))
    }
}
