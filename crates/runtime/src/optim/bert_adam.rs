//! BERT's Adam: settings and the numbers of each step.

use super::{Moment, Rule, Span, UpdateRule, check_betas, check_eps, rates, within};
use crate::error::Result;
use headwater_core::ops::update::bert_adam::BERT_ADAM;
use headwater_core::ops::update::gradient_scale::GRADIENT_SCALE;
use headwater_core::{Attrs, Builder, ValueId};
use serde::{Deserialize, Serialize};

/// The Adam of BERT's original training, with the defaults of pytorch-pretrained-BERT's BertAdam; warm-up and
/// decay of the rate are the schedule's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BertAdam {
    /// Peak learning rate.
    pub lr: f64,
    /// Decay rates of the moments, which are not corrected for bias.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, times the learning rate in each step.
    pub weight_decay: f64,
    /// Largest norm of each parameter's gradient by itself, as `clip_grad_norm_`; 0: any.
    pub max_grad_norm: f64,
    /// Goes up the gradient.
    pub maximize: bool,
}

impl Default for BertAdam {
    fn default() -> Self {
        BertAdam {
            lr: 1e-3,
            betas: (0.9, 0.999),
            eps: 1e-6,
            weight_decay: 1e-2,
            max_grad_norm: 1.0,
            maximize: false,
        }
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

impl Rule for BertAdam {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn check(&self) -> Result<()> {
        rates(self.lr, self.weight_decay)?;
        within("max_grad_norm", self.max_grad_norm, 0.0, f64::INFINITY)?;
        check_betas(self.betas)?;
        check_eps(self.eps)
    }
}
