//! The ranks of a run as its trainer sees them: what they tell each other in a step, that they begin alike,
//! and that the one which has the checkpoints speaks for all.

use super::lanes::{Computed, Seen};
use super::{Opened, Trainer};
use crate::checkpoint::{Ask, Found, follow};
use crate::config::TrainConfig;
use crate::data::Feeding;
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::session::{Session, Underflow};
use crate::together;
use headwater_core::device::Device;
use headwater_core::ranks::{Mesh, Transport, lanes_of};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Samples that are compared when ranks begin, at equal distances through the data.
const COMPARED: usize = 64;

/// This rank among the others.
#[derive(Clone)]
pub(super) struct World {
    transport: Arc<dyn Transport>,
}

/// A rank's part of a step, beside its gradients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Told {
    /// Losses of its batches, in the order of their numbers, as bits: they may be NaN.
    pub losses: Vec<u64>,
    pub samples: usize,
    pub underflow: Option<Underflow>,
    /// True if it was asked to stop, and if it is time to save: what one rank sees holds for all.
    pub stop: bool,
    pub late: bool,
    /// Digests of the weights before the step and of the reduced gradients, by bucket, where they are
    /// compared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gradients: Vec<u64>,
    /// The lane of the step that two ranks compute, as this one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed: Option<Computed>,
    /// Its lanes, for the log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<Seen>,
}

/// Facts in which ranks must not differ, the most fundamental first: each with its name.
pub(super) type Facts = Vec<(String, String)>;

impl World {
    /// The ranks that a device reaches; `None` for a device alone.
    pub fn of(device: &dyn Device) -> Option<World> {
        device.transport().filter(|t| t.ranks() > 1).map(|transport| World { transport })
    }

    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    pub fn ranks(&self) -> usize {
        self.transport.ranks()
    }

    pub fn mesh(&self) -> Mesh {
        Mesh::data(self.ranks(), self.rank())
    }

    /// This rank's lanes.
    pub fn lanes(&self, of: u32) -> Range<usize> {
        self.lanes_of(self.rank(), of)
    }

    /// The lanes of a rank.
    pub fn lanes_of(&self, rank: usize, of: u32) -> Range<usize> {
        lanes_of(rank, self.ranks(), of as usize)
    }

    /// Says where this rank is.
    pub fn at(&self, doing: &str) {
        self.transport.at(doing);
    }

    /// A rank in words.
    pub fn named(&self, rank: usize) -> String {
        self.transport.named(rank)
    }

    /// All ranks end in order.
    pub fn leave(&self) {
        self.transport.leave();
    }

    /// The numbers that each rank contributes, in their order.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, own: &T) -> Result<Vec<T>> {
        together::gather(&*self.transport, own)
    }

    /// The values of all ranks, if each has one; otherwise all end ([`together::all`]).
    pub fn all<T: Serialize + DeserializeOwned>(
        &self,
        own: Result<T>,
        told: impl FnOnce(String) -> Error,
    ) -> Result<Vec<T>> {
        together::all(&*self.transport, own, told)
    }

    /// The transport, for those who work on checkpoints jointly.
    pub fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// Opens the directory of checkpoints: rank 0 alone, which tells the others what to restore. Each
    /// verifies its part.
    pub fn open(&self, config: &TrainConfig, resume: bool) -> Result<Opened> {
        if self.rank() > 0 {
            let checkpoint = follow(&self.transport);
            if matches!(checkpoint, Err(Error::AsRankZero)) {
                self.leave();
            }
            let found = checkpoint?.map(|c| Found { checkpoint: Some(c), damaged: Vec::new() });
            return Ok(Opened { store: None, found });
        }
        let own = Opened::of(config, resume, Some(&self.transport));
        let ask = match &own {
            Ok(opened) => {
                let found = opened.found.as_ref().and_then(|f| f.checkpoint.as_ref());
                // Absolute: the others may have begun in another folder.
                let path = found.map(|c| std::path::absolute(c.path()).unwrap_or_else(|_| c.path().into()));
                Ask::Go(path)
            }
            Err(_) => Ask::End,
        };
        self.gather(&ask)?;
        if own.is_err() {
            self.leave();
        }
        own
    }

    /// Compares the facts of all ranks; each gives what it has, or its error. All go on, or all end.
    pub fn agreed<'a>(
        &self,
        made: Result<Trainer<'a>>,
        facts: fn(&Trainer<'a>) -> Result<Facts>,
    ) -> Result<Trainer<'a>> {
        let own = match &made {
            Ok(trainer) => facts(trainer).map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        let all: Vec<Result<Facts, String>> = self.gather(&own)?;
        let refused = match (all.iter().position(Result::is_err), self.difference(&all)) {
            (None, None) => return made,
            (None, Some(difference)) => match self.rank() {
                0 => Error::Ranks(difference),
                _ => Error::AsRankZero,
            },
            (Some(first), _) => match made {
                // The same on all ranks: one of them is enough.
                Err(_) if self.rank() > 0 && all.iter().all(|a| *a == all[0]) => Error::AsRankZero,
                Err(e) => e,
                Ok(_) => {
                    let why = all[first].as_ref().err().map_or("", String::as_str);
                    Error::Ranks(format!("{} does not begin: {why}", self.named(first)))
                }
            },
        };
        self.leave();
        Err(refused)
    }

    /// The first fact in which a rank differs from rank 0.
    fn difference(&self, all: &[Result<Facts, String>]) -> Option<String> {
        let facts: Vec<&Facts> = all.iter().filter_map(|f| f.as_ref().ok()).collect();
        let first = facts.first()?;
        for (i, (name, value)) in first.iter().enumerate() {
            let other =
                facts.iter().enumerate().find(|(_, f)| f.get(i).is_none_or(|(n, v)| (n, v) != (name, value)));
            let Some((rank, other)) = other else { continue };
            let none = "nothing".to_string();
            let theirs = other.iter().find(|(n, _)| n == name).map_or(&none, |(_, v)| v);
            return Some(format!(
                "{} and {} differ in {name}: {value} and {theirs}. Ranks of a run have the same program, settings and data: \
                 start all with the same command, on the same files",
                self.named(0),
                self.named(rank)
            ));
        }
        None
    }
}

