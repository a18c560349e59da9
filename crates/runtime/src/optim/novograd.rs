//! NovoGrad: settings, the numbers of each step, and the step.

use super::{Moment, Rule, Span, UpdateRule, check_betas, check_eps, rates};
use crate::error::Result;
use headwater_core::ops::update::novograd::{NOVOGRAD, NOVOGRAD_NORM};
use headwater_core::{Attrs, Builder, ValueId};
use serde::{Deserialize, Serialize};

/// NovoGrad as its paper has it; the settings that apex's FusedNovoGrad adds are off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NovoGrad {
    /// Peak learning rate.
    pub lr: f64,
    /// Decay rates of the moments.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Added to the normalized gradient, times the parameter.
    pub weight_decay: f64,
    /// The first moment is a mean of gradients, not a sum.
    pub grad_averaging: bool,
    /// Divides the moments by what is missing from them in the first steps.
    pub bias_correction: bool,
    /// The second moment starts at 0, not at the first gradient's norm.
    pub init_zero: bool,
    /// Goes up the gradient.
    pub maximize: bool,
}

impl Default for NovoGrad {
    fn default() -> Self {
        NovoGrad {
            lr: 1e-2,
            betas: (0.95, 0.98),
            eps: 1e-8,
            weight_decay: 0.0,
            grad_averaging: false,
            bias_correction: false,
            init_zero: false,
            maximize: false,
        }
    }
}

impl UpdateRule for NovoGrad {
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![Some(Moment::new("exp_avg")), Some(Moment { single: true, ..Moment::squares("exp_avg_sq") })]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["step_size", "kept", "bias_correction2_sqrt"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let (m, v) = (span.moments[0].expect("kept"), span.moments[1].expect("kept"));
        let [step_size, kept, correction] = span.scalars[..] else { unreachable!("as many as named") };
        let squares = span.gradient_squares(b)?;
        let inputs = [v, squares, span.scale, span.apply, kept, correction].map(Some);
        let norm = b.apply(&NOVOGRAD_NORM, &inputs, Attrs::new().with("eps", self.eps))?;
        let factor = span.spread(b, norm[1])?;
        let gain = if self.grad_averaging { 1.0 - self.betas.0 } else { 1.0 };
        let attrs = Attrs::new()
            .with("beta1", self.betas.0)
            .with("gain", gain)
            .with("weight_decay", self.weight_decay)
            .with("maximize", self.maximize);
        let scale = span.wide_scale(b)?;
        let inputs = [span.param, span.gradient, m, scale, span.apply, step_size, factor].map(Some);
        let new = b.apply(&NOVOGRAD, &inputs, span.clipped(attrs))?;
        Ok(vec![new[0], new[1], norm[0]])
    }
}

impl Rule for NovoGrad {
    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        let correction = |beta: f64| if self.bias_correction { 1.0 - beta.powf(t as f64) } else { 1.0 };
        let kept = if t == 1 && !self.init_zero { 0.0 } else { self.betas.1 };
        vec![lr / correction(self.betas.0), kept, correction(self.betas.1).sqrt()]
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
