//! RMSprop as TensorFlow's: settings and the numbers of each step.

use super::{Moment, Rule, Span, UpdateRule, check_eps, rates, within};
use crate::error::Result;
use headwater_core::ops::update::rmsprop_tf::RMSPROP_TF;
use headwater_core::{Attrs, Builder, ValueId};
use serde::{Deserialize, Serialize};

/// TensorFlow's RMSprop, with the defaults of `timm.optim.RMSpropTF`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RmsPropTf {
    /// Peak learning rate.
    pub lr: f64,
    /// Decay rate of the mean square.
    pub alpha: f64,
    /// Added to the mean square under the root.
    pub eps: f64,
    /// Added to the gradient, times the parameter; or see `decoupled_decay`.
    pub weight_decay: f64,
    /// Momentum; 0: none.
    pub momentum: f64,
    /// Divides by the standard deviation: the mean is kept and subtracted.
    pub centered: bool,
    /// The parameter shrinks by `lr · weight_decay` in each step instead.
    pub decoupled_decay: bool,
    /// The momentum holds steps, learning rate included, as TensorFlow does.
    pub lr_in_momentum: bool,
    /// Goes up the gradient.
    pub maximize: bool,
}

impl Default for RmsPropTf {
    fn default() -> Self {
        RmsPropTf {
            lr: 1e-2,
            alpha: 0.9,
            eps: 1e-10,
            weight_decay: 0.0,
            momentum: 0.0,
            centered: false,
            decoupled_decay: false,
            lr_in_momentum: true,
            maximize: false,
        }
    }
}

impl UpdateRule for RmsPropTf {
    fn by_element(&self) -> bool {
        true
    }
    fn moments(&self) -> Vec<Option<Moment>> {
        let average = self.centered.then(|| Moment::new("grad_avg"));
        let buffer = (self.momentum != 0.0).then(|| Moment::new("momentum_buffer"));
        vec![Some(Moment { initial: 1.0, ..Moment::squares("square_avg") }), average, buffer]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["decay", "lr"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let coupled = if self.decoupled_decay { 0.0 } else { self.weight_decay };
        let attrs = Attrs::new()
            .with("weight_decay", coupled)
            .with("alpha", self.alpha)
            .with("eps", self.eps)
            .with("momentum", self.momentum)
            .with("lr_in_momentum", self.lr_in_momentum)
            .with("maximize", self.maximize);
        span.apply(b, &RMSPROP_TF, attrs)
    }
}

impl Rule for RmsPropTf {
    fn values(&self, _: u64, lr: f64) -> Vec<f64> {
        vec![if self.decoupled_decay { 1.0 - lr * self.weight_decay } else { 1.0 }, lr]
    }

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
