//! Parts of a result that are computed in their places: operands of a concatenation, or of another operator
//! that copies boxes, which nobody else reads. Their bytes are moved once less.

use super::draft::Storage;
use super::layouts::Search;
use crate::diagnostic::Result;
use crate::graph::{Graph, ValueId};
use crate::ops::{Body, RegionCopy, Source};
use crate::shape::Layout;
use crate::target::Target;
use std::collections::HashMap;

/// The place of a value within another one.
pub(super) struct Part {
    /// The value that it is copied to.
    pub(super) whole: ValueId,
    /// The box that it fills there.
    pub(super) region: RegionCopy,
}

/// The values that may be computed as parts of others. `bound` tells which have a place given by the caller.
///
/// Such a place may hold what is read before the whole is made, so that a whole with a place of its own has no
/// parts. Nor are parts written before a box that overlaps them.
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
            let Some((maker, o)) = graph.producer(v) else { continue };
            let ty = graph.ty(v);
            let all =
                RegionCopy { start: region.start.clone(), ..RegionCopy::whole(region.source, &ty.shape) };
            let alone = search.users[v.0 as usize].len() == 1 && !is_output[v.0 as usize];
            let apart = regions.iter().enumerate().all(|(other, r)| other == at || disjoint(region, r));
            let fits = *region == all && ty.dtype == graph.ty(whole).dtype && !ty.shape.contains(&0);
            if alone && apart && fits && maker.phase == node.phase && !bound(v) && search.free(maker, o)? {
                found.insert(v, Part { whole, region: region.clone() });
            }
        }
    }
    Ok(found)
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
