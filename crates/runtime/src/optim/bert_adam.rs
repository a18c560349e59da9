//! BERT's Adam: settings and the numbers of each step.

use super::table::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::bert_adam::BERT_ADAM;
use headwater_core::ops::update::gradient_scale::GRADIENT_SCALE;
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// The Adam of BERT's original training, with the defaults of pytorch-pretrained-BERT's BertAdam; warm-up and
    /// decay of the rate are the schedule's.
    BertAdam {
        /// Peak learning rate.
        lr: f64 = 1e-3, NOT_NEGATIVE;
        /// Decay rates of the moments, which are not corrected for bias.
        betas: (f64, f64) = (0.9, 0.999), BELOW_ONE;
        /// Added to the root of the second moment.
        eps: f64 = 1e-6, POSITIVE;
        /// Decoupled weight decay, times the learning rate in each step.
        weight_decay: f64 = 1e-2, NOT_NEGATIVE;
        /// Largest norm of each parameter's gradient by itself, as `clip_grad_norm_`; 0: any.
        max_grad_norm: f64 = 1.0, NOT_NEGATIVE;
        /// Goes up the gradient.
        maximize: bool = false;
    }
}

impl UpdateRule for BertAdam {
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![Some(Moment::new("exp_avg")), Some(Moment::squares("exp_avg_sq"))]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let attrs = Attrs::new()
            .with("beta1", self.betas.0)
            .with("beta2", self.betas.1)
            .with("eps", self.eps)
            .with("decay", self.weight_decay)
            .with("maximize", self.maximize);
        let scale = if self.max_grad_norm > 0.0 {
            let squares = span.gradient_squares(b)?;
            let limit = Attrs::new().with("max_norm", self.max_grad_norm);
            let scaled = b.apply(&GRADIENT_SCALE, &[Some(squares), Some(span.scale)], limit)?;
            span.spread(b, scaled[1])?
        } else {
            span.wide_scale(b)?
        };
        span.apply_scaled(b, &BERT_ADAM, scale, attrs)
    }
}

impl Rule for BertAdam {}
