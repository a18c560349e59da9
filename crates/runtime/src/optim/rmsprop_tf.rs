//! RMSprop as TensorFlow's: settings and the numbers of each step.

use super::table::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::rmsprop_tf::RMSPROP_TF;
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// TensorFlow's RMSprop, with the defaults of `timm.optim.RMSpropTF`.
    RmsPropTf {
        /// Peak learning rate.
        lr: f64 = 1e-2, NOT_NEGATIVE;
        /// Decay rate of the mean square.
        alpha: f64 = 0.9, BELOW_ONE;
        /// Added to the mean square under the root.
        eps: f64 = 1e-10, POSITIVE;
        /// Added to the gradient, times the parameter; or see `decoupled_decay`.
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        /// Momentum; 0: none.
        momentum: f64 = 0.0, NOT_NEGATIVE;
        /// Divides by the standard deviation: the mean is kept and subtracted.
        centered: bool = false;
        /// The parameter shrinks by `lr · weight_decay` in each step instead.
        decoupled_decay: bool = false;
        /// The momentum holds steps, learning rate included, as TensorFlow does.
        lr_in_momentum: bool = true;
        /// Goes up the gradient.
        maximize: bool = false;
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
}