impl Told {
    /// The reports of all ranks, as one. The losses are in the order of the batches, as ranks are.
    pub fn together(all: Vec<Told>) -> Told {
        all.into_iter().fold(Told::default(), |mut sum, own| {
            sum.losses.extend(own.losses);
            sum.samples += own.samples;
            sum.lanes.extend(own.lanes);
            sum.underflow = match (sum.underflow, own.underflow) {
                (Some(a), Some(b)) => Some(a.and(b)),
                (a, b) => a.or(b),
            };
            (sum.stop, sum.late) = (sum.stop || own.stop, sum.late || own.late);
            sum
        })
    }
}

impl Trainer<'_> {
    /// Facts in which the ranks of a run must not differ before they restore a checkpoint jointly.
    pub(super) fn facts(&self) -> Result<Facts> {
        let mut facts = vec![("the version of Headwater".into(), env!("CARGO_PKG_VERSION").to_string())];
        facts.push(("the arithmetic of the device".into(), self.session.arithmetic()));
        // Places of files may differ: what is in them is compared below.
        let elsewhere = ["log", "alert", "checkpoint.dir", "data.train", "data.eval", "init.weights"];
        if let Ok(settings) = serde_json::to_value(&self.config) {
            leaves(String::new(), &settings, &mut |name, value| {
                if !elsewhere
                    .iter()
                    .any(|e| name == *e || name.strip_prefix(e).is_some_and(|r| r.starts_with('.')))
                {
                    facts.push((format!("the setting `{name}`"), value));
                }
            });
        }
        let saves = self.config.checkpoint.dir.is_some();
        facts.push(("whether they save checkpoints".into(), saves.to_string()));
        let data = [("the training data", Some(&self.train)), ("the held-out data", self.eval.as_ref())];
        for (name, feeding) in data.into_iter().filter_map(|(n, f)| Some((n, f?))) {
            facts.push((format!("{name}, in samples"), feeding.samples().to_string()));
            facts.push((format!("{name}, in their content"), format!("{:016x}", content(feeding)?)));
        }
        let mut plans = 0;
        for program in [self.session.program()?, self.session.update_program()?] {
            plans = digest(plans, self.session.plan(program).to_string().as_bytes());
        }
        facts.push(("the plan of a step".into(), format!("{plans:016x}")));
        Ok(facts)
    }

    /// Facts in which they must not differ when they begin.
    pub(super) fn beginnings(&self) -> Result<Facts> {
        let step = ("the step that they begin with".into(), self.step.to_string());
        let weights = format!("{:016x}", weights(&self.session)?);
        Ok(vec![step, ("the weights that they begin with".into(), weights)])
    }
}

/// Calls `take` with the name and value of every setting.
fn leaves(path: String, value: &serde_json::Value, take: &mut impl FnMut(&str, String)) {
    match value {
        serde_json::Value::Object(all) => {
            for (name, value) in all {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(path, value, take);
            }
        }
        other => take(&path, other.to_string()),
    }
}

/// A digest of samples at equal distances.
fn content(feeding: &Feeding) -> Result<u64> {
    let (samples, mut sum) = (feeding.samples(), 0);
    for i in 0..COMPARED.min(samples) {
        let sample = i * samples / COMPARED.min(samples);
        for feed in feeding.feeds(0) {
            let mut bytes = Vec::new();
            feeding.data().columns()[feed.column].append(sample, feed.dtype, &mut bytes)?;
            sum = digest(sum, &bytes);
        }
    }
    Ok(sum)
}

/// A digest of parameters and buffers.
fn weights(session: &Session) -> Result<u64> {
    let mut sum = 0;
    for tensor in session.tensors() {
        sum = digest(sum, &session.read(tensor)?);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_tell_is_put_together_in_their_order() {
        let told = |losses: &[f64], stop| Told {
            losses: losses.iter().map(|l| l.to_bits()).collect(),
            samples: 2,
            stop,
            ..Told::default()
        };
        let all = Told::together(vec![told(&[1.0, f64::NAN], false), told(&[3.0], true)]);
        let losses: Vec<f64> = all.losses.iter().map(|b| f64::from_bits(*b)).collect();
        assert!(losses[0] == 1.0 && losses[1].is_nan() && losses[2] == 3.0);
        assert!(all.samples == 4 && all.stop && !all.late);
    }
}
