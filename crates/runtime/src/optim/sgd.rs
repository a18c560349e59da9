//! SGD: settings and the numbers of each step.

use super::{Moment, Rule, Span, UpdateRule, rates, within};
use crate::error::{Error, Result};
use headwater_core::ops::update::sgd::SGD;
use headwater_core::{Attrs, Builder, ValueId};
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
    /// Goes up the gradient.
    pub maximize: bool,
}

impl Default for Sgd {
    fn default() -> Self {
        let none = 0.0;
        Sgd {
            lr: 1e-3,
            momentum: none,
            dampening: none,
            weight_decay: none,
            nesterov: false,
            maximize: false,
        }
    }
}

impl UpdateRule for Sgd {
    fn by_element(&self) -> bool {
        // With momentum, PyTorch moves rows that no gradient names.
        self.momentum == 0.0
    }
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![(self.momentum != 0.0).then(|| Moment::new("momentum_buffer"))]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["lr", "gain"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let attrs = Attrs::new()
            .with("momentum", self.momentum)
            .with("weight_decay", self.weight_decay)
            .with("nesterov", self.nesterov)
            .with("maximize", self.maximize);
        span.apply(b, &SGD, attrs)
    }
}

impl Rule for Sgd {
    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        vec![lr, if t == 1 { 1.0 } else { 1.0 - self.dampening }]
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn check(&self) -> Result<()> {
        rates(self.lr, self.weight_decay)?;
        within("momentum", self.momentum, 0.0, f64::INFINITY)?;
        within("dampening", self.dampening, f64::NEG_INFINITY, f64::INFINITY)?;
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err(Error::config("nesterov", "needs momentum and no dampening"));
        }
        Ok(())
    }
}
