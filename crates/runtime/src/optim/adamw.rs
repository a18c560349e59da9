//! AdamW: settings and the numbers of each step, computed in f64.

use super::by_step::{mean, squares};
use super::table::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::adamw::ADAMW;
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// `torch.optim.AdamW`, with its defaults.
    AdamW {
        /// Peak learning rate.
        lr: f64 = 1e-3, NOT_NEGATIVE;
        /// Decay rates of the moments.
        betas: (f64, f64) = (0.9, 0.999), BELOW_ONE;
        /// Added to the denominator after bias correction.
        eps: f64 = 1e-8, POSITIVE;
        /// Decoupled weight decay, times the learning rate in each step.
        weight_decay: f64 = 1e-2, NOT_NEGATIVE;
        /// Divides by the largest second moment so far (AMSGrad).
        amsgrad: bool = false;
        /// Goes up the gradient.
        maximize: bool = false;
    }
}

impl UpdateRule for AdamW {
    fn by_element(&self) -> bool {
        true
    }
    fn moments(&self) -> Vec<Option<Moment>> {
        let largest = self.amsgrad.then(|| Moment::squares("max_exp_avg_sq"));
        vec![Some(Moment::new("exp_avg")), Some(Moment::squares("exp_avg_sq")), largest]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["decay", "step_size", "bias_correction2_sqrt"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let changing = [("beta1", self.betas.0), ("beta2", self.betas.1)];
        let attrs = Attrs::new().with("eps", self.eps).with("maximize", self.maximize);
        span.apply(b, &ADAMW, span.constants(attrs, changing))
    }
}

impl Rule for AdamW {
    fn changing(&self) -> Vec<(&'static str, f64)> {
        [mean(self.betas.0)].into_iter().chain(squares(self.betas.1)).collect()
    }

    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        let correction = |beta: f64| 1.0 - beta.powf(t as f64);
        vec![1.0 - lr * self.weight_decay, lr / correction(self.betas.0), correction(self.betas.1).sqrt()]
    }
}
