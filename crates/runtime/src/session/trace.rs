//! Search for the node that made the first inf or NaN: the step's graph once more, every node looked at.

use super::{ProgramId, Session, graphs};
use crate::error::Result;
use headwater_core::compile::{Instrument, Options};
use headwater_core::graph::{Origin, Phase};
use headwater_core::pass::instrument::Probe;
use headwater_core::{DType, Graph};
use std::fmt;
use std::sync::Arc;

/// The node that made the first inf or NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct Culprit {
    /// Its operator.
    pub op: &'static str,
    /// Its origin: node of the export, module path, source line.
    pub origin: Origin,
    /// Part of the step.
    pub phase: Phase,
    /// Dtype of its result.
    pub dtype: DType,
    /// NaN, or else inf.
    pub nan: bool,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.nan { "NaN" } else { "inf" };
        write!(f, "{what} first in {}", place(self.op, self.dtype, self.phase, &self.origin))
    }
}

/// A node as a report names it.
pub(super) fn place(op: &str, dtype: DType, phase: Phase, origin: &Origin) -> String {
    let phase = if phase == Phase::Forward { "forward" } else { "backward" };
    format!("{op} ({dtype}) of the {phase} pass at {origin}")
}

/// A compiled trace of a graph.
pub(super) struct Trace {
    /// Bytes of what it is fed, by which it is found again.
    fed: Vec<usize>,
    program: ProgramId,
    probes: Vec<Probe>,
    origins: Arc<Vec<Origin>>,
}

impl Session {
    /// Runs forward and backward of a micro-batch once more, on the state as it is. Finds the first node
    /// whose result has an inf or NaN. Changes no state. The first call for a graph compiles it, with outputs
    /// that measure every result as it is computed. The arena may grow, beyond a memory budget too.
    ///
    /// # Errors
    /// `Model` in a session for evaluation, and what passes and the device refuse.
    pub fn culprit(&mut self, graph: &Graph, feeds: &[impl AsRef<[u8]>]) -> Result<Option<Culprit>> {
        let fed: Vec<usize> = feeds.iter().map(|f| f.as_ref().len()).collect();
        let at = match self.traces.iter().position(|t| t.fed == fed) {
            Some(at) => at,
            None => {
                let (settings, sparse) = (&self.training()?.settings, self.sparse.clone());
                let instrument = Instrument::Probes;
                let layout = self.layout.clone();
                let adjacent = graphs::adjacent(&layout);
                let options = graphs::training(&self.precision, settings, &sparse, &adjacent);
                let options = Options { instrument, memory_budget: None, ..options };
                let (program, probes, origins) = self.compile_probed(graph, &options)?;
                let probes = probes.into_iter().map(|(probe, _)| probe).collect();
                self.traces.push(Trace { fed, program, probes, origins });
                self.traces.len() - 1
            }
        };
        let program = self.traces[at].program;
        self.gradients(program, feeds)?;
        let seen = self.output(program, 0)?.to_f64();
        let trace = &self.traces[at];
        let first = trace.probes.iter().zip(&seen).find(|(_, x)| !x.is_finite());
        Ok(first.map(|(probe, x)| Culprit {
            op: probe.op.name,
            origin: trace.origins[probe.origin.0 as usize].clone(),
            phase: probe.phase,
            dtype: probe.dtype,
            nan: x.is_nan(),
        }))
    }
}
