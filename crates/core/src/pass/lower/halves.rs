//! A training step in two halves, forward and backward, with the caller in between, as a function of an eager
//! framework's automatic differentiation is called. Owns the rules of the fence between them; `fuse` and
//! `lower` keep it, and `check_halves` proves it from the finished plan.

use super::draft::{Buffer, Draft, extent, overlap};
use crate::diagnostic::Result;
use crate::graph::{Def, Graph, Phase, ValueId};
use crate::ops::Body;
use crate::plan::{ARENA, Bindings, Crossing, Halves, Place, Plan, TensorView};
use crate::{ensure, fail};
use std::collections::{BTreeMap, HashSet};

/// Refuses results of the forward half that share memory with an input, if the backward half reads that
/// input: its old content would be lost. State that the forward pass changes is such a result.
///
/// # Errors
/// `Unsupported`, naming the result.
pub(super) fn check_overwritten(
    graph: &Graph,
    bindings: &Bindings,
    first: usize,
    made: &[bool],
) -> Result<()> {
    // Input of a value that may be a view of it.
    let mut root: Vec<ValueId> = (0..graph.values.len() as u32).map(ValueId).collect();
    let mut late = HashSet::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        if n >= first {
            late.extend(node.operands().map(|v| root[v.0 as usize]));
        }
        if let (Body::View(_), Some(x)) = (node.op.body, node.operands().next()) {
            node.outputs.iter().for_each(|v| root[v.0 as usize] = root[x.0 as usize]);
        }
    }
    let outputs = || graph.outputs.iter().enumerate().zip(made);
    late.extend(outputs().filter(|(_, made)| !**made).map(|((_, o), _)| root[o.value.0 as usize]));
    let inputs = graph.inputs.iter().zip(&bindings.inputs).filter(|(i, _)| late.contains(&i.value));
    let read: Vec<_> = inputs.filter_map(|(i, place)| Some((i, (*place)?))).collect();
    for ((i, o), _) in outputs().filter(|(_, made)| **made) {
        let Some(place) = bindings.output_place(graph, i) else { continue };
        let bytes = graph.ty(o.value).bytes();
        let lost = read.iter().find(|(i, at)| {
            let stays = o.value == i.value && *at == place;
            !stays && overlap(*at, graph.ty(i.value).bytes(), place, bytes)
        });
        if let Some((input, _)) = lost {
            return Err(fail!(
                Unsupported,
                "the forward pass writes `{}` over `{}`, whose old content the backward pass reads: such a step \
                 cannot be run in halves",
                o.name,
                input.name
            ));
        }
    }
    Ok(())
}

/// The values that cross from the steps of one half to those of the other, each once, as they are first read.
pub(super) fn crossing(
    graph: &Graph,
    buffers: &[Buffer],
    (forward, backward): (&[Draft], &[Draft]),
    place: &dyn Fn(usize) -> Place,
) -> Vec<Crossing> {
    let mut known = vec![false; buffers.len()];
    for storage in forward.iter().flat_map(|d| d.reads.iter().flatten().chain(&d.writes)) {
        known[storage.buffer] = true;
    }
    let mut out = Vec::new();
    for storage in backward.iter().flat_map(|d| d.reads.iter().flatten()) {
        let b = storage.buffer;
        if std::mem::take(&mut known[b]) && buffers[b].bytes > 0 {
            let v = buffers[b].value;
            let name = match graph.value(v).def {
                Def::Input(i) => graph.inputs[i as usize].name.clone(),
                Def::Node(n, _) => {
                    let node = graph.node(n);
                    format!("{} {}", graph.origin(node).module, node.op.name).trim_start().to_string()
                }
            };
            out.push(Crossing { name, ty: graph.ty(v).clone(), place: place(b) });
        }
    }
    out
}

/// Bytes of segments, as ranges that do not touch.
#[derive(Default)]
struct Spans(BTreeMap<(u32, usize), usize>);

impl Spans {
    fn insert(&mut self, segment: u32, mut low: usize, mut high: usize) {
        // The last that begins before, and all that begin inside.
        while let Some((&(s, start), &end)) = self.0.range(..=(segment, high)).next_back() {
            if s != segment || end < low {
                break;
            }
            self.0.remove(&(s, start));
            (low, high) = (low.min(start), high.max(end));
        }
        self.0.insert((segment, low), high);
    }

    fn covers(&self, segment: u32, low: usize, high: usize) -> bool {
        let before = self.0.range(..=(segment, low)).next_back();
        before.is_some_and(|(&(s, _), &end)| s == segment && end >= high)
    }

