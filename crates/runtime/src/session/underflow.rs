//! The share of the gradients that low precision flushes to zero: a step's program with counts beside it.

use super::trace::place;
use super::{ProgramId, Session, graphs};
use crate::error::{Error, Result};
use headwater_core::compile::{Instrument, Options};
use headwater_core::graph::Origin;
use headwater_core::pass::instrument::Probe;
use headwater_core::pass::precision::Level;
use headwater_core::{DType, Graph};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Elements that a backward pass rounded to zero in f16, though they were none. They are of the parameters'
/// gradients and of all gradients on the way to them, each where it was lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Underflow {
    /// Number of elements that were lost.
    pub lost: u64,
    /// Number of elements that were rounded to f16.
    pub elements: u64,
    /// The node that lost the largest share of its result (the first of several), with that share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<(String, f64)>,
}

impl Underflow {
    /// The share that was lost.
    pub fn share(&self) -> f64 {
        self.lost as f64 / self.elements.max(1) as f64
    }

    /// The sum of both, of two micro-batches.
    pub fn and(self, other: Underflow) -> Underflow {
        let share = |u: &Underflow| u.worst.as_ref().map_or(0.0, |w| w.1);
        let worst = if share(&other) > share(&self) { other.worst } else { self.worst };
        Underflow { lost: self.lost + other.lost, elements: self.elements + other.elements, worst }
    }
}

/// The counts of a program.
pub(super) struct Counts {
    program: ProgramId,
    probes: Vec<(Probe, usize)>,
    origins: Arc<Vec<Origin>>,
}

impl Session {
    /// True if gradients are rounded to f16, where they can underflow. bf16 has the range of f32.
    pub fn can_underflow(&self) -> bool {
        self.precision.level != Level::O0 && self.precision.dtype == DType::F16
    }

    /// As [`Session::training_program`]: its gradients have the same bits, and [`Session::underflow`] tells
    /// what they have lost. Every node of its backward pass runs twice, once
    /// to f32. A memory budget does not hold for it.
    ///
    /// # Errors
    /// As [`Session::training_program`].
    pub fn counting_program(&mut self, graph: &Graph) -> Result<ProgramId> {
        let (settings, sparse) = (&self.training()?.settings, self.sparse.clone());
        let (instrument, accumulate) = (Instrument::Underflow(DType::F16), settings.sums());
        let layout = self.layout.clone();
        let adjacent = graphs::adjacent(&layout);
        let options = graphs::training(&self.precision, settings, &sparse, &adjacent);
        let options = Options { instrument, accumulate, memory_budget: None, ..options };
        let (program, probes, origins) = self.compile_probed(graph, &options)?;
        self.counts.push(Counts { program, probes, origins });
        Ok(program)
    }

    /// Losses of the last run of a program of [`Session::counting_program`].
    ///
    /// # Errors
    /// `Model` for another program.
    pub fn underflow(&self, program: ProgramId) -> Result<Underflow> {
        let none = || Error::Model("the program counts no underflow".into());
        let counts = self.counts.iter().find(|c| c.program == program).ok_or_else(none)?;
        if counts.probes.is_empty() {
            return Ok(Underflow::default());
        }
        let lost = self.output(program, 1)?.to_f64();
        let mut found = Underflow::default();
        let mut most = None;
        for ((probe, elements), lost) in counts.probes.iter().zip(lost) {
            (found.lost, found.elements) = (found.lost + lost as u64, found.elements + *elements as u64);
            let share = lost / *elements as f64;
            if share > most.map_or(0.0, |(_, s)| s) {
                most = Some((probe, share));
            }
        }
        found.worst = most.map(|(probe, share)| {
            let origin = &counts.origins[probe.origin.0 as usize];
            (place(probe.op.name, probe.dtype, probe.phase, origin), share)
        });
        Ok(found)
    }
}
