//! Adamax: settings and the numbers of each step.

use super::table::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::adamax::ADAMAX;
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// `torch.optim.Adamax`, with its defaults.
    Adamax {
        /// Peak learning rate.
        lr: f64 = 2e-3, NOT_NEGATIVE;
        /// Decay rates of the first moment and of the largest gradient.
        betas: (f64, f64) = (0.9, 0.999), BELOW_ONE;
        /// Added to the size of the gradient.
        eps: f64 = 1e-8, POSITIVE;
        /// Added to the gradient, times the parameter.
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        /// Goes up the gradient.
        maximize: bool = false;
    }
}

impl UpdateRule for Adamax {
    fn by_element(&self) -> bool {
        true
    }
    // The decayed maximum is no mean, but it is as these are: never negative, and the divisor of the step.
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![Some(Moment::new("exp_avg")), Some(Moment::squares("exp_inf"))]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["step_size"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let attrs = Attrs::new()
            .with("beta1", self.betas.0)
            .with("beta2", self.betas.1)
            .with("eps", self.eps)
            .with("weight_decay", self.weight_decay)
            .with("maximize", self.maximize);
        span.apply(b, &ADAMAX, attrs)
    }
}

impl Rule for Adamax {
    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        vec![lr / (1.0 - self.betas.0.powf(t as f64))]
    }
}
