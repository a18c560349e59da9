//! Order of samples: the batch that each sample is in, a pure function of seed and position, so that a run
//! resumes where it was.
//!
//! Shuffling is Fisher–Yates (Durstenfeld 1964), one permutation an epoch, drawn from SplitMix64 (Steele,
//! Lea, Flood 2014) started at `seed · 0x9E3779B97F4A7C15 ^ epoch · 0xD1B54A32D192ED03`. Numbers below a
//! limit come from Lemire's method (2019) with rejection, so every permutation is equally likely as far as 64
//! bits of state go.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Treatment of samples that do not fill the last batch of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LastBatch {
    /// They are left out of this epoch.
    #[default]
    Drop,
    /// They make a smaller batch, if the model can be bound to one.
    Keep,
    /// They are refused before training starts.
    Error,
}

/// The order of samples.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// As in the file.
    Sequential,
    /// A new permutation every epoch.
    Shuffled {
        /// Seed of the permutations.
        seed: u64,
    },
    /// Exactly these samples, batch after batch.
    Recorded {
        /// `[batches · batch]` indices.
        indices: Arc<Vec<u32>>,
    },
}

/// Names the samples of every batch. Batches are counted through all epochs.
#[derive(Clone, Debug)]
pub struct Sampler {
    order: Order,
    samples: usize,
    batch: usize,
    per_epoch: u64,
    /// Bucket of each sample, if batches are made within buckets.
    buckets: Option<Arc<Vec<u8>>>,
    /// Sums of the samples' weights up to each, if samples are drawn by weight.
    weights: Option<Arc<Vec<f64>>>,
    /// The order of the last requested epoch.
    epoch: Option<(u64, Vec<u32>)>,
}

impl Sampler {
    /// An order of `samples` in batches of `batch`.
    ///
    /// # Errors
    /// `Feed` if there is not one whole batch, if a recorded index is out of range, or as the policy says.
    pub fn new(order: Order, samples: usize, batch: usize, last: LastBatch) -> Result<Sampler> {
        let refuse = |m: String| Err(Error::Feed(m));
        if batch == 0 || samples == 0 {
            return refuse(format!("{samples} samples in batches of {batch}: there is nothing to train on"));
        }
        if samples > u32::MAX as usize {
            return refuse(format!("{samples} samples: more than {} are not supported", u32::MAX));
        }
        let per_epoch = match &order {
            Order::Recorded { indices } => {
                if let Some(i) = indices.iter().find(|&&i| i as usize >= samples) {
                    return refuse(format!("the recorded order names sample {i} of {samples}"));
                }
                if indices.is_empty() || !indices.len().is_multiple_of(batch) {
                    let n = indices.len();
                    return refuse(format!(
                        "the recorded order has {n} samples, not a multiple of the batch of {batch}"
                    ));
                }
                indices.len() / batch
            }
            _ => match last {
                LastBatch::Keep => samples.div_ceil(batch),
                LastBatch::Error if !samples.is_multiple_of(batch) => {
                    return refuse(format!("{samples} samples do not fill batches of {batch}"));
                }
                _ if samples < batch => {
                    return refuse(format!("{samples} samples do not fill one batch of {batch}"));
                }
                _ => samples / batch,
            },
        };
        Ok(Sampler {
            order,
            samples,
            batch,
            per_epoch: per_epoch as u64,
            buckets: None,
            weights: None,
            epoch: None,
        })
    }

    /// Makes the batches of shuffled samples within buckets, given for each sample. Samples that do not fill
    /// a batch of their bucket go with those of the next one, so that an epoch has as many batches as
    /// without.
    pub(super) fn in_buckets(self, buckets: Arc<Vec<u8>>) -> Sampler {
        Sampler { buckets: Some(buckets), ..self }
    }

    /// Draws the samples of an epoch with replacement, as many as there are, each in proportion to its
    /// weight, rather than each once; given are the sums of the weights up to each sample.
    pub(super) fn weighted(self, sums: Arc<Vec<f64>>) -> Sampler {
        Sampler { weights: Some(sums), ..self }
    }

    /// Batches in one epoch (of a recorded order: all there are).
    pub fn per_epoch(&self) -> u64 {
        self.per_epoch
    }

    /// Samples used in one epoch.
    pub fn samples_per_epoch(&self) -> usize {
        (self.per_epoch as usize * self.batch).min(match self.order {
            Order::Recorded { .. } => usize::MAX,
            _ => self.samples,
        })
    }

    /// The epoch of a batch; of a recorded order, which may name a sample again, the number of the batch.
    pub(super) fn epoch(&self, index: u64) -> u64 {
        match self.order {
            Order::Recorded { .. } => index,
            _ => index / self.per_epoch,
        }
    }

