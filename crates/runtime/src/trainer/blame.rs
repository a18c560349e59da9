//! The cause of a step that failed: the data, by file, column and sample; a node; the parameters.

use super::Trainer;
use crate::data::{Batch, gather, not_finite};
use crate::error::{Error, Result};
use crate::scaler::LossScale;
use headwater_core::tensor::Data;

/// Parameters that are listed.
const SHOWN: usize = 3;

impl Trainer<'_> {
    /// The micro-batches of the present step, reloaded, with their samples: a step that fails is rare, and
    /// steps may have thousands of micro-batches.
    fn again(&mut self) -> impl Iterator<Item = (Batch, Vec<u32>)> + use<> {
        let (mut sampler, train) = (self.sampler.clone(), self.train.clone());
        let numbers = self.config.batches().step(self.step);
        numbers.map_while(move |index| gather(&train, &mut sampler, index)?.ok())
    }

    /// The first node that was not finite in the present step.
    pub(super) fn culprit(&mut self) -> Result<Option<String>> {
        for (batch, _) in self.again() {
            self.session.set_rng(self.config.seed, batch.index)?;
            let graph = self.trained(&self.train.shapes(batch.bucket, batch.samples))?;
            let found = self.session.culprit(&graph, &batch.inputs)?;
            if let Some(culprit) = found {
                return Ok(Some(culprit.to_string()));
            }
        }
        Ok(None)
    }

    /// The error of a step whose gradients are not finite: the data first, if they are not, then the node,
    /// then the gradients.
    pub(super) fn not_finite(&mut self, loss: f64, norm: f64, culprit: Option<String>) -> Result<Error> {
        let train = self.train.clone();
        let input = self.again().find_map(|(batch, samples)| not_finite(&train, &batch, &samples));
        let mut found = Vec::new();
        for (_, e) in self.session.layout().entries() {
            let g = self.session.gradient(&e.name)?;
            let Data::Float(g) = &g.data else { continue };
            let (nan, inf) =
                (g.iter().filter(|x| x.is_nan()).count(), g.iter().filter(|x| x.is_infinite()).count());
            if nan + inf > 0 {
                found.push(format!("{}: {nan} NaN and {inf} inf of {}", e.name, g.len()));
            }
        }
        let more = found.len().saturating_sub(SHOWN);
        found.truncate(SHOWN);
        let list = match (found.is_empty(), more) {
            (true, _) => "all elements are finite, but their squares overflow".into(),
            (_, 0) => found.join("; "),
            _ => format!("{}; and {more} more parameters", found.join("; ")),
        };
        let scale = match self.rule.scale {
            LossScale::Static(1.0) => String::new(),
            LossScale::Static(scale) => format!(" at loss scale {scale}"),
            LossScale::Adaptive(_) => format!(
                " at loss scale {}, which may not fall further; no update since step {}",
                self.scaler[0].scale,
                self.skipping.unwrap_or(self.step)
            ),
        };
        // With finite data, the parameters are to blame: always, unless the loss scale may be.
        let scaled = matches!(self.rule.scale, LossScale::Adaptive(_)) && loss.is_finite();
        let diverged = input.is_none() && !scaled;
        let cause = input.into_iter().chain(culprit);
        let cause: String = cause.map(|c| format!("{c}; ")).collect();
        let detail = format!("{cause}loss {loss}, norm {norm}{scale}; {list}");
        Ok(Error::NotFinite { step: self.step, detail, diverged })
    }

    /// The error of a run of which every step was skipped: the last of them is looked at, with the loss
    /// scales of the first and the last.
    pub(super) fn no_update(&mut self, steps: u64, scales: [f64; 2]) -> Result<Error> {
        let end = self.step;
        self.step = end - 1;
        self.session.set_loss_scale(scales[1])?;
        let culprit = self.culprit();
        self.step = end;
        let culprit =
            culprit?.unwrap_or_else(|| "all elements are finite, but their squares overflow".into());
        let tried = match scales {
            [first, last] if first != last => format!("at loss scales from {first} to {last}"),
            [scale, _] => format!("at loss scale {scale}"),
        };
        Ok(Error::NoUpdate { steps, detail: format!("{culprit}; {tried}") })
    }
}
