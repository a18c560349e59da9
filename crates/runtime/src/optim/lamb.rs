//! LAMB: settings, the numbers of each step, and the step.

use super::{Moment, Rule, Span, UpdateRule, check_betas, check_eps, rates};
use crate::error::Result;
use headwater_core::ops::update::adam_moments::ADAM_MOMENTS;
use headwater_core::ops::update::lamb::{LAMB_NORMS, LAMB_RATIO, LAMB_STEP};
use headwater_core::{Attrs, Builder, ValueId};
use serde::{Deserialize, Serialize};

/// LAMB, with the defaults of apex's FusedLAMB; its `max_grad_norm` is the run's `clip_norm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lamb {
    /// Peak learning rate.
    pub lr: f64,
    /// Decay rates of the moments.
    pub betas: (f64, f64),
    /// Added to the denominator after bias correction.
    pub eps: f64,
    /// Decoupled weight decay: part of the step, times the parameter.
    pub weight_decay: f64,
    /// Divides the moments by what is missing from them in the first steps.
    pub bias_correction: bool,
    /// The first moment is a mean of gradients, not a sum.
    pub grad_averaging: bool,
    /// Adapts the rate of parameters without weight decay too.
    pub use_nvlamb: bool,
    /// Goes up the gradient.
    pub maximize: bool,
}

impl Default for Lamb {
    fn default() -> Self {
        Lamb {
            lr: 1e-3,
            betas: (0.9, 0.999),
            eps: 1e-6,
            weight_decay: 1e-2,
            bias_correction: true,
            grad_averaging: true,
            use_nvlamb: false,
            maximize: false,
        }
    }
}

impl UpdateRule for Lamb {
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![Some(Moment::new("exp_avg")), Some(Moment::squares("exp_avg_sq"))]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["lr", "bias_correction1", "bias_correction2_sqrt"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let (m, v) = (span.moments[0].expect("kept"), span.moments[1].expect("kept"));
        let [lr, correction1, correction2] = span.scalars[..] else { unreachable!("as many as named") };
        let gain = if self.grad_averaging { 1.0 - self.betas.0 } else { 1.0 };
        let attrs = Attrs::new()
            .with("beta1", self.betas.0)
            .with("beta2", self.betas.1)
            .with("gain", gain)
            .with("maximize", self.maximize);
        let scale = span.wide_scale(b)?;
        let inputs = [m, span.gradient, v, scale, span.apply].map(Some);
        let new = b.apply(&ADAM_MOMENTS, &inputs, span.clipped(attrs))?;
        let attrs = Attrs::new().with("eps", self.eps).with("decay", self.weight_decay);
        let state = [span.param, new[0], new[1], correction1, correction2];
        let step_size = if self.use_nvlamb || self.weight_decay != 0.0 {
            let norms = b.apply(&LAMB_NORMS, &state.map(Some), attrs.clone())?;
            let (p, u) = (span.sum(b, norms[0])?, span.sum(b, norms[1])?);
            let lr = span.double(b, lr)?;
            let ratio = b.call(&LAMB_RATIO, &[p, u, lr])?;
            span.spread(b, ratio)?
        } else {
            lr
        };
        let inputs = state.into_iter().chain([span.apply, step_size]).map(Some).collect::<Vec<_>>();
        let param = b.apply(&LAMB_STEP, &inputs, attrs)?[0];
        Ok(vec![param, new[0], new[1]])
    }
}

impl Rule for Lamb {
    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        let correction = |beta: f64| if self.bias_correction { 1.0 - beta.powf(t as f64) } else { 1.0 };
        vec![lr, correction(self.betas.0), correction(self.betas.1).sqrt()]
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn check(&self) -> Result<()> {
        rates(self.lr, self.weight_decay)?;
        check_betas(self.betas)?;
        check_eps(self.eps)
    }
}
