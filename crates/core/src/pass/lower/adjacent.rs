//! Inputs that are adjacent in memory: their concatenation is a view of that memory.

use super::outputs::Delivery;
use crate::diagnostic::Result;
use crate::graph::{Def, Graph, Node, ValueId};
use crate::ops::movement::cat::CAT;
use crate::ops::{Body, Source};
use crate::plan::{Bindings, Place, SegmentId};
use std::collections::{HashMap, HashSet};

/// Concatenations that are in memory already, with their places. Segments that the plan writes are left out:
/// a view of one could show new contents too early.
pub(super) fn adjacent(
    graph: &Graph,
    bindings: &Bindings,
    deliveries: &[Delivery],
) -> Result<HashMap<ValueId, Place>> {
    let written: HashSet<SegmentId> = deliveries.iter().map(|d| d.place.segment).collect();
    let mut found = HashMap::new();
    for node in graph.nodes.iter().filter(|n| *n.op == CAT) {
        let place = place(graph, bindings, node)?;
        if let Some(place) = place.filter(|place| !written.contains(&place.segment)) {
            found.insert(node.outputs[0], place);
        }
    }
    Ok(found)
}

/// The place of a concatenation whose operands are inputs that follow each other, each a whole of rows of it.
fn place(graph: &Graph, bindings: &Bindings, node: &Node) -> Result<Option<Place>> {
    let Body::Copies(copies) = node.op.body else { return Ok(None) };
    let out = graph.ty(node.outputs[0]);
    let (mut first, mut elements) = (None, 0);
    for copy in copies(&graph.cx(node), out)? {
        let Source::Input(i) = copy.source else { return Ok(None) };
        let Some(v) = node.inputs.get(i).copied().flatten() else { return Ok(None) };
        let Def::Input(input) = graph.value(v).def else { return Ok(None) };
        let Some(place) = bindings.inputs[input as usize] else { return Ok(None) };
        // Elements before the box in row-major order; those of one box follow each other if no dimension
        // before the one it begins in has more than one index.
        let ty = graph.ty(v);
        let strides = out.shape.strides();
        let begin: usize = copy.start.iter().zip(&strides).map(|(&at, &s)| at * s as usize).sum();
        let whole = ty.dtype == out.dtype && begin == elements && rows(&ty.shape, &out.shape);
        let start = *first.get_or_insert(place);
        let end = start.offset + elements * ty.dtype.size();
        if !whole || place != (Place { offset: end, ..start }) {
            return Ok(None);
        }
        elements += ty.shape.numel();
    }
    Ok(first.filter(|_| elements == out.shape.numel()))
}

/// True if boxes of one shape follow one another in the row-major order of a larger one: all dimensions
/// before the one that differs have a single index.
fn rows(part: &[usize], whole: &[usize]) -> bool {
    let differs = part.iter().zip(whole).position(|(a, b)| a != b).unwrap_or(0);
    part.len() == whole.len()
        && whole[..differs].iter().all(|&n| n == 1)
        && part[differs..].iter().skip(1).eq(whole[differs..].iter().skip(1))
}