    /// The samples of batch `index`, counted from 0 through all epochs. `None` after the end of a recorded
    /// order.
    pub fn batch(&mut self, index: u64) -> Option<Vec<u32>> {
        let (epoch, at) = (index / self.per_epoch, (index % self.per_epoch) as usize * self.batch);
        let span = at..(at + self.batch).min(self.samples);
        match &self.order {
            Order::Recorded { indices } => (epoch == 0).then(|| indices[at..at + self.batch].to_vec()),
            Order::Sequential => Some(span.map(|i| i as u32).collect()),
            Order::Shuffled { seed } => {
                if self.epoch.as_ref().is_none_or(|(e, _)| *e != epoch) {
                    let order = match &self.weights {
                        Some(sums) => draws(sums, *seed, epoch),
                        None => permutation(self.samples, *seed, epoch),
                    };
                    let order = match &self.buckets {
                        Some(buckets) => bucketed(order, buckets, self.batch),
                        None => order,
                    };
                    self.epoch = Some((epoch, order));
                }
                self.epoch.as_ref().map(|(_, p)| p[span].to_vec())
            }
        }
    }
}

/// SplitMix64 of an epoch.
fn numbers(seed: u64, epoch: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ epoch.wrapping_mul(0xD1B5_4A32_D192_ED03);
    move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// As many samples as there are, drawn by the inverse of the sums of their weights.
fn draws(sums: &[f64], seed: u64, epoch: u64) -> Vec<u32> {
    let mut next = numbers(seed, epoch);
    let total = sums.last().copied().unwrap_or(0.0);
    // 53 bits make a uniform number below 1, and rounding may make the product the total itself.
    let mut draw = || (next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64) * total;
    let last = sums.partition_point(|&sum| sum < total);
    (0..sums.len())
        .map(|_| draw())
        .map(|at| sums.partition_point(|&sum| sum <= at).min(last) as u32)
        .collect()
}

/// The permutation of an epoch.
fn permutation(n: usize, seed: u64, epoch: u64) -> Vec<u32> {
    let mut next = numbers(seed, epoch);
    let mut below = |limit: u64| loop {
        let wide = next() as u128 * limit as u128;
        // The lowest `2^64 mod limit` products would make some numbers likelier.
        if wide as u64 >= limit.wrapping_neg() % limit {
            return (wide >> 64) as usize;
        }
    };
    let mut p: Vec<u32> = (0..n as u32).collect();
    for i in (1..n).rev() {
        p.swap(i, below(i as u64 + 1));
    }
    p
}

/// An order whose batches are of one bucket each, as soon as it has enough samples. At its end are batches of
/// what is left of a bucket and of those below.
fn bucketed(order: Vec<u32>, buckets: &[u8], batch: usize) -> Vec<u32> {
    let mut out = Vec::with_capacity(order.len());
    // Samples with their places in the order.
    let mut open: Vec<Vec<(usize, u32)>> = vec![Vec::new(); 1 + u8::MAX as usize];
    for (at, sample) in order.into_iter().enumerate() {
        let own = &mut open[buckets[sample as usize] as usize];
        own.push((at, sample));
        if own.len() == batch {
            out.extend(own.drain(..).map(|(_, s)| s));
        }
    }
    let mut left: Vec<(usize, u32)> = Vec::new();
    for own in open {
        left.extend(own);
        // In the order again, so that no length is likelier to be left out.
        left.sort_unstable();
        if left.len() >= batch {
            out.extend(left.drain(..batch).map(|(_, s)| s));
        }
    }
    out.extend(left.into_iter().map(|(_, s)| s));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(s: &mut Sampler, epoch: u64) -> Vec<u32> {
        (0..s.per_epoch()).flat_map(|b| s.batch(epoch * s.per_epoch() + b).unwrap()).collect()
    }

    #[test]
    fn every_epoch_is_another_permutation_of_all_samples() {
        let new = || Sampler::new(Order::Shuffled { seed: 7 }, 10, 3, LastBatch::Keep).unwrap();
        let mut s = new();
        let (first, second) = (all(&mut s, 0), all(&mut s, 1));
        assert_ne!(first, second);
        for mut epoch in [first.clone(), second.clone()] {
            epoch.sort_unstable();
            assert_eq!(epoch, (0..10).collect::<Vec<_>>());
        }
        // A batch depends on its number alone, not on what was asked before.
        assert_eq!(new().batch(5), s.batch(5));
        assert_eq!((s.per_epoch(), s.batch(3).unwrap().len()), (4, 1));
    }

    /// The recorder in `tools/` makes the same orders, and has the same test.
    #[test]
    fn orders_stay_what_they_are() {
        assert_eq!(permutation(10, 7, 0), [0, 1, 3, 5, 6, 4, 8, 9, 2, 7]);
        assert_eq!(permutation(10, 7, 1), [2, 6, 5, 8, 7, 0, 3, 4, 1, 9]);
    }

    #[test]
    fn permutations_are_uniform() {
        // All 24 orders of 4, each expected 1000 times with a standard deviation of 31.
        let mut counts = std::collections::HashMap::new();
        for epoch in 0..24_000 {
            *counts.entry(permutation(4, 1, epoch)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 24);
        assert!(counts.values().all(|&c: &i32| (c - 1000).abs() < 5 * 31), "{counts:?}");
    }

    #[test]
    fn batches_are_of_one_bucket_but_for_what_is_left() {
        let (samples, batch) = (103, 8);
        let buckets: Vec<u8> = (0..samples).map(|i| (i % 7 % 3) as u8).collect();
        let order = Order::Shuffled { seed: 5 };
        let new = |last| Sampler::new(order.clone(), samples, batch, last).unwrap();
        let mut s = new(LastBatch::Keep).in_buckets(Arc::new(buckets.clone()));
        assert_eq!(s.per_epoch(), new(LastBatch::Keep).per_epoch());
        for epoch in 0..3 {
            let batches: Vec<Vec<u32>> = (0..13).map(|b| s.batch(epoch * 13 + b).unwrap()).collect();
            let mixed = |b: &Vec<u32>| b.iter().any(|&i| buckets[i as usize] != buckets[b[0] as usize]);
            assert!(batches.iter().filter(|b| mixed(b)).count() <= 3, "{batches:?}");
            let mut every = batches.concat();
            assert_eq!(every.len(), samples);
            every.sort_unstable();
            assert_eq!(every, (0..samples as u32).collect::<Vec<_>>());
        }
        let mut again = new(LastBatch::Keep).in_buckets(Arc::new(buckets));
        assert_eq!(again.batch(20), s.batch(20), "a batch depends on its number alone");
    }

    #[test]
    fn weighted_samples_are_drawn_in_proportion() {
        // Weights 1, 0, 3, 4 of 8, and none at the end.
        let sums = Arc::new(vec![1.0, 1.0, 4.0, 8.0, 8.0]);
        let order = Order::Shuffled { seed: 3 };
        let new = || Sampler::new(order.clone(), 5, 5, LastBatch::Drop).unwrap().weighted(sums.clone());
        let mut s = new();
        let mut counts = [0f64; 5];
        (0..1600).flat_map(|b| s.batch(b).unwrap()).for_each(|i| counts[i as usize] += 1.0);
        for (count, share) in counts.into_iter().zip([0.125, 0.0, 0.375, 0.5, 0.0]) {
            // Five standard deviations of a binomial of 8000 draws.
            let deviation = f64::sqrt(8000.0 * share * (1.0 - share));
            assert!((count - 8000.0 * share).abs() <= 5.0 * deviation, "{counts:?}");
        }
        assert_eq!(new().batch(7), s.batch(7), "a batch depends on its number alone");
    }

    #[test]
    fn last_batches_follow_the_policy() {
        let new = |last, samples| Sampler::new(Order::Sequential, samples, 4, last);
        let mut dropped = new(LastBatch::Drop, 10).unwrap();
        assert_eq!((dropped.per_epoch(), dropped.samples_per_epoch()), (2, 8));
        assert_eq!(dropped.batch(2), Some(vec![0, 1, 2, 3]));
        assert!(new(LastBatch::Error, 10).is_err() && new(LastBatch::Error, 8).is_ok());
        assert!(new(LastBatch::Drop, 3).is_err() && new(LastBatch::Keep, 3).is_ok());
        assert!(new(LastBatch::Drop, 0).is_err());
    }

    #[test]
    fn recorded_orders_end() {
        let order = |v: &[u32]| Order::Recorded { indices: Arc::new(v.to_vec()) };
        let mut s = Sampler::new(order(&[3, 1, 0, 0]), 4, 2, LastBatch::Drop).unwrap();
        assert_eq!((s.batch(0), s.batch(1), s.batch(2)), (Some(vec![3, 1]), Some(vec![0, 0]), None));
        assert!(Sampler::new(order(&[4, 0]), 4, 2, LastBatch::Drop).is_err());
        assert!(Sampler::new(order(&[1, 0, 1]), 4, 2, LastBatch::Drop).is_err());
    }
}
