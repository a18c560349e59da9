//! Lion: settings and the numbers of each step.

use super::table::{BELOW_ONE, NOT_NEGATIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::lion::LION;
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// Lion, with the defaults of its authors' code.
    Lion {
        /// Peak learning rate: the size of each element's step.
        lr: f64 = 1e-4, NOT_NEGATIVE;
        /// Weight of the moment in the direction, and its decay rate.
        betas: (f64, f64) = (0.9, 0.99), BELOW_ONE;
        /// Decoupled weight decay, times the learning rate in each step.
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        /// Goes up the gradient.
        maximize: bool = false;
    }
}

impl UpdateRule for Lion {
    fn by_element(&self) -> bool {
        true
    }
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![Some(Moment::new("exp_avg"))]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["decay", "lr"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let attrs = Attrs::new()
            .with("beta1", self.betas.0)
            .with("beta2", self.betas.1)
            .with("maximize", self.maximize);
        span.apply(b, &LION, attrs)
    }
}

impl Rule for Lion {
    fn values(&self, _: u64, lr: f64) -> Vec<f64> {
        vec![1.0 - lr * self.weight_decay, lr]
    }
}
