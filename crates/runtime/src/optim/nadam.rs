//! NAdam: settings and the numbers of each step.

use super::table::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::nadam::NADAM;
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// `torch.optim.NAdam`, with its defaults.
    NAdam {
        /// Peak learning rate.
        lr: f64 = 2e-3, NOT_NEGATIVE;
        /// Decay rates of the moments.
        betas: (f64, f64) = (0.9, 0.999), BELOW_ONE;
        /// Added to the denominator after bias correction.
        eps: f64 = 1e-8, POSITIVE;
        /// Momentum at step t is `betas[0] · (1 − 0.96^(t · momentum_decay) / 2)`.
        momentum_decay: f64 = 4e-3, NOT_NEGATIVE;
        /// Weight decay: added to the gradient, times the parameter; or decoupled, times the learning rate.
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        /// Decay acts on the parameter, not through the gradient, as in AdamW.
        decoupled_weight_decay: bool = false;
        /// Goes up the gradient.
        maximize: bool = false;
    }
}

impl UpdateRule for NAdam {
    fn by_element(&self) -> bool {
        true
    }
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![Some(Moment::new("exp_avg")), Some(Moment::squares("exp_avg_sq"))]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["decay", "gradient_step", "moment_step", "bias_correction2"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let coupled = if self.decoupled_weight_decay { 0.0 } else { self.weight_decay };
        let attrs = Attrs::new()
            .with("beta1", self.betas.0)
            .with("beta2", self.betas.1)
            .with("eps", self.eps)
            .with("weight_decay", coupled)
            .with("maximize", self.maximize);
        span.apply(b, &NADAM, attrs)
    }
}

impl Rule for NAdam {
    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        let momentum = |t: u64| self.betas.0 * (1.0 - 0.5 * 0.96f64.powf(t as f64 * self.momentum_decay));
        // Once it no longer changes 1, further factors change nothing.
        let (mut product, mut s) = (1.0, 1);
        while s <= t && product > f64::EPSILON / 4.0 {
            product *= momentum(s);
            s += 1;
        }
        let (now, next) = (momentum(t), momentum(t + 1));
        let decay = if self.decoupled_weight_decay { 1.0 - lr * self.weight_decay } else { 1.0 };
        let (gradient, moment) = (lr * (1.0 - now) / (1.0 - product), lr * next / (1.0 - product * next));
        vec![decay, gradient, moment, 1.0 - self.betas.1.powf(t as f64)]
    }
}
