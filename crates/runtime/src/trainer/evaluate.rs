//! Loss and accuracy on held-out data.

use super::{Evaluation, Trainer, fed, returned};
use crate::average::Average;
use crate::data::{Feed, LastBatch, Loader, Order, Shapes, located};
use crate::error::{Error, Result};
use crate::session::ProgramId;
use headwater_core::{Graph, Tensor};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Random numbers of evaluations are drawn under keys that no training step reaches.
const DRAWS: u64 = 1 << 62;

/// Where logits and classes are.
struct Classes {
    /// Output with logits `[batch, classes]`.
    logits: usize,
    /// Position among the fed inputs, integers `[batch]`.
    labels: usize,
}

impl Trainer<'_> {
    /// Evaluates all held-out samples, in the file's order.
    ///
    /// # Errors
    /// `Config` if the settings name no held-out data or labels that do not exist; what data and device
    /// report.
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
        let feeding = self.eval.clone().ok_or_else(|| Error::config("data.eval", "names no file"))?;
        let (data, batch, samples) = (feeding.data(), feeding.batch(), feeding.samples());
        // Which input holds the labels does not depend on lengths.
        let feeds = feeding.feeds(0);
        let classes = classes(&self.graph, feeds, self.config.eval.labels.as_deref())?;
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
        let (mut loss, mut right) = (0.0, 0);
        for batch in loader.take(batches as usize) {
            let batch = batch?;
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let program = self.evaluation_program(feeding.shapes(batch.bucket, batch.samples))?;
            self.session.set_rng(self.config.seed, DRAWS + batch.index)?;
            let ran = self.session.evaluate(program, &batch.inputs);
            ran.map_err(|e| located(e, &feeding, &batch, &sampler.batch(batch.index).unwrap_or_default()))?;
            loss += self.session.output(program, 0)?.to_f64()[0] * batch.samples as f64;
            if let Some(c) = &classes {
                let logits = self.session.output(program, c.logits)?;
                let ty = headwater_core::TensorType::new(feeds[c.labels].dtype, [batch.samples]);
                right += hits(&logits, Tensor::from_bytes(&ty, &batch.inputs[c.labels]).ints());
            }
        }
        // A file that was changed ends the batches early.
        data.unchanged()?;
        Ok(Some(Evaluation {
            step: self.step,
            loss: loss / used as f64,
            accuracy: classes.map(|_| right as f64 / used as f64),
            samples: used,
            left_out: samples - used,
            seconds: begin.elapsed().as_secs_f64(),
        }))
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

/// Finds logits and labels. With `named`, both must be there.
fn classes(graph: &Graph, feeds: &[Feed], named: Option<&str>) -> Result<Option<Classes>> {
    let inputs: Vec<_> = fed(graph).collect();
    let labels = |i: usize| !inputs[i].1.dtype.is_float() && inputs[i].1.shape.rank() == 1;
    let labels = match named {
        Some(name) => {
            let at = feeds.iter().position(|f| f.input == name);
            let at = at.filter(|&i| labels(i)).ok_or_else(|| {
                Error::config(
                    "eval.labels",
                    format!("the model has no integer input {name} of one class a sample"),
                )
            })?;
            Some(at)
        }
        None => {
            let mut all = (0..inputs.len()).filter(|&i| labels(i));
            all.next().filter(|_| all.next().is_none())
        }
    };
    let Some(labels) = labels else { return Ok(None) };
    let batch = inputs[labels].1.shape[0];
    let logits = returned(graph)
        .position(|t| t.dtype.is_float() && t.shape.rank() == 2 && t.shape[0] == batch && t.shape[1] > 1);
    match (logits, named) {
        (Some(logits), _) => Ok(Some(Classes { logits, labels })),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Error::config("eval.labels", "the model returns no logits [batch, classes]")),
    }
}

/// Rows whose largest logit is that of the label; a row with NaN has none.
fn hits(logits: &Tensor, labels: &[i64]) -> usize {
    let width = logits.shape()[1];
    let rows = logits.floats().chunks_exact(width).zip(labels);
    rows.filter(|(row, label)| {
        let best = row.iter().enumerate().fold(0, |best, (i, x)| if *x > row[best] { i } else { best });
        !row.iter().any(|x| x.is_nan()) && best as i64 == **label
    })
    .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_core::DType;

    #[test]
    fn hits_count_the_first_largest_logit() {
        let logits = Tensor::float(DType::F32, [4, 2], vec![0.0, 1.0, 3.0, 3.0, f64::NAN, 1.0, 2.0, -1.0]);
        assert_eq!(hits(&logits, &[1, 0, 1, 1]), 2);
    }
}
