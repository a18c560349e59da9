//! Loss and metrics on held-out data.

use super::{Evaluation, Trainer, fed, returned};
use crate::average::Average;
use crate::config::EvalConfig;
use crate::data::{LastBatch, Loader, Order, Shapes, located};
use crate::error::{Error, Result};
use crate::score::{Measured, Scorer};
use crate::session::ProgramId;
use headwater_core::{Graph, Tensor, TensorType};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Random numbers of evaluations are drawn under keys that no training step reaches.
const DRAWS: u64 = 1 << 62;

impl Trainer<'_> {
    /// Evaluates all held-out samples, in the file's order.
    ///
    /// # Errors
    /// `Config` if the settings name no held-out data, labels that do not exist, or a metric that these
    /// samples do not have; what data and device report.
    pub fn evaluate(&mut self) -> Result<Evaluation> {
        let done = self.evaluate_until(&AtomicBool::new(false))?;
        done.ok_or_else(|| Error::Feed("the evaluation was interrupted".into()))
    }

    /// As [`Trainer::evaluate`]; `None` if `stop` was set before the last batch. The averaged weights are
    /// evaluated, where there are any.
    pub(super) fn evaluate_until(&mut self, stop: &AtomicBool) -> Result<Option<Evaluation>> {
        if !self.average.as_ref().is_some_and(Average::begun) {
            return self.evaluate_weights(stop);
        }
        let Some(average) = self.average.take() else { return self.evaluate_weights(stop) };
        let before = average.install(&mut self.session)?;
        let done = self.evaluate_weights(stop);
        average.remove(&mut self.session, &before)?;
        self.average = Some(average);
        done
    }

    fn evaluate_weights(&mut self, stop: &AtomicBool) -> Result<Option<Evaluation>> {
        let begin = Instant::now();
        let feeding =
            self.eval.clone().ok_or_else(|| Error::config("data.eval", "must name the held-out samples"))?;
        let (data, batch, samples) = (feeding.data(), feeding.batch(), feeding.samples());
        let mut scorer = scorer(&self.graph, &self.config.eval)?;
        // Which input holds the truth does not depend on lengths.
        let feeds = feeding.feeds(0);
        let wanted = scorer.wanted().and_then(|(input, output)| {
            let at = feeds.iter().position(|f| f.input == input)?;
            Some((at, feeds[at].dtype, output))
        });
        let rest = samples % batch;
        // The rest is evaluated too where the model can be bound to it.
        let fits = rest == 0
            || match self.evaluation_program(feeding.largest().with_batch(rest)) {
                Ok(_) => true,
                Err(Error::Rebind { .. }) => false,
                Err(e) => return Err(e),
            };
        if !fits && samples < batch {
            let file = data.path().display();
            return Err(Error::Feed(format!(
                "{file} has {samples} samples, which do not fill a batch of {batch}"
            )));
        }
        let last = if fits { LastBatch::Keep } else { LastBatch::Drop };
        let mut sampler = feeding.sampler(Order::Sequential, last)?;
        let (batches, used) = (sampler.per_epoch(), sampler.samples_per_epoch());
        let loader = Loader::new(feeding.clone(), sampler.clone(), 0)?;
        for batch in loader.take(batches as usize) {
            let batch = batch?;
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let program = self.evaluation_program(feeding.shapes(batch.bucket, batch.samples))?;
            self.session.set_rng(self.config.seed, DRAWS + batch.index)?;
            let ran = self.session.evaluate(program, &batch.inputs);
            ran.map_err(|e| located(e, &feeding, &batch, &sampler.batch(batch.index).unwrap_or_default()))?;
            let loss = self.session.output(program, 0)?.to_f64()[0];
            let Some((at, dtype, output)) = wanted else {
                scorer.add(batch.samples, loss, None);
                continue;
            };
            let labels = &batch.inputs[at];
            let truth = Tensor::from_bytes(&TensorType::new(dtype, [labels.len() / dtype.size()]), labels);
            let (ty, bytes) = self.session.raw_output(program, output)?;
            scorer.add(batch.samples, loss, Some(Measured { truth: &truth, ty, bytes: &bytes }));
        }
        // A file that was changed ends the batches early.
        data.unchanged()?;
        let by_batch = scorer.by_batch();
        let scores = scorer.finish();
        let column = scores.labels.as_ref().map(|l| self.config.data.names.get(l).unwrap_or(l).clone());
        let scores = scores.named(column.and_then(|c| data.class_names(&c)));
        let metric = self.config.eval.metric;
        // Outputs of a run that diverged fit nothing: its metric is merely no better one.
        if scores.loss.is_finite() && metric.of(&scores).is_none() {
            let message = format!("no {} was measured: {}", metric.name(), scores.notes.join("; "));
            return Err(Error::config("eval.metric", message));
        }
        let (left_out, seconds) = (samples - used, begin.elapsed().as_secs_f64());
        Ok(Some(Evaluation { step: self.step, scores, left_out, seconds, by_batch }))
    }

    fn evaluation_program(&mut self, shapes: Shapes) -> Result<ProgramId> {
        if let Some(&program) = self.evaluation.get(&shapes) {
            return Ok(program);
        }
        let program = self.session.evaluation_program(&self.bound(&shapes)?)?;
        self.evaluation.insert(shapes, program);
        Ok(program)
    }
}

/// The counter of a model's evaluations.
///
/// # Errors
/// `Config` for labels that do not exist or fit no output, and for a metric that cannot be measured.
pub(super) fn scorer(graph: &Graph, config: &EvalConfig) -> Result<Scorer> {
    let inputs: Vec<_> = fed(graph).map(|(name, ty)| (name.to_string(), ty.clone())).collect();
    let outputs: Vec<_> = returned(graph).cloned().collect();
    let scorer = Scorer::new(&inputs, &outputs, config.labels.as_deref(), config.top_k)
        .map_err(|m| Error::config("eval.labels", m))?;
    match scorer.lacks(config.metric) {
        None => Ok(scorer),
        Some(why) => {
            let name = config.metric.name();
            Err(Error::config("eval.metric", format!("{name} cannot be measured: {why}")))
        }
    }
}
