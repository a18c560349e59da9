//! Adadelta: settings and the numbers of each step.

use super::{Moment, Rule, Span, UpdateRule, check_eps, rates, within};
use crate::error::Result;
use headwater_core::ops::update::adadelta::ADADELTA;
use headwater_core::{Attrs, Builder, ValueId};
use serde::{Deserialize, Serialize};

/// `torch.optim.Adadelta`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adadelta {
    /// Peak learning rate: what the computed step is multiplied by.
    pub lr: f64,
    /// Decay rate of the mean squares.
    pub rho: f64,
    /// Added to the mean squares under the root.
    pub eps: f64,
    /// Added to the gradient, times the parameter.
    pub weight_decay: f64,
    /// Goes up the gradient.
    pub maximize: bool,
}

impl Default for Adadelta {
    fn default() -> Self {
        Adadelta { lr: 1.0, rho: 0.9, eps: 1e-6, weight_decay: 0.0, maximize: false }
    }
}

impl UpdateRule for Adadelta {
    fn by_element(&self) -> bool {
        true
    }
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![Some(Moment::squares("square_avg")), Some(Moment::squares("acc_delta"))]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let attrs = Attrs::new()
            .with("rho", self.rho)
            .with("eps", self.eps)
            .with("weight_decay", self.weight_decay)
            .with("maximize", self.maximize);
        span.apply(b, &ADADELTA, attrs)
    }
}

impl Rule for Adadelta {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn check(&self) -> Result<()> {
        rates(self.lr, self.weight_decay)?;
        within("rho", self.rho, 0.0, 1.0)?;
        check_eps(self.eps)
    }
}
