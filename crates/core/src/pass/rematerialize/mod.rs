//! Rematerialization under a memory budget (activation checkpointing; Chen et al. 2016, "Training deep nets
//! with sublinear memory cost"). It chooses the results of the forward pass that the backward pass computes a
//! second time, so that a plan fits into a budget. Products, convolutions and attention are among them.
//!
//! The choice is greedy, by bytes times moments over the limit for each second of recomputation, among single
//! results and whole modules (`choice`). Predictions of memory come from the graph's order alone; they are
//! then corrected by the plans that are really made, until one fits. Nothing has run by then.
//!
//! *Exact*, as `recompute` is, on a device that computes in the type in which results are stored. It applies
//! the same operators on the same operands, each at most a second time. Random numbers are a function of
//! seed, step and stream, and are drawn again the same.

mod choice;
mod timeline;
mod units;
mod write;

use super::lower::plan;
use crate::diagnostic::{Code, Error, Result};
use crate::graph::Graph;
use crate::plan::{Bindings, Plan};
use crate::target::Target;
use choice::Choice;

/// A plan that has been made to fit, and what that costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rematerialized {
    /// Bytes of memory requested: all segments and the arena.
    pub budget: usize,
    /// Bytes planned without.
    pub before: usize,
    /// Bytes planned now.
    pub after: usize,
    /// Results of the forward pass that are computed a second time instead of being kept.
    pub results: usize,
    /// Floating-point operations of forward and backward without, and those computed a second time.
    pub flops: f64,
    /// See `flops`.
    pub more_flops: f64,
    /// Seconds of forward and backward without, predicted from the target's nominal rates: an estimate, good
    /// for the ratio to `more_seconds`.
    pub seconds: f64,
    /// Seconds predicted for what is computed a second time.
    pub more_seconds: f64,
}

/// Plans that are made at most, to correct the prediction of memory.
const TRIES: usize = 10;

/// The graph changed so that its plan, with all segments that it is bound to, takes at most `budget` bytes.
/// The second part is the cost, `None` if it fits as it is.
///
/// # Errors
/// `Size` if no choice fits, with the least that is reachable; what lowering refuses.
pub fn rematerialize(
    graph: Graph,
    bindings: &Bindings,
    budget: usize,
    target: &Target,
) -> Result<(Graph, Option<Rematerialized>)> {
    let planned = plan(&graph, bindings, target)?;
    let before = total(&planned);
    if before <= budget {
        return Ok((graph, None));
    }
    let arena = planned.segments[0].bytes;
    let outside = before - arena;
    let mut choice = Choice::new(&graph, target)?;
    let work = choice.all();
    // Bytes predicted for every byte that is planned.
    let predicted = choice.peak() / arena.max(1) as f64;
    let room = budget.saturating_sub(outside);
    let (mut limit, mut least) = (room as f64 * predicted, before);
    for _ in 0..TRIES {
        let reached = choice.reduce(limit);
        let (written, results) = write::write(&graph, &choice);
        let planned = plan(&written, bindings, target)?;
        let after = total(&planned);
        least = least.min(after);
        if after <= budget {
            let cost = Rematerialized {
                budget,
                before,
                after,
                results,
                flops: work.0,
                more_flops: choice.more().0,
                seconds: work.1,
                more_seconds: choice.more().1,
            };
            return Ok((written, Some(cost)));
        }
        if !reached {
            break;
        }
        limit = choice.peak().min(limit) * (room as f64 / (after - outside) as f64).min(0.99);
    }
    // The error tells how low this can go.
    if choice.reduce(0.0) || choice.moved() {
        let (written, _) = write::write(&graph, &choice);
        least = least.min(total(&plan(&written, bindings, target)?));
    }
    let mib = |bytes: usize| match bytes >> 20 {
        0 => format!("{:.1} KiB", bytes as f64 / (1 << 10) as f64),
        _ => format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64),
    };
    Err(Error::new(
        Code::Size,
        format!(
            "a training step does not fit into the memory budget of {}: it takes {}, and {} with all \
             recomputation that helps, of which {} are parameters, state, inputs and outputs. Raise the budget, \
             or make the batch smaller",
            mib(budget),
            mib(before),
            mib(least),
            mib(outside)
        ),
    ))
}

/// All bytes of a plan.
fn total(plan: &Plan) -> usize {
    plan.segments.iter().map(|s| s.bytes).sum()
}
