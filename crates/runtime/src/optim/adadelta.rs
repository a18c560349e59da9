//! Adadelta: settings and the numbers of each step.

use super::table::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::adadelta::ADADELTA;
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// `torch.optim.Adadelta`, with its defaults.
    Adadelta {
        /// Peak learning rate: what the computed step is multiplied by.
        lr: f64 = 1.0, NOT_NEGATIVE;
        /// Decay rate of the mean squares.
        rho: f64 = 0.9, BELOW_ONE;
        /// Added to the mean squares under the root.
        eps: f64 = 1e-6, POSITIVE;
        /// Added to the gradient, times the parameter.
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        /// Goes up the gradient.
        maximize: bool = false;
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

impl Rule for Adadelta {}
