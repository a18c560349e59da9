//! Ranks that compute wrongly. Digests of the reduced gradients and of the weights are compared, and a lane
//! is recomputed on another rank. What differs is named with step, parameter and rank, and all ranks end.

use super::Trainer;
use super::lanes::Computed;
use super::world::{Told, World};
use crate::config::{Flip, FlipConfig};
use crate::data::{Batch, Loader, gather};
use crate::digest::{Digest, digest};
use crate::error::{Error, Result};
use crate::session::Part;

/// A lane that is computed by two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Twice {
    pub lane: usize,
    /// The rank whose lane it is, and the other one that computes it.
    pub owner: usize,
    pub other: usize,
}

/// The lane of a step that is recomputed, if `every` is over: lanes take turns, and so do ranks.
pub(super) fn twice(step: u64, every: u64, lanes: usize, world: &World) -> Option<Twice> {
    if every == 0 || !step.is_multiple_of(every) || world.ranks() < 2 {
        return None;
    }
    let number = step / every;
    let lane = (number % lanes as u64) as usize;
    let owner = (0..world.ranks()).find(|r| world.lanes_of(*r, lanes as u32).contains(&lane))?;
    let further = (number / lanes as u64 % (world.ranks() as u64 - 1)) as usize;
    Some(Twice { lane, owner, other: (owner + 1 + further) % world.ranks() })
}

/// Ranks of which each has a value: those that differ from more than half of all; `None` if no value is that
/// of so many.
fn minority<T: PartialEq>(values: &[T]) -> Option<Vec<usize>> {
    let most = values.iter().find(|v| 2 * values.iter().filter(|w| w == v).count() > values.len())?;
    Some((0..values.len()).filter(|i| values[*i] != *most).collect())
}

impl World {
    /// Ranks in words.
    fn list(&self, ranks: &[usize]) -> String {
        let named: Vec<String> = ranks.iter().map(|r| self.named(*r)).collect();
        named.join(" and ")
    }

    /// Says which of the ranks is wrong, by a value of each, if that can be known.
    fn wrong<T: PartialEq>(&self, values: &[T], lanes: u32) -> String {
        match minority(values) {
            Some(few) => {
                let has = if few.len() == 1 { "differs" } else { "differ" };
                format!("{} {has} from the other {}", self.list(&few), values.len() - few.len())
            }
            None => {
                let each =
                    |r: usize| format!("{} ({})", self.named(r), lanes_in_words(self.lanes_of(r, lanes)));
                let first = values.iter().position(|v| *v != values[0]).unwrap_or(0);
                let why = match values.len() {
                    2 => "of two ranks, nothing tells which is wrong",
                    _ => "no value is that of most ranks, so nothing tells which are wrong",
                };
                format!("{} and {} differ; {why}", each(0), each(first))
            }
        }
    }
}

fn lanes_in_words(lanes: std::ops::Range<usize>) -> String {
    match lanes.len() {
        1 => format!("lane {}", lanes.start),
        _ => format!("lanes {} to {}", lanes.start, lanes.end.saturating_sub(1)),
    }
}

