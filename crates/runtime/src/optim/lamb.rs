//! LAMB: settings, the numbers of each step, and the step.

use super::table::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::adam_moments::ADAM_MOMENTS;
use headwater_core::ops::update::lamb::{LAMB_NORMS, LAMB_RATIO, LAMB_STEP};
use headwater_core::{Attrs, Builder, ValueId};

settings! {
    /// LAMB, with the defaults of apex's FusedLAMB; its `max_grad_norm` is the run's `clip_norm`.
    Lamb {
        /// Peak learning rate.
        lr: f64 = 1e-3, NOT_NEGATIVE;
        /// Decay rates of the moments.
        betas: (f64, f64) = (0.9, 0.999), BELOW_ONE;
        /// Added to the denominator after bias correction.
        eps: f64 = 1e-6, POSITIVE;
        /// Decoupled weight decay: part of the step, times the parameter.
        weight_decay: f64 = 1e-2, NOT_NEGATIVE;
        /// Divides the moments by what is missing from them in the first steps.
        bias_correction: bool = true;
        /// The first moment is a mean of gradients, not a sum.
        grad_averaging: bool = true;
        /// Adapts the rate of parameters without weight decay too.
        use_nvlamb: bool = false;
        /// Goes up the gradient.
        maximize: bool = false;
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
}
