//! The result of an evaluation.

use crate::score::{ByBatch, Scores};
use serde::{Deserialize, Serialize};

/// An evaluation on held-out data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps done before it.
    pub step: u64,
    /// The scores.
    #[serde(flatten)]
    pub scores: Scores,
    /// Samples left out because they fill no batch and the model cannot be bound to a smaller one.
    pub left_out: usize,
    /// Seconds it took.
    pub seconds: f64,
    /// The batches it was made of, for comparisons with another; none in one that was read.
    #[serde(skip)]
    pub by_batch: ByBatch,
}

impl Evaluation {
    /// The same without the counts by label and prediction, which are as many as the square of the classes.
    pub fn brief(&self) -> Evaluation {
        let mut brief = self.clone();
        brief.scores.by_class.iter_mut().for_each(|by| {
            by.confusion.clear();
            by.each.clear();
        });
        brief
    }
}
