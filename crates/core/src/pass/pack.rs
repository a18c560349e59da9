//! Buckets of gradients as values: the gradients that the caller has placed in one bucket become one result.
//! Collectives and norms can then be nodes that read a bucket, which passes move and plans order.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::{Builder, Def, Graph, Output, OutputRole, Phase, ValueId};
use crate::ops::{Body, update::pack::PACK};
use crate::plan::{Bindings, Place, SegmentId};
use std::collections::{HashMap, HashSet};

/// A gradient, or its sum over micro-batches, in a bucket.
struct Member {
    /// Number of the graph's output.
    output: usize,
    value: ValueId,
    /// First byte.
    offset: usize,
}

/// Packs the gradients, or their sums, of each of [`Bindings::buckets`]. The node comes after all that write
/// or read the bucket's contents; the bucket is one output in place of theirs. A bucket stays as it is where
/// the old content of one part would have to be copied to another.
///
/// # Errors
/// Refusals of the operator: none for places that do not overlap.
pub fn pack(graph: Graph, bindings: &mut Bindings) -> Result<Graph> {
    let made = graph.nodes.len();
    let buckets = members(&graph, bindings);
    let mut b = Builder::extend(graph);
    b.phase = Phase::Backward;
    let mut behind = Vec::with_capacity(buckets.len());
    let mut packed: HashMap<usize, (Output, Place)> = HashMap::new();
    let mut dropped = HashSet::new();
    for (segment, members) in buckets {
        let size = b.ty(members[0].value).dtype.size();
        let held = &bindings.segments[segment.0 as usize - 1];
        let offsets: Vec<i64> = members.iter().map(|m| (m.offset / size) as i64).collect();
        let attrs = Attrs::new().with("offsets", offsets).with("elements", (held.bytes / size) as i64);
        let values: Vec<ValueId> = members.iter().map(|m| m.value).collect();
        behind.push(last_use(b.graph(), bindings, segment, &values));
        let value = b.one(&PACK, &values, attrs)?;
        let output = Output { value, name: held.name.clone(), role: OutputRole::Gradients };
        dropped.extend(members.iter().map(|m| m.output));
        let first = members.iter().map(|m| m.output).min().unwrap_or(0);
        packed.insert(first, (output, Place { segment, offset: 0 }));
    }
    let mut graph = b.finish();
    let old = std::mem::take(&mut graph.outputs).into_iter().zip(std::mem::take(&mut bindings.outputs));
    for (i, (output, place)) in old.enumerate() {
        let (output, place) = match packed.remove(&i) {
            Some((output, place)) => (output, Some(place)),
            None if dropped.contains(&i) => continue,
            None => (output, place),
        };
        graph.outputs.push(output);
        bindings.outputs.push(place);
    }
    graph.sort_nodes(|n, _| behind.get(n.wrapping_sub(made)).map_or((n, 0), |after| (*after, 1)));
    Ok(graph)
}

/// The buckets that can be packed, with the contents of each in the order of offsets.
fn members(graph: &Graph, bindings: &Bindings) -> Vec<(SegmentId, Vec<Member>)> {
    let mut found: HashMap<SegmentId, Vec<Member>> = HashMap::new();
    for (output, (o, own)) in graph.outputs.iter().zip(&bindings.outputs).enumerate() {
        let place = match o.role {
            OutputRole::Gradient(_) => *own,
            OutputRole::Mutation(_) => bindings.output_place(graph, output),
            OutputRole::User | OutputRole::Gradients => None,
        };
        if let Some(Place { segment, offset }) = place {
            found.entry(segment).or_default().push(Member { output, value: o.value, offset });
        }
    }
    let read: HashSet<SegmentId> = bindings.inputs.iter().flatten().map(|place| place.segment).collect();
    let of = |segment: &SegmentId| {
        let mut members = found.remove(segment)?;
        members.sort_by_key(|m| m.offset);
        let ty = |m: &Member| graph.ty(m.value);
        let size = ty(&members[0]).dtype.size();
        let bytes = bindings.segments.get(segment.0 as usize - 1)?.bytes;
        let ends = members.iter().map(|m| m.offset + ty(m).bytes());
        let begins = members.iter().skip(1).map(|m| m.offset).chain([bytes]);
        // A view of old content, made by no step, would be copied over what others are still to read.
        let computed = |m: &Member| match graph.value(m.value).def {
            Def::Node(n, _) => !matches!(graph.node(n).op.body, Body::View(_)),
            Def::Input(_) => false,
        };
        let alike =
            members.iter().all(|m| ty(m).dtype == ty(&members[0]).dtype && m.offset.is_multiple_of(size));
        let apart = ends.zip(begins).all(|(end, next)| end <= next) && bytes.is_multiple_of(size);
        let settled = !read.contains(segment) || members.iter().all(computed);
        (alike && apart && settled).then_some((*segment, members))
    };
    bindings.buckets.iter().filter_map(of).collect()
}

/// The last node that makes one of these values, or reads an input that is in the segment.
fn last_use(graph: &Graph, bindings: &Bindings, segment: SegmentId, values: &[ValueId]) -> usize {
    let inputs = graph.inputs.iter().zip(&bindings.inputs);
    let held = inputs.filter(|(_, place)| place.is_some_and(|p| p.segment == segment));
    let mut views: HashSet<ValueId> = held.map(|(input, _)| input.value).collect();
    let mut last = graph.nodes.iter().rposition(|n| n.phase == Phase::Forward).unwrap_or(0);
    for (n, node) in graph.nodes.iter().enumerate() {
        if node.operands().any(|v| views.contains(&v)) {
            last = last.max(n);
            if matches!(node.op.body, Body::View(_)) {
                views.extend(&node.outputs);
            }
        }
    }
    let made = values.iter().filter_map(|v| match graph.value(*v).def {
        Def::Node(n, _) => Some(n.0 as usize),
        Def::Input(_) => None,
    });
    made.fold(last, usize::max)
}
