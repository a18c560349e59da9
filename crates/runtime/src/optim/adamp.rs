//! AdamP: settings, the numbers of each step, and the step.

use super::table::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Rule, Span, UpdateRule};
use headwater_core::ops::update::adam_moments::ADAM_MOMENTS;
use headwater_core::ops::update::adamp::{ADAMP_PRODUCTS, ADAMP_PROJECTION, ADAMP_STEP};
use headwater_core::ops::update::segment::SEGMENT_SPREAD;
use headwater_core::{Attrs, Builder, TensorType, ValueId};

settings! {
    /// AdamP, with the defaults of its authors' code. A parameter's channels are its first dimension; one of
    /// fewer than two dimensions is not projected.
    AdamP {
        /// Peak learning rate.
        lr: f64 = 1e-3, NOT_NEGATIVE;
        /// Decay rates of the moments.
        betas: (f64, f64) = (0.9, 0.999), BELOW_ONE;
        /// Added to the denominator after bias correction.
        eps: f64 = 1e-8, POSITIVE;
        /// Decoupled weight decay, times the learning rate in each step.
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        /// Cosines below this over the root of the size show that a norm rescales the weights.
        delta: f64 = 0.1, NOT_NEGATIVE;
        /// The factor of weight decay for such weights.
        wd_ratio: f64 = 0.1, NOT_NEGATIVE;
        /// Nesterov's momentum.
        nesterov: bool = false;
        /// Goes up the gradient.
        maximize: bool = false;
    }
}

impl AdamP {
    /// For every parameter what is projected out of its step, over the whole bucket, and what weight decay is
    /// multiplied by, for each block.
    fn projections(
        &self,
        b: &mut Builder,
        span: &Span,
        state: [ValueId; 4],
        inputs: [ValueId; 2],
        attrs: &Attrs,
    ) -> headwater_core::Result<(ValueId, ValueId)> {
        let (bucket, wide) = (span.bucket, span.bucket.wide());
        let flat = state.map(|v| b.reshape(v, &[bucket.elements]));
        let (mut ends, mut projections, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for (i, e) in bucket.entries.iter().enumerate() {
            let end = bucket.entries.get(i + 1).map_or(bucket.elements, |next| next.offset);
            let n = e.shape.numel();
            let channels = if e.shape.rank() > 1 { e.shape[0] } else { 0 };
            if channels == 0 || n == 0 {
                projections.push(b.full(&TensorType::new(wide, [1]), 0.0)?);
                ratios.push(b.full(&TensorType::new(wide, [1]), 1.0)?);
                ends.push(end as i64);
                continue;
            }
            let size = n / channels;
            let mut operands = Vec::new();
            for v in &flat {
                let own = b.slice(v.clone()?, 0, e.offset, e.offset + n)?;
                operands.push(Some(b.reshape(own, &[channels, size])?));
            }
            operands.extend(inputs.map(Some));
            let products = b.apply(&ADAMP_PRODUCTS, &operands, span.clipped(attrs.clone()))?;
            let rule = Attrs::new()
                .with("size", size as i64)
                .with("delta", self.delta)
                .with("wd_ratio", self.wd_ratio)
                .with("eps", self.eps);
            let products: Vec<_> = products.into_iter().map(Some).collect();
            let projection = b.apply(&ADAMP_PROJECTION, &products, rule)?;
            projections.push(projection[0]);
            ratios.push(b.reshape(projection[1], &[1])?);
            ends.extend((1..channels).map(|c| (e.offset + c * size) as i64));
            ends.push(end as i64);
        }
        let projections = b.cat(&projections, 0)?;
        let spread = b.one(&SEGMENT_SPREAD, &[projections], Attrs::new().with("ends", ends))?;
        let ratios = b.cat(&ratios, 0)?;
        Ok((b.reshape(spread, &bucket.span(wide).shape)?, span.spread(b, ratios)?))
    }
}

impl UpdateRule for AdamP {
    fn moments(&self) -> Vec<Option<Moment>> {
        vec![Some(Moment::new("exp_avg")), Some(Moment::squares("exp_avg_sq"))]
    }

    fn scalars(&self) -> Vec<&'static str> {
        vec!["decay", "step_size", "bias_correction2_sqrt"]
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let (m, v) = (span.moments[0].expect("kept"), span.moments[1].expect("kept"));
        let [decay, step_size, correction] = span.scalars[..] else { unreachable!("as many as named") };
        let (beta1, beta2) = self.betas;
        let scale = span.wide_scale(b)?;
        let attrs = Attrs::new().with("beta1", beta1).with("beta2", beta2).with("gain", 1.0 - beta1);
        let attrs = span.clipped(attrs.with("maximize", self.maximize));
        let new = b.apply(&ADAM_MOMENTS, &[m, span.gradient, v, scale, span.apply].map(Some), attrs)?;
        let mut attrs = Attrs::new().with("eps", self.eps).with("maximize", self.maximize);
        if self.nesterov {
            attrs.set("nesterov", beta1);
        }
        let state = [span.param, span.gradient, new[0], new[1]];
        let (projection, ratio) = self.projections(b, span, state, [scale, correction], &attrs)?;
        // 1 − lr · weight_decay · ratio
        let decay = b.mul(ratio, decay)?;
        let decay = b.neg(decay)?;
        let decay = b.shift(decay, 1.0)?;
        let inputs: Vec<_> = state
            .into_iter()
            .chain([projection, decay, scale, span.apply, step_size, correction])
            .map(Some)
            .collect();
        let param = b.apply(&ADAMP_STEP, &inputs, span.clipped(attrs))?[0];
        Ok(vec![param, new[0], new[1]])
    }
}

impl Rule for AdamP {
    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        let correction = |beta: f64| 1.0 - beta.powf(t as f64);
        vec![lr * self.weight_decay, lr / correction(self.betas.0), correction(self.betas.1).sqrt()]
    }
}
