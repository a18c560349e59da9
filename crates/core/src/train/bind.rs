//! Bindings of a training step whose gradients lie in buckets, for plans that are made to be looked at.

use super::key::{Kept, StateKey};
use super::layout::BucketLayout;
use crate::graph::{Graph, OutputRole};
use crate::plan::{Bindings, Place, Segment, SegmentId, SegmentKind};
use crate::target::Port;

/// As [`Bindings::simple`], but gradients, or their sums over micro-batches, lie in the buckets of a layout: a
/// segment for each, in its order. A sparse gradient lies in segments of its own; the layout has none of them.
pub fn bind(graph: &Graph, layout: &BucketLayout) -> Bindings {
    let sum = |i: usize| match StateKey::of(&graph.inputs[i]) {
        Some(StateKey::Part(parameter, Kept::Gradients)) => Some(parameter),
        _ => None,
    };
    let accumulated = (0..graph.inputs.len()).any(|i| sum(i).is_some_and(|p| layout.find(&p).is_some()));
    let held = |bucket: usize| {
        let bucket = &layout.buckets[bucket];
        if accumulated { bucket.wide() } else { bucket.dtype }
    };
    let segments = layout.buckets.iter().enumerate().map(|(i, bucket)| Segment {
        name: format!("gradients.{}", bucket.name()),
        bytes: bucket.elements * held(i).size(),
        kind: SegmentKind::State,
    });
    let segments: Vec<Segment> = segments.collect();
    let buckets = (1..=segments.len() as u32).map(SegmentId).collect();
    let place = |parameter: &str| {
        let (bucket, entry) = layout.find(parameter)?;
        Some(Place { segment: SegmentId(bucket as u32 + 1), offset: entry.offset * held(bucket).size() })
    };
    let given = |port| match port {
        Port::Read(i) => place(&sum(i)?),
        Port::Write(i) => match graph.outputs[i].role {
            OutputRole::Gradient(v) => place(&graph.inputs[graph.input_index(v)?].name),
            _ => None,
        },
    };
    Bindings { buckets, ..Bindings::around(graph, segments, given) }
}
