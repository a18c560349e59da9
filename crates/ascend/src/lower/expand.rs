//! Operators whose expansions run here: those of which each step has a kernel.

use super::launch::Refusal;
use super::step;
use crate::chip::Chip;
use headwater_core::TensorType;
use headwater_core::expand::{ExpandedStep, Expansion, Memory, View, find};
use headwater_core::graph::{Origin, OriginId, Phase};
use headwater_core::ops::{OpCx, OpDef};
use headwater_core::plan::{Place, SegmentId, Step, TensorView};

/// True if an operator has an expansion whose steps all have kernels, for contiguous operands of these types.
pub fn expands(chip: &Chip, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> bool {
    let sequence = find(op).and_then(|expansion| expansion.contiguous(cx, outs).ok());
    let runs = |own: &ExpandedStep| step(chip, false, &alone(op.name, own), &Origin::default()).is_ok();
    sequence.is_some_and(|sequence| sequence.steps.iter().all(runs))
}

/// The reason why a step of a plan is an operator as a whole that has an expansion.
pub(super) fn whole(expansion: &Expansion, cx: &OpCx, outs: &[TensorType]) -> Refusal {
    match expansion.contiguous(cx, outs) {
        Err(e) => Refusal(e.message),
        Ok(_) => Refusal::new("a step of its expansion has no kernel"),
    }
}

/// A step of an expansion by itself: each operand in memory of its own.
fn alone(op: &'static str, own: &ExpandedStep) -> Step {
    let view = |v: &View| {
        let segment = match v.memory {
            Memory::Read(i) => 3 * i,
            Memory::Write(i) => 3 * i + 1,
            Memory::Temporary(i) => 3 * i + 2,
        };
        let place = Place { segment: SegmentId(segment as u32), offset: 0 };
        TensorView { place, dtype: v.dtype, layout: v.layout.clone() }
    };
    Step {
        work: own.work.clone(),
        reads: own.reads.iter().map(|v| v.as_ref().map(view)).collect(),
        writes: own.writes.iter().map(view).collect(),
        workspace: None,
        op,
        origin: OriginId(0),
        phase: Phase::Forward,
        flops: 0.0,
        stream: 0,
    }
}
