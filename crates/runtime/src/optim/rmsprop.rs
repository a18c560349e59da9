//! RMSprop: settings and the numbers of each step.

use super::by_step::{mean, squares};
use super::table::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::rmsprop::RMSPROP;
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// `torch.optim.RMSprop`, with its defaults.
    RmsProp {
        /// Peak learning rate.
        lr: f64 = 1e-2, NOT_NEGATIVE;
        /// Decay rate of the mean square.
        alpha: f64 = 0.99, BELOW_ONE;
        /// Added to the root.
        eps: f64 = 1e-8, POSITIVE;
        /// Added to the gradient, times the parameter.
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        /// Momentum; 0: none.
        momentum: f64 = 0.0, NOT_NEGATIVE;
        /// Divides by the standard deviation: the mean is kept and subtracted.
        centered: bool = false;
        /// Goes up the gradient.
        maximize: bool = false;
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
        let changing =
            [("alpha", self.alpha), ("weight_decay", self.weight_decay), ("momentum", self.momentum)];
        let attrs = Attrs::new().with("eps", self.eps).with("maximize", self.maximize);
        span.apply(b, &RMSPROP, span.constants(attrs, changing))
    }
}

impl Rule for RmsProp {
    fn changing(&self) -> Vec<(&'static str, f64)> {
        let [decay, weight] = squares(self.alpha);
        let (l2, buffer) = (("l2", self.weight_decay), ("buffer_decay", self.momentum));
        vec![l2, mean(self.alpha), decay, weight, buffer]
    }
}
