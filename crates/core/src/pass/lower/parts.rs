//! Parts of a result that are computed in their places: operands of a concatenation, or of another operator
//! that copies boxes, which nobody else reads, or what these are views of. Their bytes are moved once less.

use super::draft::Storage;
use super::layouts::Search;
use crate::diagnostic::Result;
use crate::graph::{Def, Graph, Node, NodeId, ValueId};
use crate::ops::view::alias::ALIAS;
use crate::ops::view::permute::PERMUTE;
use crate::ops::view::reshape::RESHAPE;
use crate::ops::view::transpose::TRANSPOSE;
use crate::ops::view::unsqueeze::UNSQUEEZE;
use crate::ops::{Body, RegionCopy, Source};
use crate::shape::Layout;
use crate::target::Target;
use std::collections::HashMap;

/// The place of a value within another one.
pub(super) struct Part {
    /// The value that it, or the last view of it, is copied to.
    pub(super) whole: ValueId,
    /// The box that this fills there.
    pub(super) region: RegionCopy,
    /// Nodes that make views of it, the last first.
    pub(super) views: Vec<NodeId>,
}

/// The values that may be computed as parts of others. `bound` tells which have a place given by the caller.
///
/// Such a place may hold what is read before the whole is made, so that a whole with a place of its own has
/// no parts. Nor are parts written before a box that overlaps them.
pub(super) fn parts(
    graph: &Graph,
    target: &Target,
    bound: &dyn Fn(ValueId) -> bool,
) -> Result<HashMap<ValueId, Part>> {
    let search = Search::new(graph, target);
    let mut is_output = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|o| is_output[o.value.0 as usize] = true);
    let mut found = HashMap::new();
    for node in &graph.nodes {
        let Body::Copies(copies) = node.op.body else { continue };
        let whole = node.outputs[0];
        if bound(whole) {
            continue;
        }
        let regions = copies(&graph.cx(node), graph.ty(whole))?;
        for (at, region) in regions.iter().enumerate() {
            let Source::Input(i) = region.source else { continue };
            let Some(v) = node.inputs.get(i).copied().flatten() else { continue };
            let ty = graph.ty(v);
            let all =
                RegionCopy { start: region.start.clone(), ..RegionCopy::whole(region.source, &ty.shape) };
            let alone =
                |v: ValueId| search.users[v.0 as usize].len() == 1 && !is_output[v.0 as usize] && !bound(v);
            let apart = regions.iter().enumerate().all(|(other, r)| other == at || disjoint(region, r));
            let fits = *region == all && ty.dtype == graph.ty(whole).dtype && !ty.shape.contains(&0);
            if !(alone(v) && apart && fits) {
                continue;
            }
            let (mut base, mut views) = (v, Vec::new());
            while let Def::Node(n, _) = graph.value(base).def
                && let Some(x) =
                    graph.node(n).operands().next().filter(|&x| reversible(graph.node(n)) && alone(x))
            {
                views.push(n);
                base = x;
            }
            let Some((maker, o)) = graph.producer(base) else { continue };
            if maker.phase == node.phase && search.free(maker, o)? {
                found.insert(base, Part { whole, region: region.clone(), views });
            }
        }
    }
    Ok(found)
}

/// True if a node makes a view that shows all elements of its operand once: in another order of dimensions,
/// or under another shape.
fn reversible(node: &Node) -> bool {
    [&PERMUTE, &TRANSPOSE, &RESHAPE, &UNSQUEEZE, &ALIAS].contains(&node.op)
}

/// The layout of a value of which `views`, the last first, make a layout `seen`; `None` if there is none.
pub(super) fn beneath(graph: &Graph, views: &[NodeId], seen: Layout) -> Option<Layout> {
    views.iter().try_fold(seen, |seen, &n| {
        let node = graph.node(n);
        let (cx, Body::View(view)) = (graph.cx(node), node.op.body) else { return None };
        let shape = cx.shape(0).ok()?.clone();
        if ![&PERMUTE, &TRANSPOSE].contains(&node.op) {
            return seen.reshape(&shape);
        }
        // Strides that tell which dimension each is of.
        let numbers = (0..shape.rank() as isize).collect();
        let order =
            (view.layout)(&cx, &Layout { shape: shape.clone(), strides: numbers, offset: 0 }, 0).ok()??;
        let mut own = Layout { strides: seen.strides.clone(), shape, offset: seen.offset };
        for (from, to) in order.strides.iter().zip(&seen.strides) {
            own.strides[*from as usize] = *to;
        }
        Some(own)
    })
}

/// True if two boxes have no element in common, as their ends tell.
fn disjoint(a: &RegionCopy, b: &RegionCopy) -> bool {
    let end = |r: &RegionCopy, d: usize| r.start[d] + r.extent[d].saturating_sub(1) * r.step[d];
    (0..a.start.len()).any(|d| {
        let empty = a.extent[d] == 0 || b.extent[d] == 0;
        empty || end(a, d) < b.start[d] || end(b, d) < a.start[d]
    })
}

/// The box of a result that a region fills.
pub(super) fn region_of(whole: &Storage, region: &RegionCopy) -> Storage {
    let own = &whole.layout.strides;
    let begin = own.iter().zip(&region.start).map(|(s, &i)| s * i as isize).sum::<isize>();
    Storage {
        buffer: whole.buffer,
        dtype: whole.dtype,
        layout: Layout {
            strides: own.iter().zip(&region.step).map(|(s, &k)| s * k as isize).collect(),
            offset: whole.layout.offset + begin,
            shape: crate::Shape::new(&region.extent),
        },
    }
}
