//! SGD: settings and the numbers of each step.

use super::{Rule, within};
use crate::error::{Error, Result};
use headwater_core::ops::update::sgd::SGD;
use headwater_core::{Attrs, OpDef};
use serde::{Deserialize, Serialize};

/// `torch.optim.SGD`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sgd {
    /// Peak learning rate.
    pub lr: f64,
    /// Momentum; 0: none.
    pub momentum: f64,
    /// What of each gradient is kept out of the momentum buffer, from the second step on.
    pub dampening: f64,
    /// Added to the gradient, times the parameter.
    pub weight_decay: f64,
    /// Nesterov's momentum.
    pub nesterov: bool,
}

impl Default for Sgd {
    fn default() -> Self {
        Sgd { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

impl Rule for Sgd {
    fn op(&self) -> &'static OpDef {
        &SGD
    }

    fn moments(&self) -> Vec<Option<&'static str>> {
        vec![(self.momentum != 0.0).then_some("momentum_buffer")]
    }

    fn scalars(&self) -> &'static [&'static str] {
        &["lr", "gain"]
    }

    fn values(&self, t: u64, lr: f64, _: bool) -> Vec<f64> {
        vec![lr, if t == 1 { 1.0 } else { 1.0 - self.dampening }]
    }

    fn attrs(&self, decays: bool) -> Attrs {
        let decay = if decays { self.weight_decay } else { 0.0 };
        Attrs::new()
            .with("momentum", self.momentum)
            .with("weight_decay", decay)
            .with("nesterov", self.nesterov)
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn check(&self) -> Result<()> {
        within("lr", self.lr, 0.0, f64::INFINITY)?;
        within("momentum", self.momentum, 0.0, f64::INFINITY)?;
        within("dampening", self.dampening, f64::NEG_INFINITY, f64::INFINITY)?;
        within("weight_decay", self.weight_decay, 0.0, f64::INFINITY)?;
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err(Error::config("nesterov", "needs momentum and no dampening"));
        }
        Ok(())
    }
}
