//! RMSprop: settings and the numbers of each step.

use super::{Moment, Rule, Span, UpdateRule, check_eps, rates, within};
use crate::error::Result;
use headwater_core::ops::update::rmsprop::RMSPROP;
use headwater_core::{Attrs, Builder, ValueId};
use serde::{Deserialize, Serialize};

/// `torch.optim.RMSprop`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RmsProp {
    /// Peak learning rate.
    pub lr: f64,
    /// Decay rate of the mean square.
    pub alpha: f64,
    /// Added to the root.
    pub eps: f64,
    /// Added to the gradient, times the parameter.
    pub weight_decay: f64,
    /// Momentum; 0: none.
    pub momentum: f64,
    /// Divides by the standard deviation: the mean is kept and subtracted.
    pub centered: bool,
    /// Goes up the gradient.
    pub maximize: bool,
}

impl Default for RmsProp {
    fn default() -> Self {
        RmsProp {
            lr: 1e-2,
            alpha: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            momentum: 0.0,
            centered: false,
            maximize: false,
        }
    }
}

impl UpdateRule for RmsProp {
    fn by_element(&self) -> bool {
        true
    }
    fn moments(&self) -> Vec<Option<Moment>> {
        let average = self.centered.then(|| Moment::new("grad_avg"));
        let buffer = (self.momentum != 0.0).then(|| Moment::new("momentum_buffer"));
        vec![Some(Moment::squares("square_avg")), average, buffer]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let attrs = Attrs::new()
            .with("alpha", self.alpha)
            .with("eps", self.eps)
            .with("weight_decay", self.weight_decay)
            .with("momentum", self.momentum)
            .with("maximize", self.maximize);
        span.apply(b, &RMSPROP, attrs)
    }
}

impl Rule for RmsProp {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn check(&self) -> Result<()> {
        rates(self.lr, self.weight_decay)?;
        within("alpha", self.alpha, 0.0, 1.0)?;
        within("momentum", self.momentum, 0.0, f64::INFINITY)?;
        check_eps(self.eps)
    }
}