impl Trainer<'_> {
    /// True if the ranks compare digests in the present step.
    pub(super) fn compares(&self) -> bool {
        let every = self.config.ranks.digests;
        self.world.is_some() && every > 0 && self.step.is_multiple_of(every)
    }

    /// The lane of the present step that two ranks compute.
    pub(super) fn twice(&self) -> Option<Twice> {
        let ranks = &self.config.ranks;
        twice(self.step, ranks.recompute, ranks.lanes() as usize, self.world.as_ref()?)
    }

    /// Batches of this rank, of this step and all later ones, in the order in which they are computed: those
    /// of a lane of another rank are first.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> + Send + use<> {
        let (batches, own, world) = (self.config.batches(), self.own_lanes(), self.world.clone());
        let (every, lanes) = (self.config.ranks.recompute, self.config.ranks.lanes() as usize);
        (self.step..).flat_map(move |step| {
            let twice = world.as_ref().and_then(|w| {
                let twice = twice(step, every, lanes, w).filter(|t| t.other == w.rank())?;
                Some(batches.of_lanes(step, twice.lane..twice.lane + 1))
            });
            twice.into_iter().flatten().chain(batches.of_lanes(step, own.clone()))
        })
    }

    /// Flips the bit that the settings say, if it is this rank's and the step's.
    pub(super) fn flip(&mut self, at: Flip) -> Result<()> {
        let Some(FlipConfig { step, rank, parameter, .. }) = self.config.flip.clone().filter(|f| f.at == at)
        else {
            return Ok(());
        };
        if step != self.step + 1 || self.world.as_ref().map_or(0, World::rank) != rank {
            return Ok(());
        }
        let entries: Vec<_> = self.session.layout().entries().collect();
        let middle = entries.get(entries.len() / 2).map(|(_, e)| e.name.clone());
        let part = if at == Flip::Weight { Part::Weights } else { Part::Gradients };
        parameter.or(middle).map_or(Ok(()), |name| self.session.flip_bit(part, &name))
    }

    /// Digests of the weights: by bucket, and of all that is not trained.
    fn weights(&self) -> Result<Vec<u64>> {
        let mut found = self.session.digests(Part::Weights)?;
        let untrained = self.session.digests_untrained()?;
        found.push(untrained.iter().fold(0, |sum, (_, of)| digest(sum, &of.to_le_bytes())));
        Ok(found)
    }

    /// Adds what the ranks compare to what this one tells.
    pub(super) fn witness(&mut self, told: &mut Told) -> Result<()> {
        self.flip(Flip::Gradient)?;
        self.flip(Flip::Weight)?;
        if self.compares() {
            self.at(|t| format!("step {}, digests", t.step + 1));
            (told.weights, told.gradients) = (self.weights()?, self.session.digests(Part::Gradients)?);
        }
        Ok(())
    }

    /// Compares what all ranks have told.
    ///
    /// # Errors
    /// `Drift` on all ranks if a rank computes wrongly.
    pub(super) fn agree(&mut self, all: &[Told]) -> Result<()> {
        let Some(world) = self.world.clone() else { return Ok(()) };
        let step = self.step + 1;
        let differs = |of: fn(&Told) -> &Vec<u64>| {
            let most = all.iter().map(|t| of(t).len()).max().unwrap_or(0);
            (0..most).find(|i| all.iter().any(|t| of(t).get(*i) != of(&all[0]).get(*i)))
        };
        if let Some(bucket) = differs(|t| &t.weights) {
            let when = match self.config.ranks.digests {
                1 => format!("before step {step}"),
                n => format!("before step {step}, in one of the last {n} steps"),
            };
            return Err(self.culprit_of(&world, Part::Weights, bucket, &when)?);
        }
        if let Some(bucket) = differs(|t| &t.gradients) {
            return Err(self.culprit_of(&world, Part::Gradients, bucket, &format!("in step {step}"))?);
        }
        let Some(twice) = self.twice() else { return Ok(()) };
        let of = |rank: usize| all.get(rank).and_then(|t| t.computed.as_ref());
        match (of(twice.owner), of(twice.other)) {
            (Some(first), Some(second)) if first == second => Ok(()),
            (Some(first), Some(second)) => Err(self.judged(&world, twice, first, second)?),
            // Settings are the same on all ranks, and so is the choice of the lane.
            _ => Err(Error::Drift(format!(
                "in step {step}, {} and {} were to compute lane {}, and one has not",
                world.named(twice.owner),
                world.named(twice.other),
                twice.lane
            ))),
        }
    }

    /// Compares all state that a checkpoint keeps, so that none is saved in which ranks differ.
    ///
    /// # Errors
    /// `Drift` on all ranks if they do.
    pub(super) fn agree_on_state(&self) -> Result<()> {
        let Some(world) = self.world.clone().filter(|_| self.config.ranks.digests > 0) else { return Ok(()) };
        let own = (self.weights()?, self.session.digests(Part::Moments)?);
        let all: Vec<(Vec<u64>, Vec<u64>)> = world.gather(&own)?;
        let when = format!("after {} steps", self.step);
        let weights = (0..own.0.len()).find(|i| all.iter().any(|a| a.0.get(*i) != all[0].0.get(*i)));
        if let Some(bucket) = weights {
            return Err(self.culprit_of(&world, Part::Weights, bucket, &when)?);
        }
        let moments = (0..own.1.len()).find(|i| all.iter().any(|a| a.1.get(*i) != all[0].1.get(*i)));
        match moments {
            Some(bucket) => Err(self.culprit_of(&world, Part::Moments, bucket, &when)?),
            None => Ok(()),
        }
    }

    /// The error of a bucket in which ranks differ, or, after the last, of what is not trained: all ranks
    /// compare each of its tensors.
    fn culprit_of(&self, world: &World, part: Part, bucket: usize, when: &str) -> Result<Error> {
        let buckets = &self.session.layout().buckets;
        let (own, place) = match buckets.get(bucket) {
            Some(b) => {
                let names = b.entries.iter().map(|e| e.name.clone());
                let own: Vec<(String, u64)> = names.zip(self.session.digests_in(part, bucket)?).collect();
                (own, format!("bucket {bucket} of {}", buckets.len()))
            }
            None => {
                let own = self.session.digests_untrained()?;
                (own.into_iter().map(|(n, d)| (n.to_string(), d)).collect(), "what is not trained".into())
            }
        };
        let all: Vec<Vec<(String, u64)>> = world.gather(&own)?;
        let first = (0..own.len()).find(|i| all.iter().any(|a| a.get(*i) != all[0].get(*i)));
        let what = match part {
            Part::Weights => "the weights",
            Part::Moments => "the optimizer's moments",
            Part::Gradients => "the reduced gradients",
        };
        let lanes = self.config.ranks.lanes();
        let wrong = match first {
            Some(i) => {
                let values: Vec<Option<&(String, u64)>> = all.iter().map(|a| a.get(i)).collect();
                format!("first in `{}` ({place}): {}", own[i].0, world.wrong(&values, lanes))
            }
            // Bytes between parameters, which nothing writes.
            None => {
                format!("in {place}, outside its parameters: a rank has written where nothing is written")
            }
        };
        Ok(Error::Drift(format!("{what} of ranks differ {when}, {wrong}")))
    }

    /// What this rank computed for the lane that is over: the gradients are still in memory.
    pub(super) fn computed(&self, fed: u64, losses: &[u64]) -> Result<Computed> {
        let mut gradients = Vec::new();
        for bucket in 0..self.session.layout().buckets.len() {
            gradients.extend(self.session.digests_in(Part::Gradients, bucket)?);
        }
        let losses = losses.iter().fold(0, |sum, loss| digest(sum, &loss.to_le_bytes()));
        Ok(Computed { fed, losses, gradients })
    }

    /// Computes a lane of another rank, whose batches are next in the loader.
    pub(super) fn recompute(&mut self, loader: &mut Loader, lane: usize, counts: bool) -> Result<Computed> {
        let numbers = self.config.batches().of_lanes(self.step, lane..lane + 1);
        let batches = numbers.map(|_| self.timed("wait for data", None, |t| t.next(loader)));
        let batches = batches.collect::<Result<Vec<_>>>()?;
        self.computed_again(batches, counts)
    }

    fn computed_again(&mut self, batches: Vec<Batch>, counts: bool) -> Result<Computed> {
        self.session.begin_step()?;
        let (mut fed, mut losses) = (0, Vec::new());
        for batch in batches {
            fed = fed_digest(fed, &batch);
            losses.push(self.batch(&batch, counts)?.1.to_bits());
        }
        self.flip(Flip::Lane)?;
        let computed = self.computed(fed, &losses)?;
        self.session.begin_step()?;
        Ok(computed)
    }

    /// The error of a lane that two ranks have computed to other bits: every rank computes it once more, and
    /// a rank that differs from most, or from itself, is wrong.
    fn judged(&mut self, world: &World, twice: Twice, first: &Computed, second: &Computed) -> Result<Error> {
        let (step, Twice { lane, owner, other }) = (self.step + 1, twice);
        let mut sampler = self.sampler.clone();
        let numbers = self.config.batches().of_lanes(self.step, lane..lane + 1);
        let batches = numbers.map_while(|index| gather(&self.train, &mut sampler, index));
        let batches = batches.map(|b| b.map(|(batch, _)| batch)).collect::<Result<Vec<_>>>()?;
        let counts = self.session.can_underflow() && self.config.amp.counts_underflow(self.step);
        let own = self.computed_again(batches, counts)?;
        let all: Vec<Computed> = world.gather(&own)?;
        let parameter = first.gradients.iter().zip(&second.gradients).position(|(a, b)| a != b);
        let name = parameter.and_then(|i| Some(self.session.layout().entries().nth(i)?.1.name.clone()));
        let what = match (first.fed == second.fed, name) {
            (false, _) => "is fed other data".to_string(),
            (true, Some(name)) => format!("has other gradients, first of `{name}`,"),
            (true, None) => "has another loss".into(),
        };
        let unlike: Vec<usize> = [(owner, first), (other, second)]
            .into_iter()
            .filter(|(r, c)| all[*r] != **c)
            .map(|(r, _)| r)
            .collect();
        let wrong = match (minority(&all), &unlike[..]) {
            (_, [_, ..]) => format!("{} computed it once more, and to other bits", world.list(&unlike)),
            (Some(few), []) if !few.is_empty() => world.wrong(&all, self.config.ranks.lanes()),
            _ => "each computes the same once more; of two ranks, nothing tells which is wrong".into(),
        };
        Ok(Error::Drift(format!(
            "in step {step}, lane {lane} of {} {what} when {} computes it; {wrong}",
            world.named(owner),
            world.named(other)
        )))
    }
}

/// A digest of all that was fed, after that of earlier batches.
pub(super) fn fed_digest(begin: u64, batch: &Batch) -> u64 {
    let mut sum = Digest::new(begin);
    batch.inputs.iter().for_each(|input| sum.add(input));
    sum.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_differs_from_most_is_the_minority() {
        assert_eq!(minority(&[1, 1, 2]), Some(vec![2]));
        assert_eq!(minority(&[3, 1, 1, 2, 1]), Some(vec![0, 3]));
        assert_eq!(minority(&[1, 1]), Some(vec![]));
        assert_eq!(minority(&[1, 2]), None);
        assert_eq!(minority(&[1, 1, 2, 2]), None);
    }
}
