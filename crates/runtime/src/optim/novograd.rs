//! NovoGrad: settings, the numbers of each step, and the step.

use super::table::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::novograd::{NOVOGRAD, NOVOGRAD_NORM};
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// NovoGrad as its paper has it; the settings that apex's FusedNovoGrad adds are off.
    NovoGrad {
        /// Peak learning rate.
        lr: f64 = 1e-2, NOT_NEGATIVE;
        /// Decay rates of the moments.
        betas: (f64, f64) = (0.95, 0.98), BELOW_ONE;
        /// Added to the root of the second moment.
        eps: f64 = 1e-8, POSITIVE;
        /// Added to the normalized gradient, times the parameter.
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        /// The first moment is a mean of gradients, not a sum.
        grad_averaging: bool = false;
        /// Divides the moments by what is missing from them in the first steps.
        bias_correction: bool = false;
        /// The second moment starts at 0, not at the first gradient's norm.
        init_zero: bool = false;
        /// Goes up the gradient.
        maximize: bool = false;
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
}
