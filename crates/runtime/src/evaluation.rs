//! The result of an evaluation.

use serde::Serialize;

/// An evaluation on held-out data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Steps done before it.
    pub step: u64,
    /// Mean loss over the batches, weighted by their samples.
    pub loss: f64,
    /// Share of samples whose largest logit is that of their class, if the model has logits and labels.
    pub accuracy: Option<f64>,
    /// Samples evaluated.
    pub samples: usize,
    /// Samples left out because they fill no batch and the model cannot be bound to a smaller one.
    pub left_out: usize,
    /// Seconds it took.
    pub seconds: f64,
}