    fn meets(&self, segment: u32, low: usize, high: usize) -> bool {
        let before = self.0.range(..(segment, high)).next_back();
        before.is_some_and(|(&(s, _), &end)| s == segment && end > low)
    }
}

/// Segment and bytes of a view that is in its segment; `None` if it has no element.
fn span(v: &TensorView) -> Option<(u32, usize, usize)> {
    extent(v).map(|(low, high)| (v.place.segment.0, low.max(0) as usize, high.max(0) as usize))
}

/// Proves the halves of a sound plan from its steps and placements. Forward steps are before the boundary
/// alone. Results of the forward half are written before the boundary and not after it, and are all that it
/// writes outside the arena. Whatever the backward half reads of it is listed as crossing. A view counts as
/// all bytes from its first to its last.
///
/// # Errors
/// `Plan`, naming the step.
pub(super) fn check_halves(plan: &Plan, halves: &Halves) -> Result<()> {
    let boundary = halves.boundary;
    ensure!(boundary <= plan.steps.len(), Plan, "there is no step {boundary} for the backward half to begin");
    for (s, step) in plan.steps.iter().enumerate() {
        let right = (step.phase == Phase::Forward) == (s < boundary);
        ensure!(right, Plan, "step {s} ({}) is {}, on the other side of the boundary", step.op, step.phase);
    }
    let (forward, backward) = plan.steps.split_at(boundary);
    let (mut written, mut returned, mut crossing) = (Spans::default(), Spans::default(), Spans::default());
    for (segment, low, high) in forward.iter().flat_map(|s| &s.writes).filter_map(span) {
        written.insert(segment, low, high);
    }
    for (place, bytes) in halves.returned.iter().filter(|(_, bytes)| *bytes > 0) {
        let end = place.offset.checked_add(*bytes);
        let whole = end.filter(|end| written.covers(place.segment.0, place.offset, *end));
        let Some(end) = whole.filter(|_| place.segment != ARENA) else {
            return Err(fail!(
                Plan,
                "the forward half returns {bytes} bytes at {place} without writing them all"
            ));
        };
        returned.insert(place.segment.0, place.offset, end);
    }
    for (s, step) in forward.iter().enumerate() {
        for (segment, low, high) in step.writes.iter().filter_map(span).filter(|w| w.0 != ARENA.0) {
            ensure!(
                returned.covers(segment, low, high),
                Plan,
                "step {s} ({}) writes bytes {low}..{high} of segment {segment}, and the forward half does not \
                 return them",
                step.op
            );
        }
    }
    for c in &halves.crossing {
        crossing.insert(c.place.segment.0, c.place.offset, c.place.offset.saturating_add(c.ty.bytes()));
    }
    // The arena as it is at the boundary. Placements live at the same step do not overlap.
    let alive = plan.placements.iter().filter(|p| (p.first + 1..=p.last).contains(&boundary));
    let alive: BTreeMap<usize, (usize, usize)> =
        alive.map(|p| (p.place.offset, (p.place.offset + p.bytes, p.last))).collect();
    for (s, step) in (boundary..).zip(backward) {
        for (segment, low, high) in step.reads.iter().flatten().filter_map(span) {
            let kept = if segment == ARENA.0 {
                let at = alive.range(..=low).next_back();
                at.is_some_and(|(_, &(end, last))| low < end && s <= last)
            } else {
                written.meets(segment, low, high)
            };
            ensure!(
                !kept || crossing.covers(segment, low, high),
                Plan,
                "step {s} ({}) reads bytes {low}..{high} of segment {segment} from the forward half, which are \
                 not listed as crossing",
                step.op
            );
        }
        for (segment, low, high) in step.writes.iter().filter_map(span) {
            ensure!(
                !returned.meets(segment, low, high),
                Plan,
                "step {s} ({}) changes bytes {low}..{high} of segment {segment}, which the forward half returns",
                step.op
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_hold_the_bytes_put_in(
            ranges in prop::collection::vec((0u32..2, 0usize..30, 1usize..8), 0..12),
            (segment, low, len) in (0u32..2, 0usize..30, 1usize..8)
        ) {
            let mut spans = Spans::default();
            let mut bytes = [[false; 40]; 2];
            for (s, low, len) in ranges {
                spans.insert(s, low, low + len);
                bytes[s as usize][low..low + len].fill(true);
            }
            let asked = &bytes[segment as usize][low..low + len];
            prop_assert_eq!(spans.covers(segment, low, low + len), asked.iter().all(|b| *b));
            prop_assert_eq!(spans.meets(segment, low, low + len), asked.iter().any(|b| *b));
        }
    }
}
