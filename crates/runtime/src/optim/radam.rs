//! RAdam: settings and the numbers of each step.

use super::table::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::radam::RADAM;
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// `torch.optim.RAdam`, with its defaults.
    RAdam {
        /// Peak learning rate.
        lr: f64 = 1e-3, NOT_NEGATIVE;
        /// Decay rates of the moments.
        betas: (f64, f64) = (0.9, 0.999), BELOW_ONE;
        /// Added to the denominator.
        eps: f64 = 1e-8, POSITIVE;
        /// Weight decay: added to the gradient, times the parameter; or decoupled, times the learning rate.
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        /// Decay acts on the parameter, not through the gradient, as in AdamW.
        decoupled_weight_decay: bool = false;
        /// Goes up the gradient.
        maximize: bool = false;
    }
}

impl UpdateRule for RAdam {
    fn by_element(&self) -> bool {
        true
    }
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![Some(Moment::new("exp_avg")), Some(Moment::squares("exp_avg_sq"))]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["decay", "step_size", "rectified"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let coupled = if self.decoupled_weight_decay { 0.0 } else { self.weight_decay };
        let attrs = Attrs::new()
            .with("beta1", self.betas.0)
            .with("beta2", self.betas.1)
            .with("eps", self.eps)
            .with("weight_decay", coupled)
            .with("maximize", self.maximize);
        span.apply(b, &RADAM, attrs)
    }
}

impl Rule for RAdam {
    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        let (beta1, beta2) = self.betas;
        let (t, longest) = (t as f64, 2.0 / (1.0 - beta2) - 1.0);
        let correction = 1.0 - beta2.powf(t);
        let length = longest - 2.0 * t * beta2.powf(t) / correction;
        // The variance of the second moment is known from about five terms on.
        let rectified = if length > 5.0 {
            let terms = |length: f64| (length - 4.0) * (length - 2.0) / length;
            (correction * terms(length) / terms(longest)).sqrt()
        } else {
            0.0
        };
        let decay = if self.decoupled_weight_decay { 1.0 - lr * self.weight_decay } else { 1.0 };
        vec![decay, lr / (1.0 - beta1.powf(t)), rectified]
    }
}
