//! Adam: settings and the numbers of each step.

use super::{Moment, Rule, Span, UpdateRule, check_betas, check_eps, rates};
use crate::error::Result;
use headwater_core::ops::update::adam::ADAM;
use headwater_core::{Attrs, Builder, ValueId};
use serde::{Deserialize, Serialize};

/// `torch.optim.Adam`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adam {
    /// Peak learning rate.
    pub lr: f64,
    /// Decay rates of the moments.
    pub betas: (f64, f64),
    /// Added to the denominator after bias correction.
    pub eps: f64,
    /// Added to the gradient, times the parameter.
    pub weight_decay: f64,
    /// Divides by the largest second moment so far (AMSGrad).
    pub amsgrad: bool,
    /// Goes up the gradient.
    pub maximize: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Adam { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, amsgrad: false, maximize: false }
    }
}

impl UpdateRule for Adam {
    fn by_element(&self) -> bool {
        true
    }
    fn moments(&self) -> Vec<Option<Moment>> {
        let largest = self.amsgrad.then(|| Moment::squares("max_exp_avg_sq"));
        vec![Some(Moment::new("exp_avg")), Some(Moment::squares("exp_avg_sq")), largest]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["step_size", "bias_correction2_sqrt"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let attrs = Attrs::new()
            .with("beta1", self.betas.0)
            .with("beta2", self.betas.1)
            .with("eps", self.eps)
            .with("weight_decay", self.weight_decay)
            .with("maximize", self.maximize);
        span.apply(b, &ADAM, attrs)
    }
}

impl Rule for Adam {
    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        let correction = |beta: f64| 1.0 - beta.powf(t as f64);
        vec![lr / correction(self.betas.0), correction(self.betas.1).sqrt()]
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn check(&self) -> Result<()> {
        rates(self.lr, self.weight_decay)?;
        check_betas(self.betas)?;
        check_eps(self.eps)
    }
}
