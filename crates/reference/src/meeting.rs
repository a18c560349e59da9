//! Collectives of several ranks: what each issues, and what they compute when all have come.

use crate::clock::{Clock, StreamId, User};
use headwater_core::diagnostic::{Code, Error, Result};
use headwater_core::graph::Origin;
use headwater_core::ops::collective::{axis, ranks};
use headwater_core::reference::apply_ranks;
use headwater_core::{Attrs, OpDef, Tensor, TensorType};
use std::fmt;

type Gather = Box<dyn FnOnce(User) -> Result<Vec<Option<Tensor>>> + Send>;
type Scatter = Box<dyn FnOnce(User, Result<Vec<Tensor>>) -> Result<()> + Send>;

/// A collective as a rank issues it.
pub(crate) struct Issue {
    pub rank: usize,
    pub op: &'static OpDef,
    pub attrs: Attrs,
    pub inputs: Vec<Option<TensorType>>,
    pub outputs: Vec<TensorType>,
    pub origin: Origin,
    /// Reads what the rank gives.
    pub gather: Option<Gather>,
    /// Writes what the rank gets, or notes the failure; returns that of the stream.
    pub scatter: Option<Scatter>,
}

impl fmt::Display for Issue {
    /// `all_reduce(f32[4]) of 2 ranks on data (linear in fc, model.py:3)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = self.inputs.iter().flatten().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
        let (ranks, axis) = (ranks(&self.attrs), axis(&self.attrs));
        write!(f, "{}({types}) of {ranks} ranks on {axis} ({})", self.op.name, self.origin)
    }
}

impl Issue {
    /// True if another rank issues the same.
    fn agrees(&self, other: &Issue) -> bool {
        self.op == other.op
            && self.attrs == other.attrs
            && self.inputs == other.inputs
            && self.outputs == other.outputs
    }
}

/// Does a collective to which every rank has come, in the order of ranks. Returns the failure of each rank's
/// stream.
pub(crate) fn meet(issues: &mut [(StreamId, u64, Clock, Issue)]) -> Vec<Option<Error>> {
    let given = agreed(issues).and_then(|()| gathered(issues));
    let results = given.and_then(|given| {
        let first = &issues[0].3;
        let given: Vec<Vec<Option<&Tensor>>> =
            given.iter().map(|g| g.iter().map(Option::as_ref).collect()).collect();
        apply_ranks(first.op, &first.attrs, &given, &first.outputs)
    });
    let scatter = |(rank, (stream, time, clock, issue)): (usize, &mut (StreamId, u64, Clock, Issue))| {
        let own = match &results {
            Ok(all) => Ok(all[rank].clone()),
            Err(e) => Err(e.clone()),
        };
        let user = User { stream: *stream, time: *time, clock };
        issue.scatter.take().and_then(|scatter| scatter(user, own).err())
    };
    issues.iter_mut().enumerate().map(scatter).collect()
}

/// Refuses ranks that issue different collectives.
fn agreed(issues: &[(StreamId, u64, Clock, Issue)]) -> Result<()> {
    let first = &issues[0].3;
    match issues.iter().map(|i| &i.3).find(|other| !first.agrees(other)) {
        None => Ok(()),
        Some(other) => {
            let message = format!(
                "ranks issue different collectives: rank {} {first}, rank {} {other}",
                first.rank, other.rank
            );
            Err(Error::new(Code::Device, message).in_op(first.op.name).at(&first.origin))
        }
    }
}

/// The inputs of all ranks.
fn gathered(issues: &mut [(StreamId, u64, Clock, Issue)]) -> Result<Vec<Vec<Option<Tensor>>>> {
    let own = |(stream, time, clock, issue): &mut (StreamId, u64, Clock, Issue)| {
        let user = User { stream: *stream, time: *time, clock };
        let given = issue.gather.take().map_or_else(|| Ok(Vec::new()), |gather| gather(user));
        given.map_err(|mut e| {
            e.message = format!("rank {} has nothing to give: {}", issue.rank, e.message);
            e
        })
    };
    issues.iter_mut().map(own).collect()
}
