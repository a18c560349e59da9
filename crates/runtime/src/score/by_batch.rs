//! Scores of single batches. Two evaluations of the same batches are compared batch by batch: what makes a
//! batch hard is in both, and falls out of the difference.

use std::sync::Arc;

/// The scores of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// Samples.
    pub samples: usize,
    /// Mean loss.
    pub loss: f64,
    /// Labels counted: samples, tokens or pixels; 0 where none are.
    pub counted: u64,
    /// Labels whose class has the largest logit.
    pub right: u64,
}

/// The batches of an evaluation, in order. They are in no JSON and in no comparison of evaluations: one that
/// was read again equals the one that was written.
#[derive(Clone, Debug, Default)]
pub struct ByBatch(Arc<Vec<Batch>>);

impl PartialEq for ByBatch {
    fn eq(&self, _: &ByBatch) -> bool {
        true
    }
}

/// The mean difference of pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// Pairs.
    pub pairs: usize,
    /// Mean of second less first.
    pub difference: f64,
    /// Its standard error; none of one pair.
    pub error: Option<f64>,
}

impl Paired {
    /// Statistics of values `(first, second, weight)`; `None` without any.
    pub fn new(pairs: &[(f64, f64, f64)]) -> Option<Paired> {
        let total: f64 = pairs.iter().map(|p| p.2).sum();
        let mean = |of: &dyn Fn(f64) -> f64| pairs.iter().map(|p| p.2 / total * of(p.1 - p.0)).sum::<f64>();
        let difference = mean(&|d| d);
        let variance = mean(&|d| (d - difference).powi(2)) / (pairs.len() as f64 - 1.0);
        let error = (pairs.len() > 1).then(|| variance.sqrt());
        (total > 0.0).then_some(Paired { pairs: pairs.len(), difference, error })
    }
}

impl ByBatch {
    /// Collects batches in their order.
    pub fn new(batches: Vec<Batch>) -> ByBatch {
        ByBatch(Arc::new(batches))
    }

    /// The difference of losses to another evaluation of the same batches; `None` of others.
    pub fn loss(&self, second: &ByBatch) -> Option<Paired> {
        self.paired(second, |b| b.samples as u64, |b| (b.loss, b.samples as f64))
    }

    /// The difference of the share of labels that are right; `None` where none were counted.
    pub fn accuracy(&self, second: &ByBatch) -> Option<Paired> {
        let share = |b: &Batch| (b.right as f64 / b.counted.max(1) as f64, b.counted as f64);
        self.paired(second, |b| b.counted, share)
    }

    /// Pairs of batches with the same number of samples, and of what `counts` gives.
    fn paired(
        &self,
        second: &ByBatch,
        counts: impl Fn(&Batch) -> u64,
        of: impl Fn(&Batch) -> (f64, f64),
    ) -> Option<Paired> {
        let same = |(a, b): (&Batch, &Batch)| a.samples == b.samples && counts(a) == counts(b);
        if self.0.len() != second.0.len() || !self.0.iter().zip(second.0.iter()).all(same) {
            return None;
        }
        let pair = |(a, b)| {
            let ((first, weight), (second, _)) = (of(a), of(b));
            (first, second, weight)
        };
        Paired::new(&self.0.iter().zip(second.0.iter()).map(pair).filter(|p| p.2 > 0.0).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(of: &[(usize, f64, u64)]) -> ByBatch {
        let batch = |&(samples, loss, right)| Batch { samples, loss, counted: samples as u64, right };
        ByBatch::new(of.iter().map(batch).collect())
    }

    #[test]
    fn what_batches_have_in_common_falls_out() {
        let hard_and_easy = [(10, 0.5, 9), (10, 4.0, 2), (10, 1.0, 7), (10, 2.5, 5)];
        let a = batches(&hard_and_easy);
        let b = batches(&hard_and_easy.map(|(n, loss, right)| (n, loss + 0.25, right - 1)));
        let loss = a.loss(&b).unwrap();
        assert_eq!((loss.pairs, loss.difference, loss.error), (4, 0.25, Some(0.0)));
        assert!((a.accuracy(&b).unwrap().difference + 0.1).abs() < 1e-15);
        // By hand: differences 0, 1, 0, 1; variance of the mean 0.25 / 3.
        let b = batches(&[(10, 0.5, 9), (10, 5.0, 2), (10, 1.0, 7), (10, 3.5, 5)]);
        let loss = a.loss(&b).unwrap();
        assert!(loss.difference == 0.5 && (loss.error.unwrap() - (0.25f64 / 3.0).sqrt()).abs() < 1e-15);
    }

    #[test]
    fn batches_weigh_by_their_samples_and_others_are_not_compared() {
        let (a, b) = (batches(&[(3, 1.0, 0), (1, 1.0, 0)]), batches(&[(3, 1.0, 0), (1, 5.0, 0)]));
        assert_eq!(a.loss(&b).unwrap().difference, 1.0);
        assert_eq!(a.loss(&batches(&[(3, 1.0, 0)])), None);
        assert_eq!(a.loss(&batches(&[(2, 1.0, 0), (2, 1.0, 0)])), None);
        let one = a.0[..1].to_vec();
        assert_eq!(ByBatch::new(one.clone()).loss(&ByBatch::new(one)).unwrap().error, None);
        assert_eq!(ByBatch::default().loss(&ByBatch::default()), None);
        // Labels that were counted in one evaluation alone: losses have pairs, shares have none.
        let uncounted = ByBatch::new(a.0.iter().map(|b| Batch { counted: 0, ..*b }).collect());
        assert!(a.loss(&uncounted).is_some() && a.accuracy(&uncounted).is_none());
        // In no comparison of evaluations.
        assert_eq!(a, b);
    }
}
