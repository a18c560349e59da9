//! Bindings of a training step whose gradients are in buckets, for plans that are made to be looked at.

use super::key::{Kept, StateKey};
use super::layout::BucketLayout;
use crate::graph::{Graph, InputRole, OutputRole};
use crate::plan::{Bindings, Place, Segment, SegmentId, SegmentKind};
use crate::target::Port;

/// As [`Bindings::simple`], but gradients, or their sums over micro-batches, are in the buckets of a layout:
/// a segment for each, in its order. After these are segments of the parameters, which are laid out alike. A
/// sparse gradient is in segments of its own; the layout has none of them.
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
    let parameters = layout.buckets.iter().map(|bucket| Segment {
        name: format!("parameters.{}", bucket.name()),
        bytes: bucket.elements * bucket.dtype.size(),
        kind: SegmentKind::State,
    });
    let segments: Vec<Segment> = segments.chain(parameters).collect();
    let count = layout.buckets.len() as u32;
    let buckets = (1..=count).map(SegmentId).collect();
    let parameter = |i: usize| {
        let InputRole::Parameter { .. } = graph.inputs[i].role else { return None };
        let (bucket, entry) = layout.find(&graph.inputs[i].name)?;
        let offset = entry.offset * layout.buckets[bucket].dtype.size();
        Some(Place { segment: SegmentId(count + bucket as u32 + 1), offset })
    };
    let place = |parameter: &str| {
        let (bucket, entry) = layout.find(parameter)?;
        Some(Place { segment: SegmentId(bucket as u32 + 1), offset: entry.offset * held(bucket).size() })
    };
    let given = |port| match port {
        Port::Read(i) => match sum(i) {
            Some(parameter) => place(&parameter),
            None => parameter(i),
        },
        Port::Write(i) => match graph.outputs[i].role {
            OutputRole::Gradient(v) => place(&graph.inputs[graph.input_index(v)?].name),
            _ => None,
        },
    };
    Bindings { buckets, ..Bindings::around(graph, segments, given) }
}
